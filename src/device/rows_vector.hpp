// One vector of columns on the host: loads that widen to FP32, stores that round as base/dtype.hpp does. One text for all
// instruction sets. Isa gives
//   kWidth                              floats in a vector
//   fma(float weight, row, accumulator) rounded once
//
// Every function here is a member of a template on Isa, and Isa lives in an unnamed namespace of the file that is compiled
// for it. So nothing has external linkage: else the linker could keep the AVX-512 copy of a function for everyone.
// For the same reason these files call no inline function of other headers.
#pragma once

#include <cstdint>

#include "base/dtype.hpp"

namespace heddle {

// In these loops a call costs more than its body, and -O0 builds must not emit copies.
#define HEDDLE_INLINE [[gnu::always_inline]] static inline

// g++ 12 cannot convert between vectors whose size depends on a template's argument, so they are spelled out.
template <int kWidth>
struct VectorTypes;
template <>
struct VectorTypes<4> {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));
  typedef uint16_t H __attribute__((vector_size(8)));
  typedef uint8_t B __attribute__((vector_size(4)));
};
template <>
struct VectorTypes<8> {
  typedef float F __attribute__((vector_size(32)));
  typedef int32_t I __attribute__((vector_size(32)));
  typedef uint32_t U __attribute__((vector_size(32)));
  typedef uint16_t H __attribute__((vector_size(16)));
  typedef uint8_t B __attribute__((vector_size(8)));
};
template <>
struct VectorTypes<16> {
  typedef float F __attribute__((vector_size(64)));
  typedef int32_t I __attribute__((vector_size(64)));
  typedef uint32_t U __attribute__((vector_size(64)));
  typedef uint16_t H __attribute__((vector_size(32)));
  typedef uint8_t B __attribute__((vector_size(16)));
};

template <class Isa>
struct RowsVector {
  static constexpr int kWidth = Isa::kWidth;
  using F = typename VectorTypes<kWidth>::F;
  using I = typename VectorTypes<kWidth>::I;
  using U = typename VectorTypes<kWidth>::U;
  using H = typename VectorTypes<kWidth>::H;
  using B = typename VectorTypes<kWidth>::B;

  static constexpr int32_t kInf = 0x7F800000;
  static constexpr int32_t kMagnitude = 0x7FFFFFFF;

  /// The first `count` elements of a vector; the others are zero. count >= kWidth means all.
  template <class Raw, class T>
  HEDDLE_INLINE Raw read(const T* from, int64_t count) {
    Raw raw{};
    __builtin_memcpy(&raw, from, count >= kWidth ? sizeof(Raw) : count * sizeof(T));
    return raw;
  }

  template <class T, class Raw>
  HEDDLE_INLINE void write(T* to, Raw raw, int64_t count) {
    __builtin_memcpy(to, &raw, count >= kWidth ? sizeof(Raw) : count * sizeof(T));
  }

  HEDDLE_INLINE F load(const float* from, int64_t count) { return read<F>(from, count); }

  HEDDLE_INLINE F load(const bf16* from, int64_t count) {
    return (F)(__builtin_convertvector(read<H>(from, count), U) << 16);
  }

  HEDDLE_INLINE F load(const f16* from, int64_t count) {
    const U half = __builtin_convertvector(read<H>(from, count), U);
    const U sign = half >> 15 << 31;
    const I magnitude = (I)(half & 0x7FFF);
    const I special = magnitude << 13 | kInf;
    const I normal = (magnitude << 13) + (112 << 23);
    const I subnormal = (I)(__builtin_convertvector(magnitude, F) * 0x1p-24f);
    const I value = magnitude >= 0x7C00 ? special : magnitude >= 0x0400 ? normal : subnormal;
    return (F)((U)value | sign);
  }

  HEDDLE_INLINE void store(float* to, F value, int64_t count) {
    const I nan = ((I)value & kMagnitude) > kInf;
    write(to, nan ? I{} + kMagnitude : (I)value, count);
  }

  HEDDLE_INLINE void store(bf16* to, F value, int64_t count) {
    const I nan = ((I)value & kMagnitude) > kInf;
    const U rounded = drop_to_even<16>((U)value);
    write(to, __builtin_convertvector(nan ? U{} + 0x7FFF : rounded, H), count);
  }

  HEDDLE_INLINE void store(f16* to, F value, int64_t count) {
    const U sign = (U)value >> 31 << 15;
    const I magnitude = (I)value & kMagnitude;
    const I subnormal = (I)((F)magnitude + 0.5f) - 0x3F000000;
    const I normal = (I)drop_to_even<13>((U)magnitude) - (112 << 10);
    I half = magnitude < 0x38800000 ? subnormal : normal;
    half = half > 0x7C00 ? I{} + 0x7C00 : half;
    const U rounded = magnitude > kInf ? U{} + 0x7FFF : (U)half | sign;
    write(to, __builtin_convertvector(rounded, H), count);
  }

  HEDDLE_INLINE void store(e4m3* to, F value, int64_t count) {
    const U sign = (U)value >> 31 << 7;
    const I magnitude = (I)value & kMagnitude;
    const I subnormal = (I)((F)magnitude + 0x1p14f) - 0x46800000;
    const I normal = (I)drop_to_even<20>((U)magnitude) - (120 << 3);
    I code = magnitude < 0x3C800000 ? subnormal : normal;
    code = code > 0x7E ? I{} + 0x7E : code;
    const U rounded = magnitude > kInf ? U{} + 0x7F : (U)code | sign;
    write(to, __builtin_convertvector(rounded, B), count);
  }

 private:
  template <int kBits>
  HEDDLE_INLINE U drop_to_even(U magnitude) {
    return (magnitude + ((1u << (kBits - 1)) - 1) + (magnitude >> kBits & 1)) >> kBits;
  }
};

}  // namespace heddle
