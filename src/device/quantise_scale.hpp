// The scale of one block, and its place among the scales of a row.
#pragma once

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "device/quantise_args.hpp"

namespace heddle {

struct QuantiseScale {
  float scale;
  float multiplier;
  uint8_t byte;  // of the modes with byte scales
};

/// What a block's scale is made of.
struct BlockRange {
  float largest = 0.0f;    // finite |x|; 0 if there is none
  bool all_finite = true;  // only nvfp4 asks

  HEDDLE_HD void add(float x) {
    const float magnitude = float_of(bits_of(x) & ~kFloatSign);
    if (!is_finite(x)) all_finite = false;
    else if (magnitude > largest) largest = magnitude;
  }
};

/// Scale and multiplier are 2^k and 2^-k for the smallest such scale >= `least`, k from -127 to 127.
HEDDLE_HD inline QuantiseScale power_of_two_scale(float least) {
  const ue8m0 up = least <= 0x1p-127f ? ue8m0{0} : to_ue8m0_up(least);
  return {to_float(up), to_float(ue8m0{static_cast<uint8_t>(254 - up.bits)}), up.bits};
}

/// NVFP4's: relative to the global scale. A block with NaN or Inf has a NaN as its scale, since e2m1 has neither.
HEDDLE_HD inline QuantiseScale nvfp4_scale(const BlockRange& range, float global) {
  constexpr float kOneOver6 = float_of(0x3E2AAAABu);
  if (!range.all_finite) return {float_of(kFloatNan), 0.0f, 0x7F};
  const e4m3 scale = to_e4m3(global * (range.largest * kOneOver6));
  const float stored = to_float(scale);
  return {stored, stored == 0.0f ? 0.0f : global / stored, scale.bits};
}

inline constexpr float kLeastRange = 1e-4f;
inline constexpr float kOneOver448 = float_of(0x3B124925u);

/// With a least value of 1e-4, as the FP8 modes have it, scale and multiplier are normal numbers and an exponent byte is in
/// 105..247, so 255 (NaN) never appears.
HEDDLE_HD inline QuantiseScale quantise_scale(const QuantiseArgs& args, const BlockRange& range) {
  constexpr float kMost = 448.0f;
  if (args.mode == Quantise::nvfp4) return nvfp4_scale(range, args.global_scale == nullptr ? 1.0f : *args.global_scale);
  if (args.mode == Quantise::mxfp8) return power_of_two_scale(range.largest * kOneOver448);
  const float a = range.largest > kLeastRange ? range.largest : kLeastRange;
  // A product, not the quotient a / 448: they differ in the last bit for half of all a, and callers compare bits.
  const float scale = a * kOneOver448;
  if (args.mode == Quantise::fp8 || args.mode == Quantise::fp8_row) return {scale, kMost / a, 0};
  return power_of_two_scale(scale);
}

HEDDLE_HD inline void store_scale(const QuantiseArgs& args, int64_t block, const QuantiseScale& scale) {
  if (has_byte_scales(args.mode)) static_cast<uint8_t*>(args.scales)[block] = scale.byte;
  else static_cast<float*>(args.scales)[block] = scale.scale;
}

/// The bytes of the last word behind so many scales.
HEDDLE_HD inline void clear_unused_scales(const QuantiseArgs& args, int64_t blocks) {
  if (!has_byte_scales(args.mode)) return;
  for (int64_t unused = blocks; unused < round_up(blocks, 4); ++unused) static_cast<uint8_t*>(args.scales)[unused] = 0;
}

/// Stores block b's scale; with the last block also clears the unused bytes of its word.
HEDDLE_HD inline void write_scale(const QuantiseArgs& args, int64_t block, const QuantiseScale& scale) {
  store_scale(args, block, scale);
  if (!has_byte_scales(args.mode)) return;
  const int64_t blocks = num_scale_blocks(args.hidden, args.mode);
  if (block + 1 == blocks) clear_unused_scales(args, blocks);
}

HEDDLE_HD inline float read_scale(const void* scales, Quantise mode, int64_t block) {
  if (!has_byte_scales(mode)) return static_cast<const float*>(scales)[block];
  const uint8_t byte = static_cast<const uint8_t*>(scales)[block];
  return mode == Quantise::nvfp4 ? to_float(e4m3{byte}) : to_float(ue8m0{byte});
}

}  // namespace heddle
