#include "memory/symmetric_memory.hpp"

#include "base/error.hpp"

namespace heddle {

SymmetricMemory::SymmetricMemory(int rank, std::size_t bytes, std::vector<Mapping> windows)
    : rank_(rank), bytes_(bytes), windows_(std::move(windows)) {
  HEDDLE_CHECK(windows_.size() <= std::size_t{kMaxRanks}, "symmetric memory: {} ranks, at most {} are built in",
               windows_.size(), kMaxRanks);
  HEDDLE_CHECK(local() != nullptr, "symmetric memory: rank {} has no window of its own among {}", rank,
               windows_.size());
}

std::byte* SymmetricMemory::peer(int rank) const {
  const bool known = rank >= 0 && static_cast<std::size_t>(rank) < windows_.size();
  return known ? windows_[rank].get() : nullptr;
}

PeerView SymmetricMemory::view() const {
  PeerView view{.windows = {}, .count = static_cast<int>(windows_.size()), .rank = rank_};
  for (int rank = 0; rank < view.count; ++rank) view.windows[rank] = peer(rank);
  return view;
}

}  // namespace heddle
