#include "memory/membership.hpp"

#include "base/error.hpp"
#include "bootstrap/agree.hpp"
#include "bootstrap/rank_list.hpp"
#include "layout/limits.hpp"

#include <array>
#include <numeric>

namespace heddle {

Membership::Membership(const Bootstrap& bootstrap, std::span<const int> members)
    : members_(members.begin(), members.end()) {
  if (members.empty()) {
    members_.resize(bootstrap.size());
    std::iota(members_.begin(), members_.end(), 0);
  }
  HEDDLE_CHECK(members_.size() == static_cast<std::size_t>(bootstrap.size()),
               "symmetric memory: {} members for a bootstrap of {} ranks", members_.size(), bootstrap.size());
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const int lowest = i == 0 ? 0 : members_[i - 1] + 1;
    HEDDLE_CHECK(members_[i] >= lowest && members_[i] < kMaxRanks,
                 "symmetric memory: members[{}] is {}, must be {} to {}: ascending, below kMaxRanks", i, members_[i],
                 lowest, kMaxRanks - 1);
  }
}

std::vector<Mapping> Membership::by_rank(std::vector<Mapping> by_bootstrap_rank) const {
  std::vector<Mapping> windows(members_.back() + 1);
  for (std::size_t i = 0; i < members_.size(); ++i) windows[members_[i]] = std::move(by_bootstrap_rank[i]);
  return windows;
}

// Agreed first, checked second: a wrong argument is refused by every rank, not by one that keeps the others waiting.
Membership agree_on_window(Bootstrap& bootstrap, std::string_view kind, std::size_t bytes,
                           std::span<const int> members) {
  agree(bootstrap, std::array{Setting{"memory kind", std::string(kind)}, Setting{"window bytes", fmt::to_string(bytes)},
                              Setting{"members", rank_list(members)}});
  HEDDLE_CHECK(bytes > 0, "symmetric memory: bytes is 0, must be positive");
  return Membership(bootstrap, members);
}

}  // namespace heddle
