// Windows of ranks that are processes: sealed memory whose descriptor is handed to every near rank, mapped, and closed.
#include "bootstrap/together.hpp"
#include "memory/handover.hpp"
#include "memory/membership.hpp"
#include "memory/memfd.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle {

SymmetricMemory make_shm(Bootstrap& bootstrap, std::size_t bytes, std::chrono::nanoseconds deadline,
                         std::span<const int> members) {
  const Membership membership = agree_on_window(bootstrap, "shm", bytes, members);
  const Descriptor mine = together(bootstrap, "shm: make own window", [&] { return make_sealed_memory(bytes); });
  const auto theirs = exchange_descriptors(bootstrap, mine, deadline);
  auto windows = together(bootstrap, "shm: map peers' windows", [&] {
    std::vector<Mapping> mapped(theirs.size());
    mapped[bootstrap.rank()] = map_shared(mine.number(), bytes);
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      if (!theirs[peer]) continue;
      check_sealed_memory(theirs[peer], bytes, peer);
      mapped[peer] = map_shared(theirs[peer].number(), bytes);
    }
    return mapped;
  });
  return {membership.rank_of(bootstrap.rank()), bytes, membership.by_rank(std::move(windows))};
}

}  // namespace heddle
