#include "device/quantise.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/rows_variant.hpp"

namespace heddle {
namespace {

// Blocks whose largest values are found before the first is cast: few enough that a bf16 row's stay in the L1 cache, many
// enough that the loops' constants are loaded rarely (block by block took a fifth longer with AVX-512).
constexpr int kAtOnce = 64;

Channels channels_of(const QuantiseArgs& args, int64_t first, int64_t most) {
  const auto* x = static_cast<const uint8_t*>(args.x) + first * static_cast<int64_t>(size_of(args.x_dtype));
  return {x, args.x_dtype, std::min(most, args.hidden - first)};
}

void quantise_blocks(const RowsVariant& variant, const QuantiseArgs& args, int64_t first) {
  const Channels channels = channels_of(args, first, kAtOnce * kQuantiseBlock);
  float largest[kAtOnce];
  float multipliers[kAtOnce];
  variant.largest_finite(channels, largest);
  for (int64_t block = 0; block < ceil_div(channels.count, kQuantiseBlock); ++block) {
    const QuantiseScale scale = quantise_scale(args, {.largest = largest[block]});
    multipliers[block] = scale.multiplier;
    write_scale(args, first / kQuantiseBlock + block, scale);
  }
  variant.cast_e4m3(channels, multipliers, args.q + first);
}

void quantise_with_one_scale(const RowsVariant& variant, const QuantiseArgs& args) {
  float most = 0.0f;
  for (int64_t first = 0; first < args.hidden; first += kAtOnce * kQuantiseBlock) {
    float largest[kAtOnce] = {};
    variant.largest_finite(channels_of(args, first, kAtOnce * kQuantiseBlock), largest);
    most = std::max(most, *std::max_element(largest, largest + kAtOnce));
  }
  const QuantiseScale scale = quantise_scale(args, {.largest = most});
  if (args.hidden > 0) write_scale(args, 0, scale);
  float multipliers[kAtOnce];
  std::fill(multipliers, multipliers + kAtOnce, scale.multiplier);
  for (int64_t first = 0; first < args.hidden; first += kAtOnce * kQuantiseBlock) {
    variant.cast_e4m3(channels_of(args, first, kAtOnce * kQuantiseBlock), multipliers, args.q + first);
  }
}

void quantise_mx_block(const RowsVariant& variant, const QuantiseArgs& args, int64_t block) {
  const int64_t first = block * scale_block(args.hidden, args.mode);
  const Channels channels = channels_of(args, first, scale_block(args.hidden, args.mode));
  float largest = 0.0f;
  variant.largest_finite(channels, &largest);
  const QuantiseScale scale = quantise_scale(args, {.largest = largest});
  write_scale(args, block, scale);
  variant.cast_e4m3(channels, &scale.multiplier, args.q + first);
}

float channel(const Channels& channels, int64_t i) {
  switch (channels.dtype) {
    case DType::f32: return static_cast<const float*>(channels.x)[i];
    case DType::bf16: return to_float(static_cast<const bf16*>(channels.x)[i]);
    default: return to_float(static_cast<const f16*>(channels.x)[i]);
  }
}

void quantise_nvfp4_block(const QuantiseArgs& args, int64_t block) {
  const int64_t first = block * scale_block(args.hidden, args.mode);
  const Channels channels = channels_of(args, first, scale_block(args.hidden, args.mode));
  BlockRange range;
  for (int64_t i = 0; i < channels.count; ++i) range.add(channel(channels, i));
  const QuantiseScale scale = quantise_scale(args, range);
  write_scale(args, block, scale);
  for (int64_t i = 0; i < channels.count; i += 2) {
    const float low = channel(channels, i) * scale.multiplier;
    const float high = i + 1 < channels.count ? channel(channels, i + 1) * scale.multiplier : 0.0f;
    args.q[(first + i) / 2] = static_cast<uint8_t>(to_e2m1(low).bits | to_e2m1(high).bits << 4);
  }
}

}  // namespace

void host_quantise_row(const QuantiseArgs& args) {
  HEDDLE_CHECK(args.x_dtype == DType::f32 || args.x_dtype == DType::bf16 || args.x_dtype == DType::f16,
               "quantise_row: x_dtype is {}; legal: float32, bfloat16, float16", name_of(args.x_dtype));
  HEDDLE_CHECK(args.mode >= Quantise::fp8 && args.mode <= Quantise::nvfp4,
               "quantise_row: mode is {}; legal: 0 to 6", static_cast<int>(args.mode));
  quantise_row_with(rows_variant(), args);
}

void quantise_row_with(const RowsVariant& variant, const QuantiseArgs& args) {
  const int64_t blocks = num_scale_blocks(args.hidden, args.mode);
  switch (args.mode) {
    case Quantise::fp8_row: return quantise_with_one_scale(variant, args);
    case Quantise::mxfp8:
      for (int64_t block = 0; block < blocks; ++block) quantise_mx_block(variant, args, block);
      return;
    case Quantise::nvfp4:
      for (int64_t block = 0; block < blocks; ++block) quantise_nvfp4_block(args, block);
      return;
    default:
      for (int64_t first = 0; first < args.hidden; first += kAtOnce * kQuantiseBlock) quantise_blocks(variant, args, first);
  }
}

}  // namespace heddle
