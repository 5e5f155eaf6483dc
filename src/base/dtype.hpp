// Element types and their casts, the same bits on host and device.
//
// Casts from FP32 round to nearest even. A NaN becomes the type's canonical NaN, the one GPU instructions give: positive,
// all ones below the sign. So no cast ever yields an all-ones element, which the self-announcing words rely on
// (docs/protocol.md, forms of arrival), and sums agree though x86 and GPUs carry different NaN payloads.
#pragma once

#include <heddle/dtype.hpp>

#include <cstdint>
#include <type_traits>

#include "base/macros.hpp"

namespace heddle {

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
/// OCP E4M3, the "fn" kind: no infinity, 0x7F and 0xFF are NaN, largest 448, smallest 2^-9.
struct e4m3 {
  uint8_t bits;
};
/// OCP E2M1, in the low four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. No infinity, no NaN.
struct e2m1 {
  uint8_t bits;
};
/// OCP E8M0, a scale: 2^(bits - 127), 255 is NaN. No zero, no sign.
struct ue8m0 {
  uint8_t bits;
};

constexpr HEDDLE_HD uint32_t bits_of(float value) { return __builtin_bit_cast(uint32_t, value); }
constexpr HEDDLE_HD float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInf = 0x7F800000u;
inline constexpr uint32_t kFloatNan = 0x7FFFFFFFu;

/// False for Inf and NaN. By bits, so that no compiler flag can make it always true.
constexpr HEDDLE_HD bool is_finite(float value) { return (bits_of(value) & kFloatInf) != kFloatInf; }
constexpr HEDDLE_HD bool is_nan(float value) { return (bits_of(value) & ~kFloatSign) > kFloatInf; }

// Widening is exact; a NaN keeps its sign and payload.

constexpr HEDDLE_HD float to_float(float value) { return value; }
constexpr HEDDLE_HD float to_float(bf16 value) { return float_of(uint32_t{value.bits} << 16); }

constexpr HEDDLE_HD float to_float(f16 value) {
  const uint32_t sign = uint32_t{value.bits} >> 15 << 31;
  const uint32_t magnitude = uint32_t{value.bits} & 0x7FFF;
  if (magnitude >= 0x7C00) return float_of(sign | kFloatInf | magnitude << 13);
  if (magnitude >= 0x0400) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
}

constexpr HEDDLE_HD float to_float(e4m3 value) {
  const uint32_t sign = uint32_t{value.bits} >> 7 << 31;
  const uint32_t magnitude = uint32_t{value.bits} & 0x7F;
  if (magnitude == 0x7F) return float_of(sign | kFloatNan);
  if (magnitude >= 0x08) return float_of(sign | ((magnitude << 20) + (120u << 23)));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-9f));
}

constexpr HEDDLE_HD float to_float(e2m1 value) {
  const uint32_t sign = uint32_t{value.bits} >> 3 << 31;
  const uint32_t magnitude = value.bits & 7u;
  if (magnitude >= 2) return float_of(sign | ((magnitude << 22) + (126u << 23)));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0.5f));
}

constexpr HEDDLE_HD float to_float(ue8m0 value) {
  if (value.bits == 255) return float_of(kFloatNan);
  return float_of(value.bits == 0 ? 0x00400000u : uint32_t{value.bits} << 23);
}

/// Drops the low `bits` of a magnitude, to nearest even. A carry runs into the exponent, which is right.
constexpr HEDDLE_HD uint32_t drop_to_even(uint32_t magnitude, int bits) {
  return (magnitude + ((1u << (bits - 1)) - 1) + (magnitude >> bits & 1)) >> bits;
}

constexpr HEDDLE_HD bf16 to_bf16(float value) {
  if (is_nan(value)) return {0x7FFF};
  return {static_cast<uint16_t>(drop_to_even(bits_of(value), 16))};
}

/// Beyond 65504 and its half step (65520) is Inf.
constexpr HEDDLE_HD f16 to_f16(float value) {
  if (is_nan(value)) return {0x7FFF};
  const uint32_t sign = bits_of(value) >> 31 << 15;
  const uint32_t magnitude = bits_of(value) & ~kFloatSign;
  // Below 2^-14 the sum's last place is 2^-24, the step of subnormal halves: the addition rounds for us.
  if (magnitude < 0x38800000u) {
    return {static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)))};
  }
  if (magnitude >= 0x47800000u) return {static_cast<uint16_t>(sign | 0x7C00)};
  return {static_cast<uint16_t>(sign | (drop_to_even(magnitude, 13) - (112u << 10)))};
}

/// Saturates: Inf and all beyond 448 become +-448, as CUDA's __NV_SATFINITE cast does. NaN is 0x7F, whatever its sign.
constexpr HEDDLE_HD e4m3 to_e4m3(float value) {
  if (is_nan(value)) return {0x7F};
  const uint32_t sign = bits_of(value) >> 31 << 7;
  const uint32_t magnitude = bits_of(value) & ~kFloatSign;
  // Below 2^-6: as in to_f16, the sum's last place is the step of subnormals, here 2^-9.
  if (magnitude < 0x3C800000u) {
    return {static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f)))};
  }
  if (magnitude >= bits_of(448.0f)) return {static_cast<uint8_t>(sign | 0x7E)};
  return {static_cast<uint8_t>(sign | (drop_to_even(magnitude, 20) - (120u << 3)))};
}

/// Saturates: Inf and all beyond 6 become +-6. NaN, which the type lacks, becomes 6 too: mark it elsewhere.
constexpr HEDDLE_HD e2m1 to_e2m1(float value) {
  if (is_nan(value)) return {7};
  const uint32_t sign = bits_of(value) >> 31 << 3;
  const uint32_t magnitude = bits_of(value) & ~kFloatSign;
  if (magnitude >= bits_of(6.0f)) return {static_cast<uint8_t>(sign | 7)};
  // Below 1: as in to_f16, the sum's last place is the step of subnormals, here 0.5.
  if (magnitude < bits_of(1.0f)) {
    return {static_cast<uint8_t>(sign | (bits_of(float_of(magnitude) + 0x1p22f) - bits_of(0x1p22f)))};
  }
  return {static_cast<uint8_t>(sign | (drop_to_even(magnitude, 22) - (126u << 1)))};
}

/// The smallest power of two >= scale, for finite scale > 0; at most 2^127, so 255 (NaN) never appears.
constexpr HEDDLE_HD ue8m0 to_ue8m0_up(float scale) {
  const uint32_t up = (bits_of(scale) + 0x007FFFFFu) >> 23;
  return {static_cast<uint8_t>(up < 254 ? up : 254)};
}

/// The cast by type; to float it only makes a NaN canonical.
template <class T>
constexpr HEDDLE_HD T round_to(float value) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(value);
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(value);
  } else if constexpr (std::is_same_v<T, e4m3>) {
    return to_e4m3(value);
  } else {
    static_assert(std::is_same_v<T, float>);
    return is_nan(value) ? float_of(kFloatNan) : value;
  }
}

}  // namespace heddle
