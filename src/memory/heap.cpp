// Windows of ranks that are threads: plain mappings, found by number in a table of this process.
#include "base/error.hpp"
#include "bootstrap/packing.hpp"
#include "bootstrap/together.hpp"
#include "memory/membership.hpp"
#include "memory/symmetric_memory.hpp"
#include "memory/window_offers.hpp"

namespace heddle {
namespace {

Mapping import(const Bytes& message, int peer) {
  Unpacker unpacker(message);
  const std::string identity = unpacker.text();
  HEDDLE_CHECK(identity == process_identity(),
               "make_heap: rank {} is in another process; memory of the heap is for threads, use make_shm", peer);
  Mapping window = find_window(unpacker.number());
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
  const WindowOffer offer(mine);
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
