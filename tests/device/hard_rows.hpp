// Rows that are hard on a cast or a sum, and a guard around what a test writes.
#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.hpp"
#include "device/rows_variant.hpp"

namespace heddle::testing {

/// A row that starts `skew` elements into an allocation, with guard bytes around it.
class GuardedRow {
 public:
  GuardedRow(DType dtype, int64_t count, int64_t skew = 0)
      : begin_(kGuard + skew * size_of(dtype)), size_(count * size_of(dtype)), bytes_(begin_ + size_ + kGuard, kPaint) {
  }

  void* data() { return bytes_.data() + begin_; }
  const void* data() const { return bytes_.data() + begin_; }
  size_t size() const { return size_; }

  /// The whole allocation, and where the row begins in it.
  const std::vector<uint8_t>& bytes() const { return bytes_; }
  size_t begin() const { return begin_; }

  /// Nobody wrote beside the row.
  bool is_whole() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && bytes_[i] != kPaint) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kPaint = 0xA5;
  size_t begin_;
  size_t size_;
  std::vector<uint8_t> bytes_;
};

inline float element(const void* row, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(row)[i];
    case DType::bf16: return to_float(static_cast<const bf16*>(row)[i]);
    default: return to_float(static_cast<const f16*>(row)[i]);
  }
}

inline void set_element(void* row, DType dtype, int64_t i, float value) {
  switch (dtype) {
    case DType::f32: static_cast<float*>(row)[i] = round_to<float>(value); break;
    case DType::bf16: static_cast<bf16*>(row)[i] = to_bf16(value); break;
    default: static_cast<f16*>(row)[i] = to_f16(value);
  }
}

enum class Kind { normal, any_bits };

/// normal: about N(0, 1). any_bits: every exponent, subnormals, Inf, NaN with payloads, -0.
inline void fill(void* row, DType dtype, int64_t count, Kind kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < count; ++i) {
    if (kind == Kind::normal) {
      set_element(row, dtype, i, normal(random));
      continue;
    }
    const auto bits = static_cast<uint32_t>(random());
    std::memcpy(static_cast<uint8_t*>(row) + i * size_of(dtype), &bits, size_of(dtype));
  }
}

inline constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace heddle::testing
