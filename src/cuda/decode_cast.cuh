// Casts a part of a token's row in a warp's registers, as it travels in a low-latency dispatch.
#pragma once

#include <cstdint>

#include "cuda/decode_block.cuh"
#include "device/quantise.hpp"

namespace heddle {

/// A part of a row as it travels: 16 columns of a lane, and in every lane the part's scale words. Bytes that are not cast may be
/// all ones in an 8-byte half, which must not travel: such a half is zero, and has its lane's bit in scales.x (the low half) or
/// scales.z.
struct CastPart {
  uint4 columns;
  uint4 scales;
};

__device__ inline CastPart without_ones(uint4 bytes) {
  const bool low = (bytes.x & bytes.y) == ~0u, high = (bytes.z & bytes.w) == ~0u;
  const unsigned lows = __ballot_sync(kAllLanes, low), highs = __ballot_sync(kAllLanes, high);
  if (low) bytes.x = bytes.y = 0;
  if (high) bytes.z = bytes.w = 0;
  return {.columns = bytes, .scales = make_uint4(lows, 0, highs, 0)};
}

__device__ inline uint4 with_ones(const CastPart& part) {
  uint4 bytes = part.columns;
  const int lane = threadIdx.x & 31;
  if (part.scales.x >> lane & 1) bytes.x = bytes.y = ~0u;
  if (part.scales.z >> lane & 1) bytes.z = bytes.w = ~0u;
  return bytes;
}

__device__ __noinline__ inline uint4 load_odd_bytes(const std::byte* from) {
  uint32_t words[4] = {};
#pragma unroll 1
  for (int i = 15; i >= 0; --i) {
    words[3] = words[3] << 8 | words[2] >> 24;
    words[2] = words[2] << 8 | words[1] >> 24;
    words[1] = words[1] << 8 | words[0] >> 24;
    words[0] = words[0] << 8 | static_cast<uint32_t>(from[i]);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ float largest_of_row(const DispatchArgs& args, int token);

/// All lanes of a warp.
class PartCaster {
 public:
  static constexpr int kColumnsEach = 16;  // of a lane

  __device__ explicit PartCaster(const DispatchArgs& args)
      : a_(args), mode_(args.call.shape.quantise), hidden_(args.call.shape.payload_bytes) {}

  __device__ bool is_cast() const { return mode_ != Quantise::none; }

  /// Columns of one part of a token.
  __device__ void load(int token, int part, uint4 (&columns)[2]) const {
    const int column = first_column(part);
    columns[0] = columns[1] = make_uint4(0, 0, 0, 0);
    if (column >= hidden_) return;
    const int64_t size = is_cast() ? 2 : 1;  // bytes of a column, of bf16 or of bytes
    const std::byte* x = a_.batch.x + token * a_.batch.x_stride + column * size;
    if (!is_cast()) {
      const bool is_odd = reinterpret_cast<uintptr_t>(x) % sizeof(uint4) != 0;
      columns[0] = is_odd ? load_odd_bytes(x) : *reinterpret_cast<const uint4*>(x);
      return;
    }
    if (reinterpret_cast<uintptr_t>(x) % sizeof(uint4) == 0) {
      columns[0] = reinterpret_cast<const uint4*>(x)[0];
      columns[1] = reinterpret_cast<const uint4*>(x)[1];
      return;
    }
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const auto* pair = reinterpret_cast<const uint16_t*>(x) + 2 * i;
      words[i] = pair[0] | uint32_t{pair[1]} << 16;
    }
    columns[0] = make_uint4(words[0], words[1], words[2], words[3]);
    columns[1] = make_uint4(words[4], words[5], words[6], words[7]);
  }

  /// The same bits as quantise_row(). `token` and `part` are where the columns are from.
  __device__ CastPart cast(const uint4 (&columns)[2], int token, int part) const {
    if (!is_cast()) return without_ones(columns[0]);
    float x[2][kLaneColumns];
    LaneColumns<bf16>{{columns[0]}}.widen(x[0]);
    LaneColumns<bf16>{{columns[1]}}.widen(x[1]);
    const float largest = mode_ == Quantise::fp8_row ? largest_of_row(a_, token) : largest_of_block(largest_finite(x));
    const QuantiseScale scale = scale_of(largest);
    uint2 q[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (float& value : x[half]) value *= scale.multiplier;
      store_columns(reinterpret_cast<e4m3*>(&q[half]), x[half]);
    }
    return {.columns = make_uint4(q[0].x, q[0].y, q[1].x, q[1].y), .scales = scale_words(scale, part)};
  }

  /// How many words of scales the row has for a part, and which of them is the first.
  __device__ int num_words(int part) const {
    if (!is_cast()) return 0;
    if (mode_ == Quantise::fp8_row) return part == 0;
    return mode_ == Quantise::fp8_ue8m0 ? 1 : blocks_of(part);
  }
  __device__ int first_word(int part) const { return mode_ == Quantise::fp8_ue8m0 ? part : 4 * part; }

  /// Of this lane's columns, those that are finite.
  __device__ static float largest_finite(const float (&x)[2][kLaneColumns]) {
    float largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = fmaxf(largest, fabsf(value));
    }
    if (__all_sync(kAllLanes, is_finite(largest))) return largest;
    largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = larger_finite(largest, value);
    }
    return largest;
  }
  __device__ static float largest_of_lanes(float largest, int lanes) {
#pragma unroll 1
    for (int apart = lanes / 2; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, apart));
    return largest;
  }

 private:
  __device__ static int lane() { return threadIdx.x & 31; }
  __device__ static int first_column(int part) { return part * kDispatchPart + lane() * kColumnsEach; }

  /// Two lanes share a block of mxfp8, eight one of the others.
  __device__ float largest_of_block(float largest) const {
    return largest_of_lanes(largest, mode_ == Quantise::mxfp8 ? 2 : 8);
  }

  /// With the mode as a constant, most of quantise_scale() is settled when compiled.
  __device__ QuantiseScale scale_of(float largest) const {
    QuantiseArgs quantise{.x = nullptr, .x_dtype = DType::bf16, .hidden = 0, .mode = Quantise::fp8, .q = nullptr,
                          .scales = nullptr};
    if (mode_ == Quantise::fp8 || mode_ == Quantise::fp8_row) return quantise_scale(quantise, {.largest = largest});
    // The others differ in the least value only.
    quantise.mode = Quantise::mxfp8;
    if (mode_ != Quantise::mxfp8) largest = fmaxf(largest, kLeastRange);
    return quantise_scale(quantise, {.largest = largest});
  }

  /// The words of blocks that have columns; others are 0.
  __device__ uint4 scale_words(const QuantiseScale& scale, int part) const {
    if (mode_ == Quantise::mxfp8) return byte_words(scale, part);
    const uint32_t own = mode_ == Quantise::fp8_ue8m0 ? scale.byte : __float_as_uint(scale.scale);
    const int blocks = blocks_of(part);
    uint32_t words[4];
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      words[block] = __shfl_sync(kAllLanes, own, block * 8);
      if (block >= blocks) words[block] = 0;
    }
    if (mode_ != Quantise::fp8_ue8m0) return make_uint4(words[0], words[1], words[2], words[3]);
    return make_uint4(words[0] | words[1] << 8 | words[2] << 16 | words[3] << 24, 0, 0, 0);
  }
  /// Sixteen blocks' bytes; two lanes have each.
  __device__ uint4 byte_words(const QuantiseScale& scale, int part) const {
    const int block = lane() / 2;
    const bool is_here = part * kDispatchPart + block * 32 < hidden_;
    uint32_t word = is_here ? uint32_t{scale.byte} << block % 4 * 8 : 0;
    word |= __shfl_xor_sync(kAllLanes, word, 2);
    word |= __shfl_xor_sync(kAllLanes, word, 4);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __shfl_sync(kAllLanes, word, i * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  /// Blocks of 128 columns.
  __device__ int blocks_of(int part) const {
    const int left = hidden_ - part * kDispatchPart;
    return left >= kDispatchPart ? 4 : (left + kQuantiseBlock - 1) / kQuantiseBlock;
  }

  const DispatchArgs& a_;
  const Quantise mode_;
  const int hidden_;
};

/// All lanes. Each part of the row asks for it anew.
__device__ __noinline__ inline float largest_of_row(const DispatchArgs& args, int token) {
  const PartCaster caster(args);
  float largest = 0.0f;
#pragma unroll 1
  for (int part = 0; part * kDispatchPart < args.call.shape.payload_bytes; ++part) {
    uint4 columns[2];
    caster.load(token, part, columns);
    float x[2][kLaneColumns];
    LaneColumns<bf16>{{columns[0]}}.widen(x[0]);
    LaneColumns<bf16>{{columns[1]}}.widen(x[1]);
    largest = fmaxf(largest, PartCaster::largest_finite(x));
  }
  return PartCaster::largest_of_lanes(largest, 32);
}

}  // namespace heddle
