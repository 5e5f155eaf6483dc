// A build without a CUDA compiler.
#include "base/error.hpp"
#include "cuda/cuda_parts.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle {

std::unique_ptr<Backend> make_cuda_backend(const CudaParts&) { fail(ErrorCode::system, "{}", cuda_problem()); }

}  // namespace heddle
