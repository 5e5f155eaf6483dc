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
  const int64_t size = scale_block(args.hidden, args.mode);
  const int64_t first = block * size;
  const int64_t end = first + size < args.hidden ? first + size : args.hidden;
  const In* x = static_cast<const In*>(args.x);
  BlockRange range;
  for (int64_t i = first; i < end; ++i) range.add(to_float(x[i]));
  const QuantiseScale scale = quantise_scale(args, range);
  write_scale(args, block, scale);
  if (args.mode != Quantise::nvfp4) {
    for (int64_t i = first; i < end; ++i) args.q[i] = to_e4m3(to_float(x[i]) * scale.multiplier).bits;
    return;
  }
  for (int64_t i = first; i < end; i += 2) {
    const float high = i + 1 < end ? to_float(x[i + 1]) * scale.multiplier : 0.0f;
    args.q[i / 2] = static_cast<uint8_t>(to_e2m1(to_float(x[i]) * scale.multiplier).bits | to_e2m1(high).bits << 4);
  }
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
      const QuantiseScale scale = quantise_scale(args, {.largest = ahead[k].largest_finite()});
      ahead[k].write(args, first, scale.multiplier);
      if (lane % kBlockLanes == 0 && first < args.hidden) write_scale(args, first / kQuantiseBlock, scale);
    }
  }
}

/// Eight channels' e2m1, the first in the lowest bits.
__device__ inline uint32_t round_to_e2m1(const float (&values)[kLaneColumns]) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) word |= uint32_t{to_e2m1(values[i]).bits} << (4 * i);
  return word;
}

/// Of `group` neighbouring lanes, a power of two; all lanes of the warp are here.
__device__ inline BlockRange range_of_group(BlockRange range, int group) {
  for (int apart = group / 2; apart > 0; apart /= 2) {
    range.largest = fmaxf(range.largest, __shfl_xor_sync(0xFFFFFFFFu, range.largest, apart));
    range.all_finite &= __shfl_xor_sync(0xFFFFFFFFu, int{range.all_finite}, apart) != 0;
  }
  return range;
}

template <class In>
struct QuantisePiece {
  LaneColumns<In> columns{};
  BlockRange range;

  __device__ QuantisePiece(const QuantiseArgs& args, int64_t first) {
    if (first >= args.hidden) return;
    columns = LaneColumns<In>::load(static_cast<const In*>(args.x) + first);
    float x[kLaneColumns];
    columns.widen(x);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) range.add(x[i]);
  }

  __device__ void write(const QuantiseArgs& args, int64_t first, float multiplier) const {
    if (first >= args.hidden) return;
    float x[kLaneColumns];
    columns.widen(x);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) x[i] *= multiplier;
    if (args.mode == Quantise::nvfp4) *reinterpret_cast<uint32_t*>(args.q + first / 2) = round_to_e2m1(x);
    else store_columns(reinterpret_cast<e4m3*>(args.q + first), x);
  }
};

/// Blocks of 32 or 16 channels, each by the lanes that hold its pieces of eight. By a whole warp, aligned as below.
template <class In>
__device__ void quantise_small_blocks(int lane, const QuantiseArgs& args) {
  const int group = static_cast<int>(scale_block(args.hidden, args.mode)) / kLaneColumns;
  for (int64_t start = 0; start < args.hidden; start += 32 * kLaneColumns) {
    const int64_t first = start + lane * kLaneColumns;
    const QuantisePiece<In> piece(args, first);
    const QuantiseScale scale = quantise_scale(args, range_of_group(piece.range, group));
    piece.write(args, first, scale.multiplier);
    if (lane % group == 0 && first < args.hidden) write_scale(args, first / (group * kLaneColumns), scale);
  }
}

/// One scale for the row. By a whole warp, aligned as below; reads the row twice.
template <class In>
__device__ void quantise_whole_row(int lane, const QuantiseArgs& args) {
  BlockRange range;
  for (int64_t first = lane * kLaneColumns; first < args.hidden; first += 32 * kLaneColumns) {
    range.largest = fmaxf(range.largest, QuantisePiece<In>(args, first).range.largest);
  }
  const QuantiseScale scale = quantise_scale(args, range_of_group(range, 32));
  for (int64_t first = lane * kLaneColumns; first < args.hidden; first += 32 * kLaneColumns) {
    QuantisePiece<In>(args, first).write(args, first, scale.multiplier);
  }
  if (lane == 0 && args.hidden > 0) write_scale(args, 0, scale);
}

template <class In>
__device__ void quantise_aligned(int lane, const QuantiseArgs& args) {
  switch (args.mode) {
    case Quantise::fp8_row: return quantise_whole_row<In>(lane, args);
    case Quantise::mxfp8:
    case Quantise::nvfp4: return quantise_small_blocks<In>(lane, args);
    default: return quantise_by_warp<In>(lane, args);
  }
}

template <class In>
__device__ void lanes_quantise_as(Lanes lanes, const QuantiseArgs& args) {
  const bool aligned = reinterpret_cast<uintptr_t>(args.x) % sizeof(uint4) == 0 &&
                       reinterpret_cast<uintptr_t>(args.q) % sizeof(uint2) == 0 && args.hidden % kLaneColumns == 0;
  if (aligned && lanes.lanes == 32) return quantise_aligned<In>(lanes.lane, args);
  const int64_t blocks = num_scale_blocks(args.hidden, args.mode);
  for (int64_t block = lanes.lane; block < blocks; block += lanes.lanes) quantise_block_alone<In>(args, block);
}

__device__ __noinline__ inline void lanes_quantise_row(Lanes lanes, const QuantiseArgs& args) {
  switch (args.x_dtype) {
    case DType::f32: return lanes_quantise_as<float>(lanes, args);
    case DType::bf16: return lanes_quantise_as<bf16>(lanes, args);
    default: return lanes_quantise_as<f16>(lanes, args);
  }
}

}  // namespace heddle
