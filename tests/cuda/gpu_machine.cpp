#include "cuda/gpu_machine.hpp"

#include <algorithm>

#include "bootstrap/bootstrap.hpp"
#include "cuda/rounds.hpp"
#include "cuda/streams.hpp"
#include "memory/cuda_devices.hpp"

namespace heddle::testing {
namespace {

std::optional<CudaMemory> make_heap_of(Bootstrap& bootstrap, const MachineOptions& options, const GpuOptions& gpu, int device) {
  if (gpu.heap_bytes == 0) return std::nullopt;
  return make_cuda_windows(bootstrap, {.bytes = gpu.heap_bytes, .device = device, .path = gpu.path}, options.timeout);
}

std::shared_ptr<std::byte> make_held(int device, size_t bytes) {
  use_gpu(device);
  return take_on_gpu(bytes);
}

}  // namespace

GpuMachine::GpuMachine(Bootstrap& bootstrap, const MachineOptions& options, const GpuOptions& gpu)
    : device_(bootstrap.rank() % count_gpus()),
      memory_(make_cuda_windows(
          bootstrap,
          {.bytes = options.window_bytes,
           .device = device_,
           .path = gpu.path,
           .layout = Window(bootstrap.size(), static_cast<int64_t>(options.window_bytes), options.words),
           .apart = gpu.apart},
          options.timeout)),
      heap_(make_heap_of(bootstrap, options, gpu, device_)),
      held_reader_(bootstrap.rank() == options.held_writer ? options.held_reader : -1),
      held_(held_reader_ < 0 ? nullptr : make_held(device_, options.window_bytes)),
      backend_({.device = device_,
                .rank = bootstrap.rank(),
                .ranks = bootstrap.size(),
                .windows = reached(),
                .windows_on_host = memory_.path == CudaPath::pinned,
                .heap = heap_ ? heap_->memory.view() : PeerView{},
                .timeout_ns = static_cast<uint64_t>(options.timeout.count())}) {
  Launch launch = backend_.launch();
  launch.workers = gpu.workers;
  launch.num_sms = gpu.num_sms > 0 ? gpu.num_sms : sms_for(bootstrap.size());
  backend_.use(launch);
}

PeerView GpuMachine::reached() const {
  PeerView view = windows();
  if (held_) view.windows[held_reader_] = held_.get();
  return view;
}

/// Returns when it is there, though kernels wait for it.
void GpuMachine::deliver(int64_t offset, int64_t bytes) {
  use_gpu(device_);
  const Stream stream;
  copy_on_gpu(windows().peer(held_reader_) + offset, held_.get() + offset, static_cast<size_t>(bytes), stream);
  stream.wait();
}

std::byte* GpuMachine::heap(int64_t bytes) {
  if (!heap_ || static_cast<size_t>(bytes) > heap_->memory.bytes()) return nullptr;
  return heap_->memory.local();
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
