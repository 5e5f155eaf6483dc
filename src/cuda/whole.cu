// Whole calls in one launch: the fast twins of the steps. See dispatch_pump.hpp, combine_pump.hpp.
#include "cuda/combine_pump.hpp"
#include "cuda/dispatch_pump.hpp"
#include "cuda/steps.cuh"

namespace heddle {

extern "C" __global__ void __launch_bounds__(Grid::kMaxThreads, 1)
    heddle_dispatch_whole(const __grid_constant__ DirectPort port, const __grid_constant__ DispatchArgs args,
                          const __grid_constant__ Site site) {
  if (site.is_rehearsal) return;
  const Grid grid(site.barrier, site.timeout_ns);
  if (grid.index() == 0) pay_owed(port, args.call.ctx, site.decode, grid.lane(), grid.lanes());
  if (!dispatch_whole(grid, port, args, site.pump) || is_refused_unheard(args.call, site)) {
    grid.sync();
    poison_dispatch(grid, args);
    grid.sync();
  }
  if (grid.block() != 0) return;
  report_step(grid.own_block(), port, args.call, site, [&](Report& report) {
    report_sizes(args, report);
    report_drops(args, report);
  });
}

extern "C" __global__ void __launch_bounds__(Grid::kMaxThreads, 1)
    heddle_combine_whole(const __grid_constant__ DirectPort port, const __grid_constant__ CombineArgs args,
                         const __grid_constant__ Site site) {
  if (site.is_rehearsal) return;
  const Grid grid(site.barrier, site.timeout_ns);
  if (grid.index() == 0) pay_owed(port, args.call.ctx, site.decode, grid.lane(), grid.lanes());
  if (!combine_whole(grid, port, args, site.pump) || is_refused_unheard(args.call, site)) {
    grid.sync();
    poison_combine(grid, args);
    grid.sync();
  }
  if (grid.block() != 0) return;
  report_step(grid.own_block(), port, args.call, site, [&](Report& report) { report_results(args, report); });
}

const WholeKernels& whole_kernels() {
  static const WholeKernels kernels{.dispatch = reinterpret_cast<const void*>(heddle_dispatch_whole),
                                    .combine = reinterpret_cast<const void*>(heddle_combine_whole),
                                    .threads = Grid::kMaxThreads,
                                    .shared_bytes = sizeof(DispatchBoard)};
  return kernels;
}

}  // namespace heddle
