// A window of which only some sources reach the GPU memory of its owner: what the others write lies in pinned host
// memory, all at the places that layout/window.hpp gives it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>
#include <vector>

#include "layout/window.hpp"

namespace heddle {

/// Pairs of ranks, whichever is named first.
class RankPairs {
 public:
  void add(int a, int b) { pairs_.insert(std::minmax(a, b)); }
  bool contains(int a, int b) const { return pairs_.contains(std::minmax(a, b)); }
  bool empty() const { return pairs_.empty(); }
  auto begin() const { return pairs_.begin(); }
  auto end() const { return pairs_.end(); }

 private:
  std::set<std::pair<int, int>> pairs_;
};

/// A part of a window in one kind of memory.
struct Patch {
  std::size_t first = 0;
  std::size_t bytes = 0;
  bool is_pinned = false;
};

/// Ascending and without gaps, over at least `bytes`; each in whole `unit`s, neighbours of different kinds. A unit is
/// pinned if a rank of `apart` from the owner writes anywhere in it, as all ranks do in the control region's.
std::vector<Patch> patches_of(const Window&, int ranks, int owner, const RankPairs& apart, std::size_t bytes,
                              std::size_t unit);

}  // namespace heddle
