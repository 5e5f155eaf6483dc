// Rows of results as they cross a wire in fewer bits (ResultWire). Blocks of 128 columns, each with a scale of its own; a block
// with NaN or Inf comes out as NaN (in logfmt10 all but its zeros), so that neither goes unseen.
//   fp8       values [H] e4m3, scales [blocks] f32: as quantise.hpp's fp8, of the sums in FP32, and with a least range of 2^-100
//   logfmt10  low [H] bytes, high [H / 4] bytes of two bits a column, marks [blocks] of 32 bits
// Each part begins at a multiple of 16.
//
// logfmt10: a sign and nine bits. The bits of a float without its sign, read as a whole number, are its logarithm but for straight
// lines within octaves; nothing else is asked of a machine, so all give the same bits. Code 0 is 0, code c the number whose bits
// are first + (c - 1) * step. A block's mark has first / 2^16 in its low half and step / 8 in its high half; `first` is the
// smallest magnitude but 0, or 16 octaves below the largest, and 510 steps reach the largest. So a value is off by 1.7 % at most
// (0.14 % for each octave between the block's smallest and largest), or by 2^-17 of the block's largest; by fp8 it is 6.3 %, or 2^-18.
// Where that largest is below 2^-110 (fp8: 2^-100), read 2^-127 and 2^-118.
#pragma once

#include "base/macros.hpp"
#include "device/rows_args.hpp"

#ifdef __CUDACC__
#include "device/pack.cuh"
#endif

namespace heddle {

/// The host's side of sum_rows() where the terms or the sum are packed.
void host_sum_packed(const SumArgs&, const Term* terms, int num_terms);

}  // namespace heddle
