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

extern "C" __global__ void heddle_reset(const __grid_constant__ DirectPort port, const __grid_constant__ ResetArgs args) {
  RankSet missing;
  args.result->is_whole = reset(port, args.ctx, args.members, missing);
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
