// The cast of a bf16 row to fp8 with one scale for each block of 128 elements (the last block may be short).
#pragma once

#include "spec/dispatch.hpp"

namespace heddle::spec {

struct QuantisedRow {
  Bytes values;                       // [hidden] e4m3
  std::vector<std::uint32_t> scales;  // [quantised_scale_words]
};

/// f32: one word a block. ue8m0: one byte a block, the first block in the lowest byte; unused bytes are 0.
int quantised_scale_words(Quantise, int hidden);

/// `row` is [hidden] bf16. In every block: a = the largest finite |x|, at least 1e-4.
///   fp8        scale = a * fl(1/448), value = e4m3(x * (448 / a))
///   fp8_pow2   scale = the smallest power of two >= a * fl(1/448), value = e4m3(x * (1 / scale))
///   fp8_ue8m0  the same, the scale kept as its exponent byte
/// NaN becomes e4m3's NaN, +-Inf becomes +-448; neither touches its neighbours.
QuantisedRow quantise_row(Quantise, const Bytes& row);

}  // namespace heddle::spec
