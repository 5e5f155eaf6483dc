#include "cuda_idle.hpp"

#include "cuda_timer.hpp"

namespace heddle::bench {
namespace {

struct Arguments {
  char bytes[kIdleBytes];
};

__global__ void idle() {}
__global__ void idle_with(Arguments) {}

}  // namespace

void launch_idle(int bytes, int shared_bytes, bool early, cudaStream_t stream) {
  static Arguments given{};
  const auto kernel = reinterpret_cast<const void*>(bytes > 0 ? reinterpret_cast<void (*)()>(&idle_with) : &idle);
  void* arguments[] = {&given};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(16);
  config.blockDim = dim3(512);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  if (shared_bytes > 49152) {
    static const cudaError_t allowed =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    check(allowed, "allowing block memory");
  }
  check(cudaLaunchKernelExC(&config, kernel, arguments), "launching an idle kernel");
}

}  // namespace heddle::bench
