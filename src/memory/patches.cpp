#include "memory/patches.hpp"

#include <algorithm>

namespace heddle {
namespace {

/// Marks the units that [first, end) touches.
void mark(std::vector<bool>& pinned, std::size_t unit, int64_t first, int64_t end) {
  const auto last = std::min(pinned.size(), (static_cast<std::size_t>(end) + unit - 1) / unit);
  for (std::size_t i = static_cast<std::size_t>(first) / unit; i < last; ++i) pinned[i] = true;
}

}  // namespace

std::vector<Patch> patches_of(const Window& window, int ranks, int owner, const RankPairs& apart, std::size_t bytes,
                              std::size_t unit) {
  std::vector<bool> pinned((bytes + unit - 1) / unit, false);
  for (int source = 0; source < ranks; ++source) {
    if (!apart.contains(owner, source)) continue;
    mark(pinned, unit, window.cells(source), window.cells(source + 1));
    for (const Kind kind : {Kind::dispatch, Kind::combine}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        mark(pinned, unit, window.range(kind, lane, source), window.words(kind, lane, source) + window.word_bytes());
      }
    }
  }
  std::vector<Patch> patches;
  for (std::size_t i = 0; i < pinned.size(); ++i) {
    if (patches.empty() || patches.back().is_pinned != pinned[i])
      patches.push_back({.first = i * unit, .is_pinned = pinned[i]});
    patches.back().bytes += unit;
  }
  return patches;
}

}  // namespace heddle
