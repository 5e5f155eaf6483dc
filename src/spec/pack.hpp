// What narrower results are on the wire, and what they stand for there. In blocks of 128 columns (the last may be short):
//   fp8       a = the largest |x|, at least 2^-100; scale = a * fl(1/448); value = e4m3(x * (448 / a)), stands for value * scale
//   logfmt10  see pack()
// A block with NaN or Inf stands for NaN in every column; in logfmt10 zeros stay zeros.
#pragma once

#include "spec/world.hpp"

namespace heddle::spec {

enum class Pack { none, fp8, logfmt10 };

struct PackedRow {
  std::vector<std::uint32_t> codes;  // a column: e4m3, or sign * 512 + number
  std::vector<std::uint32_t> marks;  // a block: the scale's bits; or first + step * 65536
};

/// logfmt10: let m be the bits of |x|, and `most` the largest of them in the block.
///   first  the larger of the smallest m but 0 and of most - 16 * 2^23 (if that is positive), its low 16 bits cleared
///   step   1 + (most - first) / 4080, whole
///   number 0 for m = 0. Below first: 1 if m + 2^23 >= first, else 0.
///          Else 1 + the nearest whole number to (m - first) / (8 * step), as (m - first) * ((2^32 - 1) / (8 * step)) / 2^32
///          has it; not above 511, nor beyond what is finite.
/// It stands for the float whose bits are first + (number - 1) * 8 * step, 0 for number 0, and the sign.
PackedRow pack(Pack, const std::vector<float>& row);
std::vector<float> unpack(Pack, const PackedRow&);

}  // namespace heddle::spec
