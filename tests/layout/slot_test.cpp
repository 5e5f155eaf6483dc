#include "layout/slot.hpp"

#include <gtest/gtest.h>

#include "layout/limits.hpp"

namespace heddle {
namespace {

// Parts in the order of the wire, none on top of another, whatever the shape.
TEST(Slot, PartsFollowOneAnother) {
  for (const int payload : {16, 48, 4096}) {
    for (const int scale_words : {0, 1, 3, 56}) {
      for (const int topk : {0, 1, 5, kMaxTopk}) {
        for (const bool in_place : {false, true}) {
          const Slot slot = Slot::of({.payload_bytes = payload, .scale_words = scale_words, .topk = topk}, in_place);
          EXPECT_EQ(slot.scales, in_place ? 0 : payload);
          EXPECT_EQ(slot.token, slot.scales + 4 * scale_words);
          EXPECT_EQ(slot.ids, slot.token + 4);
          EXPECT_EQ(slot.ordinals, slot.ids + 4 * topk);
          EXPECT_EQ(slot.weights, slot.ordinals + 4 * topk);
          EXPECT_GE(slot.stride, slot.weights + 4 * topk);
          const int64_t align = payload < kLongRow ? kSlotAlign : kCellAlign;
          EXPECT_EQ(slot.stride % align, 0);
          EXPECT_LT(slot.stride - slot.weights - 4 * topk, align);
        }
      }
    }
  }
}

// I3: a result's slot needs no metadata, and weights only where their gradient returns.
TEST(Slot, OfACombineIsThePayload) {
  const Shape shape{.kind = Kind::combine, .payload_bytes = 208, .topk = 6};
  EXPECT_EQ(Slot::of(shape).stride, 208);
  Shape gradient = shape;
  gradient.row_weights = true;
  EXPECT_EQ(Slot::of(gradient).weights, 208);
  EXPECT_EQ(Slot::of(gradient).stride, 240);
}

}  // namespace
}  // namespace heddle
