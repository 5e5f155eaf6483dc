// The host's loops of quantise_row over the channels of one block; see rows_vector.hpp. The scale between them is made in
// quantise.hpp, once for host and device.
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

  static float largest_finite(const Channels& channels) {
    switch (channels.dtype) {
      case DType::f32: return largest(static_cast<const float*>(channels.x), channels.count);
      case DType::bf16: return largest(static_cast<const bf16*>(channels.x), channels.count);
      default: return largest(static_cast<const f16*>(channels.x), channels.count);
    }
  }

  static void cast_e4m3(const Channels& channels, float multiplier, uint8_t* q) {
    switch (channels.dtype) {
      case DType::f32: return cast(static_cast<const float*>(channels.x), channels.count, multiplier, q);
      case DType::bf16: return cast(static_cast<const bf16*>(channels.x), channels.count, multiplier, q);
      default: return cast(static_cast<const f16*>(channels.x), channels.count, multiplier, q);
    }
  }

 private:
  /// Bits of floats >= 0 are in the floats' order, so the largest is found as whole numbers; Inf and NaN count as 0.
  template <class In>
  static float largest(const In* x, int64_t count) {
    I most{};
    for (; count > 0; count -= kWidth, x += kWidth) {
      const I magnitude = (I)Vector::load(x, count) & Vector::kMagnitude;
      const I finite = magnitude >= Vector::kInf ? I{} : magnitude;
      most = finite > most ? finite : most;
    }
    int32_t bits = 0;
    for (int lane = 0; lane < kWidth; ++lane) bits = most[lane] > bits ? most[lane] : bits;
    return __builtin_bit_cast(float, bits);
  }

  template <class In>
  static void cast(const In* x, int64_t count, float multiplier, uint8_t* q) {
    const F factor = F{} + multiplier;
    for (; count > 0; count -= kWidth, x += kWidth, q += kWidth) {
      Vector::store(reinterpret_cast<e4m3*>(q), Vector::load(x, count) * factor, count);
    }
  }
};

}  // namespace heddle
