// Where rows go at their receiver: pure functions of the count tables that headers carry (I14), the same at the receiver and
// at every sender. `count(source, column)` is a cell of the source's table; 0 for a source that is masked.
#pragma once

#include <cstdint>

#include "base/math.hpp"
#include "layout/shape.hpp"
#include "layout/topology.hpp"

namespace heddle {

/// Token-major: first row of `source` at `owner`. The columns are ranks.
template <class Count>
HEDDLE_HD int64_t first_row(const Count& count, int owner, int source) {
  int64_t row = 0;
  for (int earlier = 0; earlier < source; ++earlier) row += count(earlier, owner);
  return row;
}

/// Rows of one expert, from all sources. The columns are experts.
template <class Count>
HEDDLE_HD int64_t group_rows(const Count& count, int world, int expert) {
  return first_row(count, expert, world);
}

/// Where the groups of an owner's experts begin. A slab gives each expert the same room.
struct Groups {
  Layout layout = Layout::expert_major;
  int64_t alignment = 1;
  int64_t slab_rows = 0;  // R x M

  /// Start of the group after one that starts at `start` and holds `rows`.
  HEDDLE_HD int64_t next(int64_t start, int64_t rows) const {
    if (layout == Layout::slab) return start + slab_rows;
    if (alignment == 1) return start + rows;
    const auto unit = static_cast<uint32_t>(alignment);  // of 32 bits: a GPU takes several times as long for 64
    return start + int64_t{(static_cast<uint32_t>(rows) + unit - 1) / unit * unit};
  }
};

}  // namespace heddle
