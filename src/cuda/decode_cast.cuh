// Casts a part of a token's row in a warp's registers, as it travels in a low-latency dispatch.
#pragma once

#include <cstdint>

#include "cuda/decode.hpp"
#include "device/quantise.hpp"

namespace heddle {

/// A part of a row as it travels: 16 columns of a lane, and in every lane the part's scale words.
struct CastPart {
  uint4 columns;
  uint4 scales;
};

class PartCaster {
 public:
  static constexpr int kColumnsEach = 16;  // of a lane

  __device__ explicit PartCaster(const DispatchArgs& args) : a_(args), hidden_(args.call.shape.payload_bytes) {}

  /// Columns of one part of a token. All lanes.
  __device__ void load(int token, int part, uint4 (&columns)[2]) const {
    const int column = part * kDispatchPart + lane() * kColumnsEach;
    columns[0] = columns[1] = make_uint4(0, 0, 0, 0);
    if (column >= hidden_) return;
    const std::byte* x = a_.batch.x + token * a_.batch.x_stride + column * int64_t{sizeof(bf16)};
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

  /// The same bits as quantise_row(): eight lanes share a block.
  __device__ CastPart cast(const uint4 (&columns)[2]) const {
    float x[2][kLaneColumns];
    LaneColumns<bf16>{{columns[0]}}.widen(x[0]);
    LaneColumns<bf16>{{columns[1]}}.widen(x[1]);
    const QuantiseScale scale = scale_of(largest_finite(x));
    uint2 q[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (float& value : x[half]) value *= scale.multiplier;
      store_columns(reinterpret_cast<e4m3*>(&q[half]), x[half]);
    }
    return {.columns = make_uint4(q[0].x, q[0].y, q[1].x, q[1].y), .scales = scale_words(scale)};
  }

  __device__ bool has_byte_scale() const { return a_.call.shape.quantise == Quantise::fp8_ue8m0; }
  /// Of a part: how many blocks have columns, and what then travels.
  __device__ int blocks_of(int part) const {
    const int left = hidden_ - part * kDispatchPart;
    return left >= kDispatchPart ? 4 : (left + kQuantiseBlock - 1) / kQuantiseBlock;
  }
  __device__ uint4 trimmed(uint4 words, int part) const {
    const int blocks = blocks_of(part);
    if (blocks < 4) words.w = 0;
    if (blocks < 3) words.z = 0;
    if (blocks < 2) words.y = 0;
    if (!has_byte_scale()) return words;
    return make_uint4(words.x | words.y << 8 | words.z << 16 | words.w << 24, 0, 0, 0);
  }

 private:
  __device__ static int lane() { return threadIdx.x & 31; }

  /// With the mode as a constant, most of quantise_scale() is settled when compiled.
  __device__ QuantiseScale scale_of(float largest) const {
    QuantiseArgs quantise{.x = nullptr, .x_dtype = DType::bf16, .hidden = 0, .mode = Quantise::fp8, .q = nullptr,
                          .scales = nullptr};
    if (a_.call.shape.quantise == Quantise::fp8) return quantise_scale(quantise, {.largest = largest});
    quantise.mode = Quantise::fp8_pow2;
    return quantise_scale(quantise, {.largest = largest});
  }

  __device__ static float largest_finite(const float (&x)[2][kLaneColumns]) {
    float largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = fmaxf(largest, fabsf(value));
    }
    largest = largest_of_eight(largest);
    if (__all_sync(0xFFFFFFFFu, is_finite(largest))) return largest;
    largest = 0.0f;
#pragma unroll
    for (const auto& half : x) {
#pragma unroll
      for (const float value : half) largest = larger_finite(largest, value);
    }
    return largest_of_eight(largest);
  }
  __device__ static float largest_of_eight(float largest) {
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, apart));
    return largest;
  }

  /// Four blocks' scales, those of no block 0; or their bytes in one word.
  __device__ uint4 scale_words(const QuantiseScale& scale) const {
    const uint32_t own = has_byte_scale() ? scale.byte : __float_as_uint(scale.scale);
    uint32_t words[4];
#pragma unroll
    for (int block = 0; block < 4; ++block) words[block] = __shfl_sync(0xFFFFFFFFu, own, block * 8);
    return make_uint4(words[0], words[1], words[2], words[3]);
  }

  const DispatchArgs& a_;
  const int hidden_;
};

}  // namespace heddle
