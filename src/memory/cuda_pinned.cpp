#include "memory/cuda_pinned.hpp"

#include "base/error.hpp"
#include "bootstrap/together.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/handover.hpp"
#include "memory/memfd.hpp"

namespace heddle {
namespace {

/// Maps for the CPU, then for all GPUs of this process at the same addresses.
Mapping map_pinned(const Descriptor& memory, std::size_t bytes) {
  const Mapping mapped = map_shared(memory.number(), bytes);
  check_cuda(cudaHostRegister(mapped.get(), whole_pages(bytes), cudaHostRegisterPortable | cudaHostRegisterMapped),
             fmt::format("pinning {} bytes of host memory", whole_pages(bytes)));
  Mapping pinned(mapped.get(), [mapped](std::byte* first) { cudaHostUnregister(first); });
  void* seen = nullptr;
  check_cuda(cudaHostGetDevicePointer(&seen, pinned.get(), 0), "mapping host memory for a GPU");
  if (seen != pinned.get()) fail(ErrorCode::system, "this GPU maps host memory at other addresses than the CPU's");
  return pinned;
}

}  // namespace

std::vector<Mapping> make_pinned_windows(Bootstrap& bootstrap, const CudaWindows& wanted,
                                         std::chrono::nanoseconds deadline) {
  const Descriptor mine =
      together(bootstrap, "pinned: make own window", [&] { return make_sealed_memory(wanted.bytes); });
  const auto theirs = exchange_descriptors(bootstrap, mine, deadline);
  return together(bootstrap, "pinned: map windows", [&] {
    std::vector<Mapping> windows(theirs.size());
    windows[bootstrap.rank()] = map_pinned(mine, wanted.bytes);
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      if (!theirs[peer]) continue;
      check_sealed_memory(theirs[peer], wanted.bytes, peer);
      windows[peer] = map_pinned(theirs[peer], wanted.bytes);
    }
    return windows;
  });
}

}  // namespace heddle
