// Kernels for rounds of low-latency calls whose routing changes from round to round: each batch is made on the device, and
// what comes back is checked there, exactly.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace heddle::testing {

/// A batch: rows as RowPattern has them, ids that are some rank's hash, one in eight none, with duplicates; the weight of column
/// k is 2^(k % 3).
struct DecodeBatch {
  int rank = 0;
  int tokens = 0;
  int hidden = 0;
  int topk = 0;
  int experts = 0;
  uint32_t round = 0;
};

/// x [tokens][hidden] bf16, ids [tokens][topk].
void make_batch(void* x, int64_t* ids, const DecodeBatch&, CUstream_st*);

/// A slab, cast to e4m3.
struct SlabView {
  const void* x = nullptr;           // [rows][hidden]
  const float* scales = nullptr;     // of each group of rows by columns
  const int32_t* source = nullptr;   // [rows], -1: no row
  int rows = 0;
  int group = 0;                     // rows of an expert
  int hidden = 0;
};

/// What the experts make: the rows as they were before the cast, and NaN where there is none.
void give_back(void* out, const SlabView&, CUstream_st*);

/// Adds to *bad the tokens whose row is not the weighted sum of their hits' rows.
void count_bad_sums(const void* combined, const DecodeBatch&, unsigned long long* bad, CUstream_st*);

}  // namespace heddle::testing
