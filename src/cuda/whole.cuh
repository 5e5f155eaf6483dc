// A whole dispatch as a kernel runs it, for each way to move its rows (dispatch_movers.hpp).
#pragma once

#include "cuda/dispatch_pump.hpp"
#include "cuda/steps.cuh"

namespace heddle {

/// Fewer threads than Grid::kMaxThreads leave each more registers: local memory is as slow as the GPU's wherever releases empty
/// the cache.
inline constexpr int kDispatchThreads = 384;

template <template <class, class> class Mover>
__device__ void run_dispatch(const DirectPort& port, const DispatchArgs& args, const Site& site, int movers) {
  if (site.is_rehearsal) return;
  const Grid grid(site.barrier, site.timeout_ns);
  if (grid.index() == 0) pay_owed(port, args.call.ctx, site.decode, grid.lane(), grid.lanes());
  if (!dispatch_whole<Mover>(grid, port, args, site.pump, movers) || is_refused_unheard(args.call, site)) {
    grid.sync();
    poison_dispatch(grid, args);
    grid.sync();
  }
  if (grid.block() != grid.blocks() - 1) return;  // which met the peers
  report_step(grid.own_block(), port, args.call, site, [&](Report& report) {
    report_sizes(args, report);
    report_drops(args, report);
  });
}

}  // namespace heddle
