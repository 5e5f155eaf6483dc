#include "device/quantise.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "device/rows_variant.hpp"

namespace heddle {

void host_quantise_row(const QuantiseArgs& args) {
  HEDDLE_CHECK(args.x_dtype == DType::f32 || args.x_dtype == DType::bf16 || args.x_dtype == DType::f16,
               "quantise_row: x_dtype is {}; legal: float32, bfloat16, float16", name_of(args.x_dtype));
  HEDDLE_CHECK(args.mode >= Quantise::fp8 && args.mode <= Quantise::fp8_ue8m0, "quantise_row: mode is {}; legal: 0 to 3",
               static_cast<int>(args.mode));
  quantise_row_with(rows_variant(), args);
}

void quantise_row_with(const RowsVariant& variant, const QuantiseArgs& args) {
  const auto* x = static_cast<const uint8_t*>(args.x);
  const auto x_size = static_cast<int64_t>(size_of(args.x_dtype));
  for (int64_t first = 0; first < args.hidden; first += kQuantiseBlock) {
    const Channels block{x + first * x_size, args.x_dtype, std::min<int64_t>(kQuantiseBlock, args.hidden - first)};
    const QuantiseScale scale = quantise_scale(args.mode, variant.largest_finite(block));
    variant.cast_e4m3(block, scale.multiplier, args.q + first);
    write_scale(args, first / kQuantiseBlock, scale);
  }
}

}  // namespace heddle
