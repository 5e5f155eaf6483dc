// A kernel that does nothing, for what its launch costs.
#pragma once

#include <cuda_runtime_api.h>

namespace heddle::bench {

/// As many as the library's largest kernels take.
inline constexpr int kIdleBytes = 3584;

/// `bytes` of arguments: 0, or all. `early`: it may start before the launch before has ended.
void launch_idle(int bytes, int shared_bytes, bool early, cudaStream_t);

}  // namespace heddle::bench
