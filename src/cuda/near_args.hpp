// A launch's arguments, nearer than where the driver put them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/macros.hpp"

namespace heddle {

/// Copies of a launch's arguments in the memory of its block, for functions that are not inlined: they have the launch's own by
/// address, behind a cache that releases empty.
template <class Args, class Port>
class NearArgs {
 public:
  /// By all threads of the block; then they meet.
  template <class Coop>
  HEDDLE_HD void copy(const Coop& coop, const Args& args, const Port& port) {
    copy_words(coop, args_, &args, sizeof(Args));
    copy_words(coop, port_, &port, sizeof(Port));
    coop.block_sync();
  }
  HEDDLE_HD const Args& args() const { return *reinterpret_cast<const Args*>(args_); }
  HEDDLE_HD Port& port() { return *reinterpret_cast<Port*>(port_); }

 private:
  template <class Coop>
  HEDDLE_HD static void copy_words(const Coop& coop, std::byte* to, const void* from, size_t bytes) {
    constexpr size_t kWord = sizeof(uint32_t);
    for (size_t at = static_cast<size_t>(coop.thread()) * kWord; at < bytes; at += static_cast<size_t>(coop.threads()) * kWord) {
      memcpy(to + at, static_cast<const std::byte*>(from) + at, kWord);
    }
  }

  static_assert(sizeof(Args) % sizeof(uint32_t) == 0 && sizeof(Port) % sizeof(uint32_t) == 0);
  alignas(16) std::byte args_[sizeof(Args)];
  alignas(16) std::byte port_[sizeof(Port)];
};

}  // namespace heddle
