// The host's loops of quantise_row over channels; see rows_vector.hpp. The scales that come between them are made in
// quantise_scale.hpp, once for host and device.
#pragma once

#include "device/rows_variant.hpp"
#include "device/rows_vector.hpp"

namespace heddle {

template <class Isa>
struct RowsQuantise {
  using Vector = RowsVector<Isa>;
  using F = typename Vector::F;
  using I = typename Vector::I;
  static constexpr int kWidth = Vector::kWidth;

  static void largest_finite(const Channels& channels, float* largest) {
    switch (channels.dtype) {
      case DType::f32: return find(static_cast<const float*>(channels.x), channels.count, largest);
      case DType::bf16: return find(static_cast<const bf16*>(channels.x), channels.count, largest);
      default: return find(static_cast<const f16*>(channels.x), channels.count, largest);
    }
  }

  static void cast_e4m3(const Channels& channels, const float* multipliers, uint8_t* q) {
    e4m3* out = reinterpret_cast<e4m3*>(q);
    switch (channels.dtype) {
      case DType::f32: return cast(static_cast<const float*>(channels.x), channels.count, multipliers, out);
      case DType::bf16: return cast(static_cast<const bf16*>(channels.x), channels.count, multipliers, out);
      default: return cast(static_cast<const f16*>(channels.x), channels.count, multipliers, out);
    }
  }

 private:
  template <class In>
  static void find(const In* x, int64_t count, float* largest) {
    for (; count >= kQuantiseBlock; count -= kQuantiseBlock, x += kQuantiseBlock)
      *largest++ = find_one(x, kQuantiseBlock);
    if (count > 0) *largest = find_one(x, count);
  }

  /// Bits of floats >= 0 are in the floats' order, so the largest is found as whole numbers; Inf and NaN count as 0.
  template <class In>
  HEDDLE_INLINE float find_one(const In* x, int64_t count) {
    I most{};
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) most = larger(most, Vector::load(x + i, kWidth));
    if (i < count) most = larger(most, Vector::load(x + i, count - i));
    int32_t bits = 0;
    for (int lane = 0; lane < kWidth; ++lane) bits = most[lane] > bits ? most[lane] : bits;
    return __builtin_bit_cast(float, bits);
  }

  HEDDLE_INLINE I larger(I most, F x) {
    const I magnitude = (I)x & Vector::kMagnitude;
    const I finite = magnitude >= Vector::kInf ? I{} : magnitude;
    return finite > most ? finite : most;
  }

  template <class In>
  static void cast(const In* x, int64_t count, const float* multipliers, e4m3* q) {
    for (; count >= kQuantiseBlock; count -= kQuantiseBlock, x += kQuantiseBlock, q += kQuantiseBlock) {
      cast_one(x, kQuantiseBlock, *multipliers++, q);
    }
    if (count > 0) cast_one(x, count, *multipliers, q);
  }

  template <class In>
  HEDDLE_INLINE void cast_one(const In* x, int64_t count, float multiplier, e4m3* q) {
    int64_t i = 0;
    for (; i + kWidth <= count; i += kWidth) Vector::store(q + i, Vector::load(x + i, kWidth) * multiplier, kWidth);
    if (i < count) Vector::store(q + i, Vector::load(x + i, count - i) * multiplier, count - i);
  }
};

}  // namespace heddle
