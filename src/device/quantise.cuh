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

/// The larger magnitude; NaN if there is one.
struct LargerOrNan {
  __device__ float operator()(float largest, float x) const {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(largest), "f"(fabsf(x)));
    return larger;
  }
};
struct LargerFinite {
  __device__ float operator()(float largest, float x) const { return larger_finite(largest, x); }
};

/// How a warp cuts a row: kLanes neighbours share a block of kChannels, so that a scale is worked out once for 32 or 16 channels of
/// a lane, not for 8: that cost more than the loads. A lane's channels come in pieces of eight; lanes that share a block have the
/// pieces between one another's, so that what they store lies together.
template <int kChannelsEach, int kLanesEach>
struct BlockCut {
  static constexpr int kChannels = kChannelsEach;
  static constexpr int kLanes = kLanesEach;
  static constexpr int kPieces = kChannels / kLaneColumns / kLanes;
  static constexpr int kAhead = 8 / kPieces;             // steps that are loaded before the first is used
  static constexpr int kStep = 32 / kLanes * kChannels;  // channels of a warp

  /// Of a step: where the lane's block and its share of it begin.
  __device__ static int64_t first(int lane) { return lane / kLanes * kChannels + lane % kLanes * kLaneColumns; }
  /// Each four lanes begin with another piece: those of a row in block memory would meet in its banks.
  __device__ static int piece(int lane, int turn) { return (turn + lane / 4) % kPieces * kLanes * kLaneColumns; }

  /// Of the lanes of a block; all lanes of the warp are here.
  template <class Larger>
  __device__ static float largest(float own, const Larger& larger) {
#pragma unroll
    for (int apart = kLanes / 2; apart > 0; apart /= 2) own = larger(own, __shfl_xor_sync(0xFFFFFFFFu, own, apart));
    return own;
  }
};

/// Eight channels' to_e2m1(), the first in the lowest bits; a NaN may keep its sign. A sum with a power of two rounds: its last
/// place is the step between the numbers as large as the value.
__device__ inline uint32_t round_to_e2m1(const float (&values)[kLaneColumns]) {
  constexpr uint32_t kEach = 0x11111111u;
  uint32_t codes = 0, signs = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    const float magnitude = fminf(fabsf(values[i]), 6.0f);
    const uint32_t power = max(bits_of(magnitude) & kFloatInf, bits_of(1.0f)) + (22u << 23);
    const uint32_t steps = bits_of(magnitude + float_of(power)) - power;
    codes += (steps + (power >> 22)) << (4 * i);
    signs |= bits_of(values[i]) >> (28 - 4 * i) & 8u << (4 * i);
  }
  return codes - 2 * (127 + 22) * kEach | signs;
}

/// One lane's share of a block. Pieces past the row's end are zero and not written.
template <class In, class Cut>
struct QuantisePieces {
  LaneColumns<In> pieces[Cut::kPieces];

  __device__ static QuantisePieces load(int lane, const QuantiseArgs& args, int64_t first) {
    QuantisePieces loaded;
#pragma unroll
    for (int turn = 0; turn < Cut::kPieces; ++turn) {
      const int64_t at = first + Cut::piece(lane, turn);
      loaded.pieces[turn] =
          at < args.hidden ? LaneColumns<In>::load(static_cast<const In*>(args.x) + at) : LaneColumns<In>{};
    }
    return loaded;
  }

  /// Of the lane's own.
  template <class Larger>
  __device__ float largest(const Larger& larger) const {
    float found = 0.0f;
#pragma unroll
    for (const LaneColumns<In>& piece : pieces) {
      float x[kLaneColumns];
      piece.widen(x);
#pragma unroll
      for (const float channel : x) found = larger(found, channel);
    }
    return found;
  }

  /// Of the block. Inf and NaN are rare enough to be left out only where there are some. All lanes of the warp have read their
  /// pieces then.
  __device__ BlockRange range() const {
    const float found = Cut::largest(largest(LargerOrNan{}), LargerOrNan{});
    if (__all_sync(0xFFFFFFFFu, is_finite(found))) return {found, true};
    return {Cut::largest(largest(LargerFinite{}), LargerFinite{}), is_finite(found)};
  }

