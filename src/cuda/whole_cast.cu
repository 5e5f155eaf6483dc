// A whole dispatch that casts its rows on their way; a file of its own, so that it compiles beside the others.
#include "cuda/whole.cuh"

namespace heddle {

/// A block has room for seven belts of 7168 channels in bf16; with 384 threads a cast's registers spill (330 local loads, not 45).
inline constexpr int kCastThreads = 256;

extern "C" __global__ void __launch_bounds__(kCastThreads, 1)
    heddle_dispatch_cast(const __grid_constant__ DirectPort port, const __grid_constant__ DispatchArgs args,
                         const __grid_constant__ Site site, const __grid_constant__ int movers) {
#if __CUDA_ARCH__ >= 900  // bulk copies
  run_dispatch<CastBelt>(port, args, site, movers);
#endif
}

WholeKernel dispatch_cast_kernel() { return {reinterpret_cast<const void*>(heddle_dispatch_cast), kCastThreads}; }

}  // namespace heddle
