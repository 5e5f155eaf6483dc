#include "device/quantise.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/rows_variant.hpp"

namespace heddle {
namespace {

// Blocks whose largest values are found before the first is cast: few enough that a bf16 row's stay in the L1 cache, many
// enough that the loops' constants are loaded rarely (block by block took a fifth longer with AVX-512).
constexpr int kAtOnce = 64;

void quantise_blocks(const RowsVariant& variant, const QuantiseArgs& args, int64_t first) {
  const int64_t count = std::min<int64_t>(kAtOnce * kQuantiseBlock, args.hidden - first);
  const auto* x = static_cast<const uint8_t*>(args.x) + first * static_cast<int64_t>(size_of(args.x_dtype));
  const Channels channels{x, args.x_dtype, count};
  float largest[kAtOnce];
  float multipliers[kAtOnce];
  variant.largest_finite(channels, largest);
  for (int64_t block = 0; block < num_scale_blocks(count); ++block) {
    const QuantiseScale scale = quantise_scale(args.mode, largest[block]);
    multipliers[block] = scale.multiplier;
    write_scale(args, first / kQuantiseBlock + block, scale);
  }
  variant.cast_e4m3(channels, multipliers, args.q + first);
}

}  // namespace

void host_quantise_row(const QuantiseArgs& args) {
  HEDDLE_CHECK(args.x_dtype == DType::f32 || args.x_dtype == DType::bf16 || args.x_dtype == DType::f16,
               "quantise_row: x_dtype is {}; legal: float32, bfloat16, float16", name_of(args.x_dtype));
  HEDDLE_CHECK(args.mode >= Quantise::fp8 && args.mode <= Quantise::fp8_ue8m0,
               "quantise_row: mode is {}; legal: 0 to 3", static_cast<int>(args.mode));
  quantise_row_with(rows_variant(), args);
}

void quantise_row_with(const RowsVariant& variant, const QuantiseArgs& args) {
  for (int64_t first = 0; first < args.hidden; first += kAtOnce * kQuantiseBlock) quantise_blocks(variant, args, first);
}

}  // namespace heddle