  __device__ void write(int lane, const QuantiseArgs& args, int64_t first, float multiplier) const {
#pragma unroll
    for (int turn = 0; turn < Cut::kPieces; ++turn) {
      const int64_t at = first + Cut::piece(lane, turn);
      float x[kLaneColumns];
      pieces[turn].widen(x);
#pragma unroll
      for (float& channel : x) channel *= multiplier;
      if (at >= args.hidden) continue;
      if constexpr (Cut::kChannels == 16) *reinterpret_cast<uint32_t*>(args.q + at / 2) = round_to_e2m1(x);
      else store_columns(reinterpret_cast<e4m3*>(args.q + at), x);
    }
  }
};

/// By a whole warp; x 16-aligned, q 8-aligned, hidden a multiple of 8. q may lie where x does: a step's q ends before the next
/// step's x begins.
template <class In, class Cut>
__device__ void quantise_by_warp(int lane, const QuantiseArgs& args) {
  for (int64_t start = 0; start < args.hidden; start += Cut::kAhead * Cut::kStep) {
    QuantisePieces<In, Cut> ahead[Cut::kAhead];
#pragma unroll
    for (int k = 0; k < Cut::kAhead; ++k) {
      ahead[k] = QuantisePieces<In, Cut>::load(lane, args, start + k * Cut::kStep + Cut::first(lane));
    }
#pragma unroll
    for (int k = 0; k < Cut::kAhead; ++k) {
      const int64_t first = start + k * Cut::kStep + Cut::first(lane);
      const QuantiseScale scale = quantise_scale(args, ahead[k].range());
      __syncwarp();
      ahead[k].write(lane, args, first, scale.multiplier);
      if (lane % Cut::kLanes == 0 && first < args.hidden) store_scale(args, first / Cut::kChannels, scale);
    }
  }
  if (lane == 0) clear_unused_scales(args, ceil_div(args.hidden, Cut::kChannels));
}

/// One scale for the row. By a whole warp, aligned as above, in place as above; reads the row twice.
template <class In>
__device__ void quantise_whole_row(int lane, const QuantiseArgs& args) {
  using Cut = BlockCut<32 * kLaneColumns, 32>;
  const auto largest_of_row = [&](auto larger) {
    float found = 0.0f;
#pragma unroll 4
    for (int64_t start = 0; start < args.hidden; start += Cut::kStep) {
      found = larger(found, QuantisePieces<In, Cut>::load(lane, args, start + Cut::first(lane)).largest(larger));
    }
    return Cut::largest(found, larger);
  };
  float largest = largest_of_row(LargerOrNan{});
  if (!is_finite(largest)) largest = largest_of_row(LargerFinite{});
  const QuantiseScale scale = quantise_scale(args, {.largest = largest});
  for (int64_t start = 0; start < args.hidden; start += Cut::kStep) {
    const int64_t first = start + Cut::first(lane);
    const auto piece = QuantisePieces<In, Cut>::load(lane, args, first);
    __syncwarp();
    piece.write(lane, args, first, scale.multiplier);
  }
  if (lane == 0 && args.hidden > 0) store_scale(args, 0, scale);
}

/// With the mode as a constant, most of quantise_scale() is settled when compiled.
template <class In, Quantise kMode, class Cut>
__device__ void quantise_in_mode(int lane, QuantiseArgs args) {
  args.mode = kMode;
  quantise_by_warp<In, Cut>(lane, args);
}

template <class In>
__device__ void quantise_aligned(int lane, const QuantiseArgs& args) {
  switch (args.mode) {
    case Quantise::fp8_row: return quantise_whole_row<In>(lane, args);
    case Quantise::mxfp8: return quantise_in_mode<In, Quantise::mxfp8, BlockCut<32, 1>>(lane, args);
    case Quantise::nvfp4: return quantise_in_mode<In, Quantise::nvfp4, BlockCut<16, 1>>(lane, args);
    default: return quantise_by_warp<In, BlockCut<kQuantiseBlock, 4>>(lane, args);
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

/// Arguments by value: what is stored might change them, were they in memory.
__device__ __noinline__ inline void lanes_quantise_row(Lanes lanes, QuantiseArgs args) {
  switch (args.x_dtype) {
    case DType::f32: return lanes_quantise_as<float>(lanes, args);
    case DType::bf16: return lanes_quantise_as<bf16>(lanes, args);
    default: return lanes_quantise_as<f16>(lanes, args);
  }
}

}  // namespace heddle
