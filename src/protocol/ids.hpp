// Takes a caller's expert ids, or its rank map, into a plan's own dense tensors.
#pragma once

#include <heddle/dtype.hpp>

#include <cstdint>

#include "device/coop.hpp"

namespace heddle {

/// A table as a caller has it: int32 or int64 ids [rows][columns], or a map of bytes. Strides in elements.
struct TableView {
  const void* data = nullptr;
  DType dtype = DType::i32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;

  HEDDLE_HD int64_t numel() const { return rows * columns; }
  HEDDLE_HD int64_t at(int64_t item) const { return item / columns * row_stride + item % columns * column_stride; }
};

/// How taking ids went, now or later; see Backend::bad_id().
struct IdCheck {
  uint64_t bad = 0;
  uint64_t ticket = 0;
};

/// An id outside [-1, experts) becomes -1, and its place + 1 goes to `bad`: the first on the CPU, any of them on a GPU.
template <class Coop>
HEDDLE_HD void take_ids(const Coop& coop, const TableView& ids, int experts, int32_t* to, uint64_t* bad) {
  deal_lanes(coop, 0, ids.numel(), [&](long item) {
    const int64_t at = ids.at(item);
    const int64_t id = ids.dtype == DType::i64 ? static_cast<const int64_t*>(ids.data)[at]
                                               : static_cast<const int32_t*>(ids.data)[at];
    const bool legal = id >= -1 && id < experts;
    to[item] = legal ? static_cast<int32_t>(id) : -1;
    if (!legal && bad != nullptr && *bad == 0) *bad = static_cast<uint64_t>(item) + 1;
  });
}

template <class Coop>
HEDDLE_HD void take_map(const Coop& coop, const TableView& map, uint8_t* to) {
  deal_lanes(coop, 0, map.numel(), [&](long item) {
    to[item] = static_cast<const uint8_t*>(map.data)[map.at(item)] != 0;
  });
}

}  // namespace heddle
