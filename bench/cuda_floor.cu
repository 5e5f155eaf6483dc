#include "cuda_floor.hpp"

#include "cuda_timer.hpp"

namespace heddle::bench {
namespace {

constexpr int kAhead = 4;

__global__ void __launch_bounds__(1024) copy(uint4* to, const uint4* from, size_t words) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i + (kAhead - 1) * stride < words; i += kAhead * stride) {
    uint4 held[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) held[k] = from[i + k * stride];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) to[i + k * stride] = held[k];
  }
  for (; i < words; i += stride) to[i] = from[i];
}

}  // namespace

void copy_by_kernel(void* to, const void* from, size_t bytes, int blocks, cudaStream_t stream) {
  copy<<<blocks, 1024, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from), bytes / sizeof(uint4));
  check(cudaGetLastError(), "launching a copy");
}

}  // namespace heddle::bench
