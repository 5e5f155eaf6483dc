#include "cuda/decode_rounds.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace heddle::testing {
namespace {

__device__ uint32_t hash_of(const DecodeBatch& batch, uint32_t token, uint32_t column) {
  uint32_t h = (batch.round * 131u + static_cast<uint32_t>(batch.rank)) * 0x9E3779B1u + token * 0x85EBCA77u + column * 0xC2B2AE3Du;
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  return h ^ h >> 13;
}

/// Whole numbers up to 2: with the block's largest they are exact in e4m3 and back.
__device__ float value_at(const DecodeBatch& batch, int token, int column) {
  return static_cast<float>(static_cast<int>(hash_of(batch, token, column) % 5) - 2);
}

__device__ int64_t id_at(const DecodeBatch& batch, int token, int k) {
  const uint32_t h = hash_of(batch, token, 0x10000u + static_cast<uint32_t>(k));
  return h % 8 == 0 ? -1 : static_cast<int64_t>(h / 8 % static_cast<uint32_t>(batch.experts));
}

__global__ void make(bf16* x, int64_t* ids, DecodeBatch batch) {
  for (int token = blockIdx.x; token < batch.tokens; token += gridDim.x) {
    for (int i = threadIdx.x; i < batch.hidden; i += blockDim.x) {
      x[int64_t{token} * batch.hidden + i] = to_bf16(value_at(batch, token, i));
    }
    if (threadIdx.x < batch.topk) ids[token * batch.topk + threadIdx.x] = id_at(batch, token, threadIdx.x);
  }
}

__global__ void back(bf16* out, SlabView slab) {
  for (int row = blockIdx.x; row < slab.rows; row += gridDim.x) {
    const int group = row / slab.group, in_group = row % slab.group, blocks = (slab.hidden + 127) / 128;
    for (int i = threadIdx.x; i < slab.hidden; i += blockDim.x) {
      float value = __int_as_float(0x7FC00000);
      if (slab.source[row] >= 0) {
        const auto q = static_cast<const e4m3*>(slab.x)[int64_t{row} * slab.hidden + i];
        value = to_float(q) * slab.scales[(int64_t{group} * blocks + i / 128) * slab.group + in_group];
      }
      out[int64_t{row} * slab.hidden + i] = to_bf16(value);
    }
  }
}

__global__ void check(const bf16* combined, DecodeBatch batch, unsigned long long* bad) {
  for (int token = blockIdx.x; token < batch.tokens; token += gridDim.x) {
    float factor = 0.0f;
    for (int k = 0; k < batch.topk; ++k) factor += id_at(batch, token, k) >= 0 ? static_cast<float>(1 << k % 3) : 0.0f;
    int wrong = 0;
    for (int i = threadIdx.x; i < batch.hidden; i += blockDim.x) {
      const float seen = to_float(combined[int64_t{token} * batch.hidden + i]);
      wrong |= !(seen == value_at(batch, token, i) * factor);  // NaN too
    }
    if (__syncthreads_or(wrong) && threadIdx.x == 0) atomicAdd(bad, 1ull);
  }
}

void check_launch() {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) {
    fail(ErrorCode::system, "launching: {}", cudaGetErrorString(error));
  }
}

constexpr int kBlocks = 32, kThreads = 256;

}  // namespace

void make_batch(void* x, int64_t* ids, const DecodeBatch& batch, CUstream_st* stream) {
  make<<<kBlocks, kThreads, 0, stream>>>(static_cast<bf16*>(x), ids, batch);
  check_launch();
}

void give_back(void* out, const SlabView& slab, CUstream_st* stream) {
  back<<<kBlocks, kThreads, 0, stream>>>(static_cast<bf16*>(out), slab);
  check_launch();
}

void count_bad_sums(const void* combined, const DecodeBatch& batch, unsigned long long* bad, CUstream_st* stream) {
  check<<<kBlocks, kThreads, 0, stream>>>(static_cast<const bf16*>(combined), batch, bad);
  check_launch();
}

}  // namespace heddle::testing
