// Windows in shared host memory that every GPU maps.
#pragma once

#include <chrono>
#include <vector>

#include "memory/cuda_vmm.hpp"

namespace heddle {

/// Collective; by the bootstrap's ranks, nullptr = far. Throws on all ranks or on none.
std::vector<Mapping> make_pinned_windows(Bootstrap&, const CudaWindows&, std::chrono::nanoseconds deadline);

}  // namespace heddle
