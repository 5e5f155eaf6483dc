// One block of a packed row: its codes and its scale, the same for host and device. What they mean: pack.hpp.
#pragma once

#include <heddle/layout.hpp>

#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "base/math.hpp"
#include "device/quantise_scale.hpp"

namespace heddle {

/// Columns that share a scale.
inline constexpr int kPackBlock = kQuantiseBlock;

/// Where the parts of a packed row lie, in bytes.
struct PackedRow {
  int64_t high = 0;   // logfmt10
  int64_t marks = 0;  // [blocks] words: scales, or marks
  int64_t bytes = 0;

  HEDDLE_HD static constexpr PackedRow of(int64_t hidden, ResultWire wire) {
    constexpr int64_t kAlign = 16;
    PackedRow row;
    row.high = round_up(hidden, kAlign);
    row.marks = row.high + (wire == ResultWire::logfmt10 ? round_up(ceil_div(hidden, 4), kAlign) : 0);
    row.bytes = row.marks + round_up(4 * ceil_div(hidden, kPackBlock), kAlign);
    return row;
  }
};

/// What a block's scale is made of: magnitudes, as the bits of floats.
struct PackRange {
  uint32_t before = ~0u;  // the smallest but zeros, less one: then zeros are above all others
  uint32_t most = 0;      // Inf and NaN are larger than all others

  HEDDLE_HD void add(float value) {
    const uint32_t magnitude = bits_of(value) & ~kFloatSign;
    if (magnitude > most) most = magnitude;
    if (magnitude - 1 < before) before = magnitude - 1;
  }
  HEDDLE_HD bool is_finite() const { return most < kFloatInf; }
};

template <ResultWire>
struct PackBlock;

template <>
struct PackBlock<ResultWire::fp8> {
  static constexpr int kBits = 8;

  static constexpr float kLeast = 0x1p-100f;  // so that scale and multiplier are normal numbers

  uint32_t mark;  // the scale's bits
  float multiplier;

  HEDDLE_HD static PackBlock of(const PackRange& range) {
    if (!range.is_finite()) return {kFloatNan, 1.0f};
    const float a = float_of(range.most) > kLeast ? float_of(range.most) : kLeast;
    return {bits_of(a * kOneOver448), 448.0f / a};
  }
  HEDDLE_HD uint32_t code(float value) const { return to_e4m3(value * multiplier).bits; }
  HEDDLE_HD static float value(uint32_t mark, uint32_t code) {
    return to_float(e4m3{static_cast<uint8_t>(code)}) * float_of(mark);
  }
};

/// A code has its sign in bit 9.
template <>
struct PackBlock<ResultWire::logfmt10> {
  static constexpr int kBits = 10;
  static constexpr uint32_t kOctave = 1u << 23;
  static constexpr uint32_t kMostOctaves = 16 * kOctave;
  static constexpr uint32_t kSteps = 510;
  static constexpr uint32_t kUnit = 8;  // of a step

  uint32_t mark;
  uint32_t first;
  uint32_t per_step;  // 2^32 / step
  uint32_t last;      // the most steps

  HEDDLE_HD static PackBlock of(const PackRange& range) {
    if (!range.is_finite()) return {kFloatNan >> 16, 0, 0, 0};  // all but zeros are its first: a NaN
    const uint32_t lowest = range.most > kMostOctaves ? range.most - kMostOctaves : 0;
    const uint32_t least = range.before + 1;  // 0 if all are zeros
    const uint32_t first = (least > lowest ? least : lowest) & 0xFFFF0000u;
    const uint32_t units = (range.most - first) / (kSteps * kUnit) + 1;
    const uint32_t step = units * kUnit;
    uint32_t last = kSteps;
    if (first + kSteps * step >= kFloatInf) last = (kFloatInf - 1 - first) / step;
    return {first >> 16 | units << 16, first, 0xFFFFFFFFu / step, last};
  }

  HEDDLE_HD uint32_t code(float value) const {
    const uint32_t sign = bits_of(value) >> 31 << 9;
    const uint32_t magnitude = bits_of(value) & ~kFloatSign;
    if (magnitude == 0) return sign;
    if (magnitude < first) return sign | (magnitude + kOctave >= first ? 1 : 0);  // the nearer of 0 and the first
    const uint64_t steps = (uint64_t{magnitude - first} * per_step + (1u << 31)) >> 32;
    return sign | ((steps < last ? static_cast<uint32_t>(steps) : last) + 1);
  }

  HEDDLE_HD static float value(uint32_t mark, uint32_t code) {
    const uint32_t sign = code >> 9 << 31;
    const uint32_t number = code & 511;
    if (number == 0) return float_of(sign);
    return float_of(sign | ((mark << 16) + (number - 1) * ((mark >> 16) * kUnit)));
  }
};

/// What is left of a value that was packed with its block.
template <class Block>
HEDDLE_HD float packed_and_back(const Block& block, float value) {
  return Block::value(block.mark, block.code(value));
}

/// Calls `work(block)` with a PackBlock of the wire's, for its type.
template <class Work>
HEDDLE_HD void with_pack(ResultWire wire, const Work& work) {
  if (wire == ResultWire::fp8) work(PackBlock<ResultWire::fp8>{});
  else work(PackBlock<ResultWire::logfmt10>{});
}

/// One column of a packed row. Columns that share a byte of `high` are one thread's.
template <class Block>
HEDDLE_HD void store_code(std::byte* row, const PackedRow& at, int64_t column, uint32_t code) {
  row[column] = static_cast<std::byte>(code);
  if constexpr (Block::kBits > 8) {
    std::byte& high = row[at.high + column / 4];
    const auto shift = static_cast<int>(column % 4 * 2);
    high = static_cast<std::byte>((shift == 0 ? 0u : static_cast<uint32_t>(high)) | code >> 8 << shift);
  }
}
template <class Block>
HEDDLE_HD uint32_t load_code(const std::byte* row, const PackedRow& at, int64_t column) {
  const auto low = static_cast<uint32_t>(row[column]);
  if constexpr (Block::kBits > 8) return low | (static_cast<uint32_t>(row[at.high + column / 4]) >> column % 4 * 2 & 3) << 8;
  else return low;
}
HEDDLE_HD inline uint32_t* mark_of(std::byte* row, const PackedRow& at, int64_t block) {
  return reinterpret_cast<uint32_t*>(row + at.marks) + block;
}
HEDDLE_HD inline uint32_t mark_of(const std::byte* row, const PackedRow& at, int64_t block) {
  return reinterpret_cast<const uint32_t*>(row + at.marks)[block];
}

}  // namespace heddle
