// Windows where some pairs of ranks reach one another's GPU memory and others do not (patches.hpp).
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "memory/cuda_vmm.hpp"

namespace heddle {

/// Collective. Pairs of the bootstrap's ranks of which one cannot map the other's GPU memory; the same on all of them.
RankPairs find_apart(Bootstrap&, int device, std::chrono::nanoseconds deadline);

/// Collective; by the bootstrap's ranks. `wanted.layout` says which rank writes where, `wanted.apart` who cannot reach
/// whom. All ranks of one host. Throws on all ranks or on none.
std::vector<Mapping> make_patchwork(Bootstrap&, const CudaWindows& wanted, std::chrono::nanoseconds deadline);

}  // namespace heddle
