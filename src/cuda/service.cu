#include "cuda/service.hpp"

#include "protocol/reset.hpp"

namespace heddle {

extern "C" __global__ void heddle_publish_fault(const __grid_constant__ DirectPort port,
                                                const __grid_constant__ Context ctx) {
  publish_fault(port, ctx);
}

extern "C" __global__ void heddle_close_pair(const __grid_constant__ DirectPort port,
                                             const __grid_constant__ Context ctx, int peer) {
  close_pair(port, ctx, peer);
}

extern "C" __global__ void heddle_announce_destroyed(const __grid_constant__ DirectPort port,
                                                     const __grid_constant__ Context ctx) {
  announce_destroyed(port, ctx);
}

extern "C" __global__ void heddle_claim_fault(const __grid_constant__ Context ctx, const __grid_constant__ Fault fault) {
  claim_fault(ctx, fault);
}

namespace {

/// By thread 0 and those of all warps but the first.
__device__ void clear_words(std::byte* window, const Context& ctx) {
  const int regions = kKinds * kLanes * ctx.topo.world;
  for (int item = 0; item < regions; ++item) {
    const auto kind = static_cast<Kind>(item / kLanes / ctx.topo.world);
    const int64_t at = ctx.window.words(kind, item / ctx.topo.world % kLanes, item % ctx.topo.world);
    auto* words = reinterpret_cast<uint4*>(window + at);
    const int64_t count = ctx.window.word_bytes() / int64_t{sizeof(uint4)};
    const int thread = threadIdx.x == 0 ? 0 : static_cast<int>(threadIdx.x) - 31;
    for (int64_t i = thread; i < count; i += blockDim.x - 31) words[i] = make_uint4(0, 0, 0, 0);
  }
}

}  // namespace

/// Thread 0 resets, alone in its warp, as a warp meets others as one; the other warps only help it to clear.
extern "C" __global__ void __launch_bounds__(kResetThreads)
    heddle_reset(const __grid_constant__ DirectPort port, const __grid_constant__ ResetArgs args) {
  __shared__ bool goes_on;
  if (threadIdx.x > 0 && threadIdx.x < 32) return;
  if (threadIdx.x != 0) {
    while (true) {
      __syncthreads();
      if (!goes_on) return;
      clear_words(port.local(), args.ctx);
      __syncthreads();
    }
  }
  RankSet missing;
  args.result->is_whole = reset(port, args.ctx, args.members, missing, [&] {
    goes_on = true;
    __syncthreads();
    clear_words(port.local(), args.ctx);
    __syncthreads();
  });
  goes_on = false;
  __syncthreads();
  args.result->missing = missing;
  store_release(&args.result->is_done, 1);
}

const ServiceKernels& service_kernels() {
  static const ServiceKernels kernels{.publish_fault = reinterpret_cast<const void*>(heddle_publish_fault),
                                      .close_pair = reinterpret_cast<const void*>(heddle_close_pair),
                                      .announce_destroyed = reinterpret_cast<const void*>(heddle_announce_destroyed),
                                      .claim_fault = reinterpret_cast<const void*>(heddle_claim_fault),
                                      .reset = reinterpret_cast<const void*>(heddle_reset)};
  return kernels;
}

}  // namespace heddle
