// Windows of ranks that are threads: plain mappings, found by number in a table of this process.
#include "base/error.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/together.hpp"
#include "memory/membership.hpp"
#include "memory/symmetric_memory.hpp"

#include <unistd.h>

#include <map>
#include <mutex>
#include <random>

namespace heddle {
namespace {

// Windows on offer. A number, not a pointer, crosses the bootstrap, so that an importer that comes late, after the
// exporter gave up, finds nothing instead of freed memory.
class Offers {
 public:
  std::uint64_t add(const Mapping& window) {
    std::lock_guard lock(mutex_);
    windows_[++last_] = window;
    return last_;
  }
  void remove(std::uint64_t number) {
    std::lock_guard lock(mutex_);
    windows_.erase(number);
  }
  Mapping find(std::uint64_t number) {
    std::lock_guard lock(mutex_);
    const auto found = windows_.find(number);
    return found == windows_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<std::byte>> windows_;
  std::uint64_t last_ = 0;
};

Offers& offers() {
  static Offers table;
  return table;
}

class Offer {
 public:
  explicit Offer(const Mapping& window) : number_(offers().add(window)) {}
  ~Offer() { offers().remove(number_); }
  Offer(const Offer&) = delete;
  std::uint64_t number() const { return number_; }

 private:
  std::uint64_t number_;
};

// The process number alone may repeat in another container, the random one in a forked child.
std::string process_identity() {
  static const auto random = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  return fmt::format("{:016x}:{}", random, ::getpid());
}

Mapping import(const Bytes& message, int peer) {
  Unpacker unpacker(message);
  const std::string identity = unpacker.text();
  HEDDLE_CHECK(identity == process_identity(),
               "make_heap: rank {} is in another process; memory of the heap is for threads, use make_shm", peer);
  Mapping window = offers().find(unpacker.number());
  if (!window) fail(ErrorCode::destroyed, "make_heap: rank {} took its window back before it was mapped", peer);
  return window;
}

}  // namespace

SymmetricMemory make_local(std::size_t bytes) {
  HEDDLE_CHECK(bytes > 0, "symmetric memory: bytes is 0, must be positive");
  return {0, bytes, {map_anonymous(bytes)}};
}

SymmetricMemory make_heap(Bootstrap& bootstrap, std::size_t bytes, std::chrono::nanoseconds,
                          std::span<const int> members) {
  const Membership membership = agree_on_window(bootstrap, "heap", bytes, members);
  const Mapping mine = together(bootstrap, "heap: map own window", [&] { return map_anonymous(bytes); });
  const Offer offer(mine);
  const auto all =
      bootstrap.all_gather(Packer().put(process_identity()).put(offer.number()).bytes(), "heap: exchange windows");
  auto windows = together(bootstrap, "heap: take peers' windows", [&] {
    std::vector<Mapping> taken;
    for (int peer = 0; peer < bootstrap.size(); ++peer) taken.push_back(import(all[peer], peer));
    return taken;
  });
  return {membership.rank_of(bootstrap.rank()), bytes, membership.by_rank(std::move(windows))};
}

}  // namespace heddle
