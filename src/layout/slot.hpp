// The bytes of one slot: payload, scales, what the receiver needs to place the row.
//   dispatch  payload | scales [scale_words] | token i32 | ids [K] i32 | ordinals [K] i32 | weights [K] f32
//   combine   payload | weights [K] f32 (only where the weights' gradient returns)
#pragma once

#include <cstdint>

#include "layout/carver.hpp"
#include "layout/shape.hpp"

namespace heddle {

inline constexpr int64_t kSlotAlign = 16;
/// From here on slots are whole lines: a link carries a line that two stores share twice (H200: 283 GB/s, not 330).
inline constexpr int64_t kLongRow = 1024;

struct Slot {
  int64_t scales = 0;
  int64_t token = 0;
  int64_t ids = 0;
  int64_t ordinals = 0;
  int64_t weights = 0;
  int64_t stride = 0;

  /// A row stored in place (I14) leaves its payload out of the slot.
  HEDDLE_HD static constexpr Slot of(const Shape& shape, bool in_place = false) {
    Slot slot;
    Carver carver(in_place ? 0 : shape.payload_bytes);
    if (shape.kind == Kind::dispatch) {
      slot.scales = carver.take(int64_t{4} * shape.scale_words, kSlotAlign);
      slot.token = carver.take(4, 4);
      slot.ids = carver.take(int64_t{4} * shape.topk, 4);
      slot.ordinals = carver.take(int64_t{4} * shape.topk, 4);
      slot.weights = carver.take(int64_t{4} * shape.topk, 4);
    } else if (shape.row_weights) {
      slot.weights = carver.take(int64_t{4} * shape.topk, 4);
    }
    slot.stride = carver.take(0, shape.payload_bytes < kLongRow ? kSlotAlign : kCellAlign);
    return slot;
  }
};

}  // namespace heddle
