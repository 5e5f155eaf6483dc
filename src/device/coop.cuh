// The coops of a GPU: a warp, a block. See coop.hpp.
#pragma once

#include "device/coop.hpp"

namespace heddle {

struct Warp {
  static constexpr int kMaxThreads = 32;

  __device__ int index() const { return 0; }
  __device__ int size() const { return 1; }
  __device__ int lane() const { return threadIdx.x & 31; }
  __device__ int lanes() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
  __device__ void worker_sync() const { __syncwarp(); }
};

struct Block {
  static constexpr int kMaxThreads = 512;

  __device__ int index() const { return threadIdx.x >> 5; }
  __device__ int size() const { return blockDim.x >> 5; }
  __device__ int lane() const { return threadIdx.x & 31; }
  __device__ int lanes() const { return 32; }
  __device__ void sync() const { __syncthreads(); }
  __device__ void worker_sync() const { __syncwarp(); }
};

}  // namespace heddle
