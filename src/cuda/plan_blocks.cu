#include "cuda/plan_blocks.hpp"

#include "cuda/kernels.hpp"
#include "device/grid.cuh"

namespace heddle {

extern "C" __global__ void __launch_bounds__(Grid::kMaxThreads)
    heddle_plan_blocks(const __grid_constant__ Topology topo, const __grid_constant__ PlanView plan,
                       const __grid_constant__ Site site, const __grid_constant__ GivenIds given) {
  if (site.is_rehearsal) return;
  make_plan_by_blocks(Grid(site.barrier, site.timeout_ns), topo, plan, given);
}

const void* plan_blocks_kernel() { return reinterpret_cast<const void*>(heddle_plan_blocks); }

}  // namespace heddle
