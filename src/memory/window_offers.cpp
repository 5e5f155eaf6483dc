#include "memory/window_offers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <random>

namespace heddle {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<std::byte>> windows;
  std::uint64_t last = 0;
};

Table& table() {
  static Table of_process;
  return of_process;
}

std::uint64_t add(const Mapping& window) {
  const std::lock_guard lock(table().mutex);
  table().windows[++table().last] = window;
  return table().last;
}

}  // namespace

WindowOffer::WindowOffer(const Mapping& window) : number_(add(window)) {}

WindowOffer::~WindowOffer() {
  const std::lock_guard lock(table().mutex);
  table().windows.erase(number_);
}

Mapping find_window(std::uint64_t number) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().windows.find(number);
  return found == table().windows.end() ? nullptr : found->second.lock();
}

// The process number alone may repeat in another container, the random one in a forked child.
std::string process_identity() {
  static const auto random = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return fmt::format("{:016x}:{}", random, ::getpid());
}

}  // namespace heddle
