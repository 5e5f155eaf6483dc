#include "cuda/gpu_machine.hpp"

#include <algorithm>

#include "bootstrap/bootstrap.hpp"
#include "memory/cuda_devices.hpp"

namespace heddle::testing {

GpuMachine::GpuMachine(Bootstrap& bootstrap, const MachineOptions& options, const GpuOptions& gpu)
    : device_(bootstrap.rank() % count_gpus()),
      memory_(make_cuda_windows(bootstrap, {.bytes = options.window_bytes, .device = device_, .path = gpu.path},
                                options.timeout)),
      backend_({.device = device_,
                .rank = bootstrap.rank(),
                .ranks = bootstrap.size(),
                .windows = memory_.memory.view(),
                .windows_on_host = memory_.path == CudaPath::pinned,
                .timeout_ns = static_cast<uint64_t>(options.timeout.count())}) {
  Launch launch = backend_.launch();
  launch.workers = gpu.workers;
  launch.num_sms = gpu.num_sms > 0 ? gpu.num_sms : sms_for(bootstrap.size());
  backend_.use(launch);
}

MakeMachine gpu_machines(const GpuOptions& gpu) {
  return [gpu](Bootstrap& bootstrap, const MachineOptions& options) {
    return std::make_unique<GpuMachine>(bootstrap, options, gpu);
  };
}

int count_gpus() { return static_cast<int>(list_cuda_devices().size()); }

int sms_for(int ranks) {
  const auto gpus = list_cuda_devices();
  const auto count = static_cast<int>(gpus.size());
  const int used = std::min(count, ranks);
  const auto fewer = [](const auto& a, const auto& b) { return a.num_sms < b.num_sms; };
  const int least = std::min_element(gpus.begin(), gpus.begin() + used, fewer)->num_sms;
  return std::max(1, least / ((ranks + count - 1) / count));
}

}  // namespace heddle::testing
