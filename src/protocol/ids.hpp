// Takes a caller's expert ids, or its rank map, into a plan's own dense tensors.
#pragma once

#include <heddle/dtype.hpp>

#include <cstdint>

#include "device/atomic.hpp"
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

/// Where a plan that takes its ids itself finds them; data null: they are in it.
struct GivenIds {
  TableView table;
  uint64_t* bad = nullptr;  // see taken_id()
};

/// How taking ids went, now or later; see Backend::bad_id().
struct IdCheck {
  uint64_t bad = 0;
  uint64_t ticket = 0;
};

/// An id outside [-1, experts) becomes -1, and its place + 1 goes to `bad`: the first on the CPU, any of them on a GPU.
HEDDLE_HD inline int32_t taken_id(const TableView& ids, int64_t item, int experts, uint64_t* bad) {
  const int64_t at = ids.at(item);
  const int64_t id = ids.dtype == DType::i64 ? static_cast<const int64_t*>(ids.data)[at]
                                             : static_cast<const int32_t*>(ids.data)[at];
  if (id >= -1 && id < experts) return static_cast<int32_t>(id);
  if (bad != nullptr && load_relaxed(bad) == 0) store_relaxed(bad, static_cast<uint64_t>(item) + 1);
  return -1;
}

template <class Coop>
HEDDLE_HD void take_ids(const Coop& coop, const TableView& ids, int experts, int32_t* to, uint64_t* bad) {
  deal_lanes(coop, 0, ids.numel(), [&](long item) { to[item] = taken_id(ids, item, experts, bad); });
}

template <class Coop>
HEDDLE_HD void take_map(const Coop& coop, const TableView& map, uint8_t* to) {
  deal_lanes(coop, 0, map.numel(), [&](long item) {
    to[item] = static_cast<const uint8_t*>(map.data)[map.at(item)] != 0;
  });
}

}  // namespace heddle
