#include "memory/cuda_devices.hpp"

#include "memory/cuda_driver.hpp"
#include "memory/cuda_vmm.hpp"

namespace heddle {

std::vector<CudaDeviceInfo> list_cuda_devices() {
  std::vector<CudaDeviceInfo> devices;
  if (!cuda_problem().empty()) return devices;
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting GPUs");
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp found{};
    check_cuda(cudaGetDeviceProperties(&found, device), "asking for a GPU's properties");
    devices.push_back({.name = found.name, .capability = 10 * found.major + found.minor,
                       .num_sms = found.multiProcessorCount, .bytes = found.totalGlobalMem,
                       .identity = std::string(found.uuid.bytes, sizeof found.uuid.bytes)});
  }
  return devices;
}

bool can_access_peer(int device, int peer) {
  if (device == peer) return true;
  int can = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can, device, peer), "asking whether a GPU reaches another");
  return can != 0;
}

}  // namespace heddle
