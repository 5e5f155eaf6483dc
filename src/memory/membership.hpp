// From a bootstrap's ranks to the numbers by which the buffer knows them.
#pragma once

#include "bootstrap/bootstrap.hpp"
#include "memory/mapping.hpp"

#include <string_view>

namespace heddle {

class Membership {
 public:
  /// Throws Error{usage} unless `members` is empty or one ascending number below kMaxRanks per bootstrap rank.
  Membership(const Bootstrap&, std::span<const int> members);

  int rank_of(int bootstrap_rank) const { return members_[bootstrap_rank]; }
  /// From the order of the bootstrap to one place per rank; ranks between the members get nullptr.
  std::vector<Mapping> by_rank(std::vector<Mapping> by_bootstrap_rank) const;

 private:
  std::vector<int> members_;
};

/// Collective. Checks on all ranks that they ask for the same window, then that it can be had.
Membership agree_on_window(Bootstrap&, std::string_view kind, std::size_t bytes, std::span<const int> members);

}  // namespace heddle
