#include "cuda/decode.hpp"

#include "cuda/decode_combine.cuh"
#include "cuda/decode_dispatch.cuh"

namespace heddle {

extern "C" __global__ void __launch_bounds__(kDecodeBlock, 1)
    heddle_decode_dispatch(const __grid_constant__ DirectPort port, const __grid_constant__ DispatchArgs args,
                           const __grid_constant__ Site site, const __grid_constant__ DecodeSite decode) {
  if (site.is_rehearsal) return;
  __shared__ DecodeBoard board;
  DecodeDispatch(port, args, site, decode, board, Grid(nullptr, 0).shared()).run();
}

extern "C" __global__ void __launch_bounds__(kDecodeBlock, 1)
    heddle_decode_combine(const __grid_constant__ DirectPort port, const __grid_constant__ CombineArgs args,
                          const __grid_constant__ Site site, const __grid_constant__ DecodeSite decode) {
  if (site.is_rehearsal) return;
  __shared__ DecodeBoard board;
  DecodeCombine<false>(port, args, site, decode, board, Grid(nullptr, 0).shared()).run();
}

extern "C" __global__ void __launch_bounds__(kDecodeBlock, 1)
    heddle_decode_combine_masking(const __grid_constant__ DirectPort port, const __grid_constant__ CombineArgs args,
                                  const __grid_constant__ Site site, const __grid_constant__ DecodeSite decode) {
  if (site.is_rehearsal) return;
  __shared__ DecodeBoard board;
  DecodeCombine<true>(port, args, site, decode, board, Grid(nullptr, 0).shared()).run();
}

const DecodeKernels& decode_kernels() {
  static const DecodeKernels kernels{.dispatch = reinterpret_cast<const void*>(heddle_decode_dispatch),
                                     .combine = reinterpret_cast<const void*>(heddle_decode_combine),
                                     .combine_masking = reinterpret_cast<const void*>(heddle_decode_combine_masking)};
  return kernels;
}

}  // namespace heddle
