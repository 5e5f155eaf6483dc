// Where the scales of a dispatch's output lie.
#pragma once

#include <cstdint>

#include "base/macros.hpp"
#include "base/math.hpp"

namespace heddle {

/// A tile of scales: word w of 128 rows, which is 4 scales of one byte a row. Row r's is word r % 32 * 4 + r / 32.
inline constexpr int64_t kTileRows = 128;

/// Strides in 4-byte words. Row r of the output is row r % group of group r / group (a slab's experts).
struct ScaleView {
  uint32_t* words = nullptr;
  int64_t group = INT64_MAX;
  int64_t group_stride = 0;
  int64_t row_stride = 0;   // of plain rows
  int64_t tile_stride = 0;  // from one 128 rows to the next; 0: no tiles
  int64_t col_stride = 1;

  static constexpr ScaleView by_rows(int64_t count) { return {.row_stride = count}; }

  static constexpr ScaleView by_columns(int64_t count, int64_t group) {
    return {.group = group, .group_stride = count * group, .row_stride = 1, .col_stride = group};
  }

  /// `group` rows are padded to whole tiles, whose padding is never written.
  static constexpr ScaleView by_tiles(int64_t count, int64_t group) {
    return {.group = group,
            .group_stride = ceil_div(group, kTileRows) * count * kTileRows,
            .tile_stride = count * kTileRows,
            .col_stride = kTileRows};
  }

  HEDDLE_HD uint32_t* row(int64_t r) const {
    const int64_t of = r < group ? 0 : r / group;  // a GPU takes longer for a division than for a load
    const int64_t in_group = r - of * group;
    uint32_t* first = words + of * group_stride;
    if (tile_stride == 0) return first + in_group * row_stride;
    const int64_t in_tile = in_group % kTileRows;
    return first + in_group / kTileRows * tile_stride + in_tile % 32 * 4 + in_tile / 32;
  }
};

}  // namespace heddle
