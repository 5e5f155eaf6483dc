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

// Four lanes share a block, so that a scale is worked out once for 32 channels of a lane, not for 8: that cost more than the
// loads. A lane's channels come in four pieces, each 32 bytes of e4m3 together with its neighbours'. A warp does eight blocks
// at a time and loads two such steps ahead.
inline constexpr int kBlockLanes = 4;
inline constexpr int kBlockPieces = kQuantiseBlock / kLaneColumns / kBlockLanes;
inline constexpr int kWarpBlocks = 32 / kBlockLanes;
inline constexpr int kQuantiseAhead = 2;

/// Of the lanes of a block; all lanes of the warp are here.
__device__ inline float largest_of_block(float largest) {
#pragma unroll
  for (int apart = kBlockLanes / 2; apart > 0; apart /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, apart));
  }
  return largest;
}

/// One lane's share of a block. Pieces past the row's end are zero and not written.
template <class In>
struct QuantisePieces {
  LaneColumns<In> pieces[kBlockPieces];

  __device__ static int64_t column(int64_t first, int piece) { return first + piece * kBlockLanes * kLaneColumns; }

  __device__ static QuantisePieces load(const QuantiseArgs& args, int64_t first) {
    QuantisePieces loaded;
#pragma unroll
    for (int p = 0; p < kBlockPieces; ++p) {
      const int64_t at = column(first, p);
      loaded.pieces[p] =
          at < args.hidden ? LaneColumns<In>::load(static_cast<const In*>(args.x) + at) : LaneColumns<In>{};
    }
    return loaded;
  }

  /// fmaxf() passes over NaN by itself; Inf is rare enough to be looked for only where it was met.
  __device__ float largest_finite() const {
    float largest = 0.0f;
    each([&](float x) { largest = fmaxf(largest, fabsf(x)); });
    largest = largest_of_block(largest);
    if (__all_sync(0xFFFFFFFFu, is_finite(largest))) return largest;
    largest = 0.0f;
    each([&](float x) { largest = larger_finite(largest, x); });
    return largest_of_block(largest);
  }

  __device__ void write(const QuantiseArgs& args, int64_t first, float multiplier) const {
#pragma unroll
    for (int p = 0; p < kBlockPieces; ++p) {
      float x[kLaneColumns];
      pieces[p].widen(x);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) x[i] *= multiplier;
      if (column(first, p) < args.hidden) store_columns(reinterpret_cast<e4m3*>(args.q + column(first, p)), x);
    }
  }

 private:
  template <class Use>
  __device__ void each(Use use) const {
#pragma unroll
    for (int p = 0; p < kBlockPieces; ++p) {
      float x[kLaneColumns];
      pieces[p].widen(x);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) use(x[i]);
    }
  }
};

/// By a whole warp; x 16-aligned, q 8-aligned, hidden a multiple of 8.
template <class In>
__device__ void quantise_by_warp(int lane, const QuantiseArgs& args) {
  constexpr int64_t kStep = kWarpBlocks * kQuantiseBlock;
  const int64_t mine = lane / kBlockLanes * kQuantiseBlock + lane % kBlockLanes * kLaneColumns;
  for (int64_t start = 0; start < args.hidden; start += kQuantiseAhead * kStep) {
    QuantisePieces<In> ahead[kQuantiseAhead];
#pragma unroll
    for (int k = 0; k < kQuantiseAhead; ++k) ahead[k] = QuantisePieces<In>::load(args, start + k * kStep + mine);
#pragma unroll
    for (int k = 0; k < kQuantiseAhead; ++k) {
      const int64_t first = start + k * kStep + mine;
      const QuantiseScale scale = quantise_scale(args.mode, ahead[k].largest_finite());
      ahead[k].write(args, first, scale.multiplier);
      if (lane % kBlockLanes == 0 && first < args.hidden) write_scale(args, first / kQuantiseBlock, scale);
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
