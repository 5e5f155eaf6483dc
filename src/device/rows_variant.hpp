// The host's loops over rows exist once per instruction set; the best one the CPU runs is chosen at the first call.
// All give the same bits.
#pragma once

#include <vector>

#include "device/quantise_args.hpp"
#include "device/rows_args.hpp"

namespace heddle {

/// Some blocks of one row.
struct Channels {
  const void* x;
  DType dtype;  // f32, bf16 or f16
  int64_t count;
};

struct RowsVariant {
  const char* name;  // baseline, avx2, avx512
  void (*sum)(const SumArgs&, const Term* terms, int num_terms);
  void (*largest_finite)(const Channels&, float* largest);  // a block: of |x|, 0 if there is none
  void (*cast_e4m3)(const Channels&, const float* multipliers, uint8_t* q);
};

/// The best this CPU runs, or the one that the environment variable HEDDLE_SIMD names.
/// Throws Error{usage} if HEDDLE_SIMD names none that this CPU runs.
const RowsVariant& rows_variant();

/// All this CPU runs, baseline first, best last.
std::vector<const RowsVariant*> runnable_rows_variants();

/// quantise_row of a checked call, by this variant's loops.
void quantise_row_with(const RowsVariant&, const QuantiseArgs&);

/// One file each; the wide ones only in builds for CPUs that may have them.
const RowsVariant* baseline_rows();
const RowsVariant* avx2_rows();
const RowsVariant* avx512_rows();

}  // namespace heddle
