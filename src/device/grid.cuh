// All blocks of a launch as one coop. Every block must be resident at once (cuda/launch.hpp sees to it), since they wait for
// one another. Like every wait this one has a deadline.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/clock.hpp"
#include "device/coop.cuh"
#include "device/grid_barrier.hpp"

namespace heddle {

class Grid {
 public:
  static constexpr int kMaxThreads = 512;

  __device__ Grid(GridBarrier* barrier, uint64_t timeout_ns) : barrier_(barrier), timeout_ns_(timeout_ns) {}

  __device__ int index() const { return blockIdx.x * warps() + (threadIdx.x >> 5); }
  __device__ int size() const { return gridDim.x * warps(); }
  __device__ int lane() const { return threadIdx.x & 31; }
  __device__ int lanes() const { return 32; }
  __device__ void worker_sync() const { __syncwarp(); }

  // See block.hpp.
  __device__ int block() const { return blockIdx.x; }
  __device__ int blocks() const { return gridDim.x; }
  __device__ int thread() const { return threadIdx.x; }
  __device__ int threads() const { return blockDim.x; }
  __device__ void block_sync() const { __syncthreads(); }
  __device__ Block own_block() const { return {}; }
  __device__ std::byte* shared() const {
    extern __shared__ uint4 heddle_shared[];
    return reinterpret_cast<std::byte*>(heddle_shared);
  }

  /// A block that waits in vain ends here, all threads of it: what comes after relies on the others' work.
  __device__ void sync() const {
    __syncthreads();
    if (gridDim.x == 1) return;
    const bool alone = threadIdx.x == 0 && !meet();
    if (__syncthreads_or(alone)) asm volatile("exit;");
  }

 private:
  __device__ int warps() const { return blockDim.x >> 5; }

  /// One thread a block. The blocks' shares add up to 2^31, so each meeting flips the top bit and leaves the rest as it was:
  /// launches of any number of blocks may follow one another without clearing anything.
  __device__ bool meet() const {
    const uint32_t share = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    const uint64_t deadline = clock_ns() + timeout_ns_;
    uint32_t before, now;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(&barrier_->arrived), "r"(share)
                 : "memory");
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(&barrier_->arrived) : "memory");
      if ((now ^ before) >> 31 != 0) return true;
    } while (clock_ns() < deadline && !is_broken());
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(&barrier_->broken), "r"(1) : "memory");
    return false;
  }

  __device__ bool is_broken() const {
    uint32_t broken;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(broken) : "l"(&barrier_->broken) : "memory");
    return broken != 0;
  }

  GridBarrier* barrier_;
  uint64_t timeout_ns_;
};

}  // namespace heddle
