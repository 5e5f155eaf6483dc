// The GPU's side of quantise.hpp.
#pragma once

#include "base/dtype.hpp"
#include "device/copy.cuh"
#include "device/quantise_args.hpp"
#include "device/quantise_scale.hpp"
#include "device/rows_lane.cuh"

namespace heddle {

/// The largest finite |x|; Inf and NaN count as 0.
__device__ inline float larger_finite(float largest, float x) {
  return is_finite(x) ? fmaxf(largest, fabsf(x)) : largest;
}

/// One block by one thread: for any alignment and any number of lanes.
template <class In>
__device__ void quantise_block_alone(const QuantiseArgs& args, int64_t block) {
  const int64_t first = block * kQuantiseBlock;
  const int64_t end = first + kQuantiseBlock < args.hidden ? first + kQuantiseBlock : args.hidden;
  const In* x = static_cast<const In*>(args.x);
  float largest = 0.0f;
  for (int64_t i = first; i < end; ++i) largest = larger_finite(largest, to_float(x[i]));
  const QuantiseScale scale = quantise_scale(args.mode, largest);
  for (int64_t i = first; i < end; ++i) args.q[i] = to_e4m3(to_float(x[i]) * scale.multiplier).bits;
  write_scale(args, block, scale);
}

// Sixteen lanes share a block, eight channels each; a warp does two blocks at a time and loads this many times ahead.
inline constexpr int kBlockLanes = kQuantiseBlock / kLaneColumns;
inline constexpr int kQuantiseAhead = 4;

/// The eight channels of this lane, which may lie past the row's end; all lanes of the warp are here.
template <class In>
__device__ void quantise_columns(const QuantiseArgs& args, int64_t first, const LaneColumns<In>& columns) {
  float x[kLaneColumns];
  columns.widen(x);
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) largest = larger_finite(largest, x[i]);
#pragma unroll
  for (int apart = kBlockLanes / 2; apart > 0; apart /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, apart));
  }
  if (first >= args.hidden) return;
  const QuantiseScale scale = quantise_scale(args.mode, largest);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) x[i] *= scale.multiplier;
  store_columns(reinterpret_cast<e4m3*>(args.q + first), x);
  if (first % kQuantiseBlock == 0) write_scale(args, first / kQuantiseBlock, scale);
}

/// By a whole warp; x 16-aligned, q 8-aligned, hidden a multiple of 8.
template <class In>
__device__ void quantise_by_warp(int lane, const QuantiseArgs& args) {
  constexpr int kWarpColumns = 32 * kLaneColumns;
  const In* x = static_cast<const In*>(args.x);
  for (int64_t start = 0; start < args.hidden; start += kQuantiseAhead * kWarpColumns) {
    LaneColumns<In> columns[kQuantiseAhead];
    const int64_t first = start + lane * kLaneColumns;
#pragma unroll
    for (int k = 0; k < kQuantiseAhead; ++k) {
      const int64_t column = first + k * kWarpColumns;
      columns[k] = column < args.hidden ? LaneColumns<In>::load(x + column) : LaneColumns<In>{};
    }
#pragma unroll
    for (int k = 0; k < kQuantiseAhead; ++k) {
      quantise_columns<In>(args, first + k * kWarpColumns, columns[k]);
    }
  }
}

template <class In>
__device__ void lanes_quantise_as(Lanes lanes, const QuantiseArgs& args) {
  const bool aligned = reinterpret_cast<uintptr_t>(args.x) % sizeof(uint4) == 0 &&
                       reinterpret_cast<uintptr_t>(args.q) % sizeof(uint2) == 0 && args.hidden % kLaneColumns == 0;
  if (aligned && lanes.lanes == 32) return quantise_by_warp<In>(lanes.lane, args);
  const int64_t blocks = num_scale_blocks(args.hidden);
  for (int64_t block = lanes.lane; block < blocks; block += lanes.lanes) quantise_block_alone<In>(args, block);
}

__device__ inline void lanes_quantise_row(Lanes lanes, const QuantiseArgs& args) {
  switch (args.x_dtype) {
    case DType::f32: return lanes_quantise_as<float>(lanes, args);
    case DType::bf16: return lanes_quantise_as<bf16>(lanes, args);
    default: return lanes_quantise_as<f16>(lanes, args);
  }
}

}  // namespace heddle
