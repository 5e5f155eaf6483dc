// What the link between two GPUs can do, measured beside what is compared with it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace heddle::bench {

/// Copies with `blocks` blocks of 1024 threads by 16-byte stores; both aligned to 16.
void copy_by_kernel(void* to, const void* from, size_t bytes, int blocks, cudaStream_t);

}  // namespace heddle::bench
