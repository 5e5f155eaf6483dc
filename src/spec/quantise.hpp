// The cast of a bf16 row to narrow elements with a scale for each block of channels (the last block may be short).
#pragma once

#include "spec/dispatch.hpp"

namespace heddle::spec {

struct QuantisedRow {
  Bytes values;                       // [hidden] e4m3, or [hidden / 2, rounded up] pairs of e2m1, the first in the low half
  std::vector<std::uint32_t> scales;  // [quantised_scale_words]
};

/// FP32 scales: one word a block. Others: one byte a block, the first block in the lowest byte; unused bytes are 0.
int quantised_scale_words(Quantise, int hidden);
int quantised_row_bytes(Quantise, int hidden);

/// `row` is [hidden] bf16. In every block: a = the largest finite |x|, in the fp8 forms at least 1e-4.
///   fp8        128 channels: scale = a * fl(1/448), value = e4m3(x * (448 / a))
///   fp8_row    the same with the whole row as one block
///   fp8_pow2   128: scale = the smallest power of two >= a * fl(1/448), value = e4m3(x * (1 / scale))
///   fp8_ue8m0  the same, the scale kept as its exponent byte
///   mxfp8      32: the same, without the least a; at least 2^-127
///   nvfp4      16: scale = e4m3(G * (a * fl(1/6))), value = e2m1(x * (G / scale)), 0 where scale is 0
/// NaN becomes e4m3's NaN, +-Inf becomes +-448; neither touches its neighbours. A block of nvfp4 with either has a NaN as its
/// scale.
QuantisedRow quantise_row(Quantise, const Bytes& row, float global_scale = 1.0f);

}  // namespace heddle::spec
