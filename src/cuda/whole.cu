// Whole calls in one launch: the fast twins of the steps. See dispatch_pump.hpp, combine_pump.hpp.
#include "cuda/combine_pump.hpp"
#include "cuda/whole.cuh"

namespace heddle {

inline constexpr int kCombineThreads = 512;
inline constexpr int kBeltThreads = 384;

extern "C" __global__ void __launch_bounds__(kDispatchThreads, 1)
    heddle_dispatch_whole(const __grid_constant__ DirectPort port, const __grid_constant__ DispatchArgs args,
                          const __grid_constant__ Site site, const __grid_constant__ int movers) {
  run_dispatch<DispatchLanes>(port, args, site, movers);
}

extern "C" __global__ void __launch_bounds__(kDispatchThreads, 1)
    heddle_dispatch_belt(const __grid_constant__ DirectPort port, const __grid_constant__ DispatchArgs args,
                         const __grid_constant__ Site site, const __grid_constant__ int movers) {
#if __CUDA_ARCH__ >= 900  // bulk copies
  run_dispatch<DispatchBelt>(port, args, site, movers);
#endif
}

template <template <class, class> class Mover>
__device__ void run_combine(const DirectPort& port, const CombineArgs& args, const Site& site, int movers) {
  if (site.is_rehearsal) return;
  const Grid grid(site.barrier, site.timeout_ns);
  if (grid.index() == 0) pay_owed(port, args.call.ctx, site.decode, grid.lane(), grid.lanes());
  if (!combine_whole<Mover>(grid, port, args, site.pump, movers) || is_refused_unheard(args.call, site)) {
    grid.sync();
    poison_combine(grid, args);
    grid.sync();
  }
  if (grid.block() != grid.blocks() - 1) return;  // which met the peers
  report_step(grid.own_block(), port, args.call, site, [&](Report& report) { report_results(args, report); });
}

extern "C" __global__ void __launch_bounds__(kCombineThreads, 1)
    heddle_combine_whole(const __grid_constant__ DirectPort port, const __grid_constant__ CombineArgs args,
                         const __grid_constant__ Site site, const __grid_constant__ int movers) {
  run_combine<CombineLanes>(port, args, site, movers);
}

extern "C" __global__ void __launch_bounds__(kBeltThreads, 1)
    heddle_combine_belt(const __grid_constant__ DirectPort port, const __grid_constant__ CombineArgs args,
                        const __grid_constant__ Site site, const __grid_constant__ int movers) {
#if __CUDA_ARCH__ >= 900  // bulk copies
  run_combine<CombineBelt>(port, args, site, movers);
#endif
}

const WholeKernels& whole_kernels() {
  static const WholeKernels kernels{
      .dispatch = {reinterpret_cast<const void*>(heddle_dispatch_whole), kDispatchThreads},
      .dispatch_belt = {reinterpret_cast<const void*>(heddle_dispatch_belt), kDispatchThreads},
      .dispatch_cast = dispatch_cast_kernel(),
      .combine = {reinterpret_cast<const void*>(heddle_combine_whole), kCombineThreads},
      .combine_belt = {reinterpret_cast<const void*>(heddle_combine_belt), kBeltThreads}};
  return kernels;
}

}  // namespace heddle
