// The GEMM of support/expert_gemm.hpp as a kernel: a block an expert, which polls its word in GPU memory.
#pragma once

#include "support/expert_gemm.hpp"

namespace heddle::testing {

/// On this GPU, on a stream of its own.
MakeGemm gpu_gemms(int device);

}  // namespace heddle::testing
