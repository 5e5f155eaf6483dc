// What a quantisation is told, and the size of what it writes.
#pragma once

#include <heddle/layout.hpp>

#include <cstdint>

#include "base/dtype.hpp"
#include "base/macros.hpp"
#include "base/math.hpp"

namespace heddle {

/// Channels that share a scale in most modes.
inline constexpr int kQuantiseBlock = 128;

struct QuantiseArgs {
  const void* x;
  DType x_dtype;  // bf16, f16 or f32
  int64_t hidden;
  Quantise mode;
  uint8_t* q;    // [quantised_bytes(hidden, mode)]
  void* scales;  // [num_scale_words(hidden, mode)] 32-bit words
  const float* global_scale = nullptr;  // of nvfp4; nullptr = 1
};

/// Channels that share a scale. The last block of a row may be short; it uses its own values only.
constexpr HEDDLE_HD int64_t scale_block(int64_t hidden, Quantise mode) {
  if (mode == Quantise::fp8_row) return hidden;
  if (mode == Quantise::mxfp8) return 32;
  return mode == Quantise::nvfp4 ? 16 : kQuantiseBlock;
}

constexpr HEDDLE_HD int64_t num_scale_blocks(int64_t hidden, Quantise mode) {
  return hidden == 0 ? 0 : ceil_div(hidden, scale_block(hidden, mode));
}

/// Whether a scale is one byte, four to a word, lowest first.
constexpr HEDDLE_HD bool has_byte_scales(Quantise mode) {
  return mode == Quantise::fp8_ue8m0 || mode == Quantise::mxfp8 || mode == Quantise::nvfp4;
}

constexpr HEDDLE_HD int64_t num_scale_words(int64_t hidden, Quantise mode) {
  if (mode == Quantise::none) return 0;
  return has_byte_scales(mode) ? ceil_div(num_scale_blocks(hidden, mode), 4) : num_scale_blocks(hidden, mode);
}

/// Of a row that is quantised; nvfp4 has two channels a byte, the even one in the low half.
constexpr HEDDLE_HD int64_t quantised_bytes(int64_t hidden, Quantise mode) {
  return mode == Quantise::nvfp4 ? ceil_div(hidden, 2) : hidden;
}

/// What a row's elements are on the wire: those of x as given, or quantised; a pair of e2m1 is a byte.
constexpr DType wire_dtype(DType x, Quantise mode) {
  return mode == Quantise::none ? x : mode == Quantise::nvfp4 ? DType::u8 : DType::e4m3;
}

constexpr int64_t row_bytes(int64_t hidden, DType x, Quantise mode) {
  return mode == Quantise::none ? hidden * static_cast<int64_t>(size_of(x)) : quantised_bytes(hidden, mode);
}

/// The even number of channels that have so many bytes.
constexpr HEDDLE_HD int64_t quantised_hidden(int64_t bytes, Quantise mode) {
  return mode == Quantise::nvfp4 ? 2 * bytes : bytes;
}

}  // namespace heddle
