// A build without a CUDA compiler.
#include "base/error.hpp"
#include "memory/cuda_devices.hpp"
#include "memory/cuda_segments.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle {

std::string cuda_problem() { return "this build of heddle has no CUDA support; needed: a build with HEDDLE_CUDA=ON"; }

CudaMemory make_cuda_windows(Bootstrap&, const CudaWindows&, std::chrono::nanoseconds, std::span<const int>) {
  fail(ErrorCode::system, "{}", cuda_problem());
}

std::shared_ptr<Segments> cuda_segments(int, const std::vector<int>&) { fail(ErrorCode::system, "{}", cuda_problem()); }

std::vector<CudaDeviceInfo> list_cuda_devices() { return {}; }

bool can_access_peer(int device, int peer) { return device == peer; }

}  // namespace heddle
