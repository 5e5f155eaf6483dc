#include "cuda/host_words.hpp"

#include <cstring>

#include "base/error.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {

std::shared_ptr<std::byte> map_host_words(size_t bytes) {
  void* host = nullptr;
  check_cuda(cudaHostAlloc(&host, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
             fmt::format("pinning {} bytes of host memory", bytes));
  std::shared_ptr<std::byte> words(static_cast<std::byte*>(host), [](std::byte* first) { cudaFreeHost(first); });
  void* seen = nullptr;
  check_cuda(cudaHostGetDevicePointer(&seen, host, 0), "mapping host memory for a GPU");
  if (seen != host) fail(ErrorCode::system, "this GPU maps host memory at other addresses than the CPU's");
  std::memset(host, 0, bytes);
  return words;
}

}  // namespace heddle
