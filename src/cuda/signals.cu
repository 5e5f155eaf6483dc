#include "cuda/signals.hpp"

#include "protocol/signals.hpp"

namespace heddle {

/// Nobody waits for it: a fault is for the next step to find, and for the peers to hear of.
extern "C" __global__ void __launch_bounds__(kSignalThreads)
    heddle_await_signals(const __grid_constant__ DirectPort port, const __grid_constant__ Context ctx,
                         const __grid_constant__ SignalView view, uint64_t* faulted) {
  const bool here = await_signals(port, ctx, view, static_cast<int>(threadIdx.x), kSignalThreads);
  if (__syncthreads_and(here) != 0 || threadIdx.x != 0) return;
  store_relaxed(faulted, 1);
  publish_fault(port, ctx);
}

const void* await_signals_kernel() { return reinterpret_cast<const void*>(heddle_await_signals); }

}  // namespace heddle
