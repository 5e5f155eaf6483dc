// The sum of rows (docs/protocol.md, I8), bit-equal on every backend.
#pragma once

#include "base/macros.hpp"
#include "device/pack.hpp"
#include "device/rows_args.hpp"

#ifdef __CUDACC__
#include "device/rows.cuh"
#endif

namespace heddle {

/// The host's side; throws Error{usage} for another dtype than f32, bf16 and f16.
void host_sum_rows(const SumArgs&, const Term* terms, int num_terms);

/// out[i] = the chain of column i, rounded once. By the lanes of one worker; no sync inside.
/// The chain is FP32: it starts at +0, or bias0[i], or bias0[i] + bias1[i]; then acc = fma(weight, row[i], acc), terms in order.
/// dtypes are f32, bf16 or f16. No pointer needs alignment beyond its element, a packed row 4; 16 is fastest.
/// Where one end is packed: a sum is packed as it is in FP32, the values of packed rows are terms of the chain.
/// out may be exactly one of the rows or biases if the element sizes agree; otherwise it overlaps nothing.
template <class Coop>
HEDDLE_HD void sum_rows(const Coop& coop, const SumArgs& args, const Term* terms, int num_terms) {
#if HEDDLE_ON_DEVICE
  if (args.is_packed()) return lanes_sum_packed({coop.lane(), coop.lanes()}, args, terms, num_terms);
  lanes_sum_rows({coop.lane(), coop.lanes()}, args, terms, num_terms);
#else
  if (coop.lane() == 0) host_sum_rows(args, terms, num_terms);
#endif
}

/// A sum without terms that starts from the row, so -0 stays -0. Same rules as sum_rows.
template <class Coop>
HEDDLE_HD void cast_row(const Coop& coop, const CastArgs& args) {
  const SumArgs sum{.out = args.out,
                    .out_dtype = args.out_dtype,
                    .in_dtype = args.in_dtype,
                    .bias0 = args.in,
                    .bias1 = nullptr,
                    .bias_dtype = args.in_dtype,
                    .count = args.count,
                    .out_wire = args.out_wire};
  sum_rows(coop, sum, nullptr, 0);
}

}  // namespace heddle
