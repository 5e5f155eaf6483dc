// What a quantisation is told, and the size of what it writes.
#pragma once

#include <heddle/layout.hpp>

#include <cstdint>

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "base/math.hpp"

namespace heddle {

/// Channels that share a scale. The last block of a row may be short; it uses its own values only.
inline constexpr int kQuantiseBlock = 128;

struct QuantiseArgs {
  const void* x;
  DType x_dtype;  // bf16, f16 or f32
  int64_t hidden;
  Quantise mode;
  uint8_t* q;    // [hidden] e4m3
  void* scales;  // [num_scale_words(hidden, mode)] 32-bit words
};

constexpr HEDDLE_HD int64_t num_scale_blocks(int64_t hidden) { return ceil_div(hidden, kQuantiseBlock); }

constexpr HEDDLE_HD int64_t num_scale_words(int64_t hidden, Quantise mode) {
  if (mode == Quantise::none) return 0;
  return mode == Quantise::fp8_ue8m0 ? ceil_div(num_scale_blocks(hidden), 4) : num_scale_blocks(hidden);
}

}  // namespace heddle
