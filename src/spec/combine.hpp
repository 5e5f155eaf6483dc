// What every rank gets back from a combine. The rounding steps are part of the meaning (I8).
#pragma once

#include "base/dtype.hpp"
#include "spec/dispatch.hpp"
#include "spec/pack.hpp"

namespace heddle::spec {

/// Per rank, or empty. `weights` and `biases` belong to sources, `row_weights` to owners.
struct CombineOptions {
  DType in_dtype = DType::bf16;
  DType wire_dtype = DType::bf16;  // of a rank's partial sum: out_dtype, or f32
  Pack pack = Pack::none;  // of what crosses the wire, made of FP32; wire_dtype means nothing then
  DType out_dtype = DType::bf16;
  bool weighted = false;   // not for token-major: its row already is the sum
  bool unreduced = false;  // rows travel alone, in in_dtype, and are summed at the source only; not for token-major
  std::vector<std::vector<float>> weights;      // [ranks][tokens][topk]: late weights, in place of the batches' own
  std::vector<std::vector<Bytes>> biases;       // [ranks][0, 1 or 2][tokens][hidden] of out_dtype
  std::vector<std::vector<float>> row_weights;  // [ranks], token-major [rows][topk], others [rows]: weights' gradient
};

struct Combined {
  Bytes x;                     // [tokens][hidden] of out_dtype
  std::vector<float> weights;  // [tokens][topk] if row_weights were given; 0 for -1, masked and dropped
  std::vector<Status> status;  // [ranks] masked if it was so in the dispatch or is now
};

/// `outputs` holds each rank's experts' rows [Received::rows][hidden] of in_dtype, in the layout of the dispatch.
/// Throws Error{usage} for options that do not fit the layout.
std::vector<Combined> combine(const World&, const std::vector<Received>&, const std::vector<Bytes>& outputs,
                              const CombineOptions&, const Mask& = {});

}  // namespace heddle::spec
