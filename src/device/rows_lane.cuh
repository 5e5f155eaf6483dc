// Eight columns of a row in one GPU thread's registers, as it loads and stores them: 16 bytes of bf16 or f16, 32 of f32.
// Casts are the hardware's, whose bits are those of base/dtype.hpp but for the payload of a widened NaN, which no result shows.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace heddle {

inline constexpr int kLaneColumns = 8;

template <class T>
struct LaneColumns {
  static constexpr int kVectors = kLaneColumns * sizeof(T) / sizeof(uint4);
  uint4 vectors[kVectors];

  /// `from` is 16-aligned.
  __device__ static LaneColumns load(const void* from) {
    LaneColumns columns;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) columns.vectors[v] = static_cast<const uint4*>(from)[v];
    return columns;
  }

  __device__ void widen(float (&values)[kLaneColumns]) const {
    const auto* words = reinterpret_cast<const uint32_t*>(vectors);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) values[i] = widen_one(words, i, T{});
  }

 private:
  __device__ static float widen_one(const uint32_t* words, int i, float) { return float_of(words[i]); }

  __device__ static float widen_one(const uint32_t* words, int i, bf16) {
    return float_of(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
  }

  __device__ static float widen_one(const uint32_t* words, int i, f16) {
    float value;
    const auto half = static_cast<unsigned short>(words[i / 2] >> (i % 2 * 16));
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
};

__device__ inline uint32_t round_pair(float low, float high, bf16) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

__device__ inline uint32_t round_pair(float low, float high, f16) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Two e4m3 in the low half.
__device__ inline uint32_t round_pair(float low, float high, e4m3) {
#if __CUDA_ARCH__ >= 890
  unsigned short pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_e4m3(low).bits | uint32_t{to_e4m3(high).bits} << 8;
#endif
}

/// The two e4m3 of the low half.
__device__ inline void widen_pair(uint32_t pair, float& low, float& high) {
#if __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(pair)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(low) : "h"(static_cast<unsigned short>(halves)));
  asm("cvt.f32.f16 %0, %1;" : "=f"(high) : "h"(static_cast<unsigned short>(halves >> 16)));
#else
  low = to_float(e4m3{static_cast<uint8_t>(pair)});
  high = to_float(e4m3{static_cast<uint8_t>(pair >> 8)});
#endif
}

/// Rounds and stores eight columns; `to` is 16-aligned.
__device__ inline void store_columns(float* to, const float (&values)[kLaneColumns]) {
  float4 vectors[2];
  auto* out = reinterpret_cast<float*>(vectors);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) out[i] = round_to<float>(values[i]);
  reinterpret_cast<float4*>(to)[0] = vectors[0];
  reinterpret_cast<float4*>(to)[1] = vectors[1];
}

template <class T>
__device__ void store_columns(T* to, const float (&values)[kLaneColumns]) {
  static_assert(sizeof(T) == 2);
  *reinterpret_cast<uint4*>(to) =
      make_uint4(round_pair(values[0], values[1], T{}), round_pair(values[2], values[3], T{}),
                 round_pair(values[4], values[5], T{}), round_pair(values[6], values[7], T{}));
}

/// `to` is 8-aligned.
__device__ inline void store_columns(e4m3* to, const float (&values)[kLaneColumns]) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(round_pair(values[0], values[1], e4m3{}) | round_pair(values[2], values[3], e4m3{}) << 16,
                 round_pair(values[4], values[5], e4m3{}) | round_pair(values[6], values[7], e4m3{}) << 16);
}

}  // namespace heddle
