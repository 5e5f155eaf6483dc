#include "cuda/architectures.hpp"

#include <fmt/format.h>

#include "cuda/take_ids.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

// As nvcc was told, oldest first; 900 = sm_90.
constexpr int kBuilt[] = {__CUDA_ARCH_LIST__};

}  // namespace

std::string architecture_problem(int device) {
  const CudaDevice current(device);
  cudaFuncAttributes ignored{};
  const cudaError_t error = cudaFuncGetAttributes(&ignored, take_ids_kernel());
  if (error == cudaSuccess) return "";
  cudaGetLastError();
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "asking for a GPU's capability");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "asking for a GPU's capability");
  if (error == cudaErrorNoKernelImageForDevice) {
    return fmt::format(
        "GPU {} is sm_{}{}, and this build has kernels for sm_{} and later GPUs; needed: sm_80 at least, and a build "
        "for it (CMAKE_CUDA_ARCHITECTURES)",
        device, major, minor, kBuilt[0] / 10);
  }
  return fmt::format("GPU {} (sm_{}{}) does not load the kernels: {}", device, major, minor, cudaGetErrorString(error));
}

}  // namespace heddle
