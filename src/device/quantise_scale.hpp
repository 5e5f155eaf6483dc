// The scale of one block, and its place among the scales of a row.
#pragma once

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "device/quantise_args.hpp"

namespace heddle {

struct QuantiseScale {
  float scale;
  float multiplier;
  ue8m0 exponent;  // of the power-of-two modes
};

/// `largest` is finite and >= 0. From 1e-4 to FP32's largest, scale and multiplier are normal numbers and the exponent is in
/// 105..247, so 255 (NaN) never appears.
HEDDLE_HD inline QuantiseScale quantise_scale(Quantise mode, float largest) {
  constexpr float kMost = 448.0f, kOneOver448 = float_of(0x3B124925u), kLeast = 1e-4f;
  const float a = largest > kLeast ? largest : kLeast;
  // A product, not the quotient a / 448: they differ in the last bit for half of all a, and callers compare bits.
  const float scale = a * kOneOver448;
  if (mode == Quantise::fp8) return {scale, kMost / a, {0}};
  const ue8m0 up = to_ue8m0_up(scale);
  const auto inverse = static_cast<uint8_t>(254 - up.bits);
  return {to_float(up), to_float(ue8m0{inverse}), up};
}

/// Stores block b's scale; with the last block also clears the unused bytes of its word.
HEDDLE_HD inline void write_scale(const QuantiseArgs& args, int64_t block, const QuantiseScale& scale) {
  if (args.mode != Quantise::fp8_ue8m0) {
    static_cast<float*>(args.scales)[block] = scale.scale;
    return;
  }
  auto* bytes = static_cast<uint8_t*>(args.scales);
  bytes[block] = scale.exponent.bits;
  const int64_t blocks = num_scale_blocks(args.hidden);
  if (block + 1 < blocks) return;
  for (int64_t unused = blocks; unused < round_up(blocks, 4); ++unused) bytes[unused] = 0;
}

HEDDLE_HD inline float read_scale(const void* scales, Quantise mode, int64_t block) {
  if (mode != Quantise::fp8_ue8m0) return static_cast<const float*>(scales)[block];
  return to_float(ue8m0{static_cast<const uint8_t*>(scales)[block]});
}

}  // namespace heddle
