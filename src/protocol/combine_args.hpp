// Everything one combine reads and writes: the only argument of the CPU driver and of the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/pack_block.hpp"
#include "protocol/context.hpp"
#include "protocol/dispatch_args.hpp"
#include "protocol/plan.hpp"

namespace heddle {

/// What this rank's experts made, in the layout of the dispatch. x_stride in bytes.
struct ExpertView {
  const std::byte* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0;                     // of x; rows of the dispatch past it were dropped there
  DType dtype = DType::bf16;
  const float* row_weights = nullptr;  // token-major [rows][K], others [rows]: return to their sources as weights
};

/// What this rank gets back for its own batch.
struct CombinedView {
  std::byte* x = nullptr;          // [T][hidden] of out_dtype
  int64_t x_stride = 0;            // bytes
  const std::byte* bias[2] = {};   // [T][hidden] of out_dtype, contiguous
  const float* weights_in = nullptr;  // [T][K]: late weights, or those at the source
  float* weights = nullptr;        // [T][K] if row weights return
  uint8_t* status = nullptr;       // [R] SourceStatus of each owner
};

struct CombineArgs {
  Call call;  // shape.wire is the dtype of a row on the wire, unless shape.result_wire packs it; shape.dtype the result's
  int32_t hidden = 0;
  Layout layout = Layout::token_major;
  PlanView plan;
  RouteView route;
  ExpertView experts;
  CombinedView out;
};

/// What `columns` of a result are on the wire; `usual` is their dtype where nothing else is asked for.
inline void set_wire(Shape& shape, ResultWire wire, int64_t columns, DType usual) {
  shape.result_wire = wire;
  shape.wire = is_packed(wire) ? DType::u8 : wire == ResultWire::float32 ? DType::f32 : usual;
  const int64_t plain = columns * static_cast<int64_t>(size_of(shape.wire));
  shape.payload_bytes = static_cast<int32_t>(is_packed(wire) ? PackedRow::of(columns, wire).bytes : plain);
}

}  // namespace heddle
