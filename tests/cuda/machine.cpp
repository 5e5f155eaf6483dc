#include "cuda/machine.hpp"

#include <algorithm>
#include <cstring>

#include "bootstrap/bootstrap.hpp"
#include "cpu/cpu_backend.hpp"
#include "memory/cuda_devices.hpp"
#include "memory/symmetric_memory.hpp"

namespace heddle::testing {
namespace {

class CpuMachine : public Machine {
 public:
  CpuMachine(Bootstrap& bootstrap, const MachineOptions& options)
      : memory_(make_heap(bootstrap, options.window_bytes, options.timeout)),
        backend_(DirectPort(memory_.view(), PeerView{}), 1) {}

  Backend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }

 private:
  static void copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  SymmetricMemory memory_;
  CpuBackend<DirectPort> backend_;
};

class GpuMachine : public Machine {
 public:
  GpuMachine(Bootstrap& bootstrap, const MachineOptions& options)
      : device_(bootstrap.rank() % count_gpus()),
        memory_(make_cuda_windows(bootstrap,
                                  {.bytes = options.window_bytes, .device = device_, .path = options.path},
                                  options.timeout)),
        backend_({.device = device_,
                  .rank = bootstrap.rank(),
                  .ranks = bootstrap.size(),
                  .windows = memory_.memory.view(),
                  .windows_on_host = memory_.path == CudaPath::pinned,
                  .timeout_ns = static_cast<uint64_t>(options.timeout.count())}) {
    Launch launch = backend_.launch();
    launch.workers = options.workers;
    launch.num_sms = options.num_sms > 0 ? options.num_sms : sms_for(bootstrap.size());
    backend_.use(launch);
  }

  Backend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override { backend_.read(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { backend_.write(to, from, bytes); }

 private:
  int device_;
  CudaMemory memory_;
  CudaBackend backend_;
};

}  // namespace

int count_gpus() { return static_cast<int>(list_cuda_devices().size()); }

int sms_for(int ranks) {
  const auto gpus = list_cuda_devices();
  const auto count = static_cast<int>(gpus.size());
  const int used = std::min(count, ranks);
  const auto fewer = [](const auto& a, const auto& b) { return a.num_sms < b.num_sms; };
  const int least = std::min_element(gpus.begin(), gpus.begin() + used, fewer)->num_sms;
  return std::max(1, least / ((ranks + count - 1) / count));
}

std::unique_ptr<Machine> make_machine(Bootstrap& bootstrap, const MachineOptions& options) {
  if (options.gpu) return std::make_unique<GpuMachine>(bootstrap, options);
  return std::make_unique<CpuMachine>(bootstrap, options);
}

}  // namespace heddle::testing
