// The GPUs of this process, for choosing one and for people.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace heddle {

struct CudaDeviceInfo {
  std::string name;
  int capability = 0;  // 90 = sm_90
  int num_sms = 0;
  std::size_t bytes = 0;
  std::string identity;  // the same in every process of the host
};

/// By device number; empty if cuda_problem() is not. Throws Error{system} if a device does not answer.
std::vector<CudaDeviceInfo> list_cuda_devices();

/// Whether two GPUs of this process read and write each other's memory.
bool can_access_peer(int device, int peer);

}  // namespace heddle
