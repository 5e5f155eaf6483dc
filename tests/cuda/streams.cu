#include "cuda/streams.hpp"

#include <chrono>
#include <thread>

#include "base/error.hpp"

namespace heddle::testing {
namespace {

void check_cuda(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) fail(ErrorCode::system, "{}: {}", doing, cudaGetErrorString(error));
}

}  // namespace

Stream::Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }

void Stream::wait() const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (cudaError_t state; (state = cudaStreamQuery(stream_)) != cudaSuccess;) {
    if (state != cudaErrorNotReady) check_cuda(state, "waiting for a stream");
    if (std::chrono::steady_clock::now() > deadline) fail(ErrorCode::timeout, "a stream did not end");
    std::this_thread::yield();
  }
}

std::shared_ptr<std::byte> take_on_gpu(size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, bytes), "taking GPU memory");
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory), [](std::byte* at) { cudaFree(at); });
  check_cuda(cudaMemset(memory, 0, bytes), "clearing GPU memory");
  check_cuda(cudaDeviceSynchronize(), "clearing GPU memory");
  return owner;
}

void copy_on_gpu(void* to, const void* from, size_t bytes, const Stream& stream) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()), "copying on a GPU");
}

Event::Event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
Event::~Event() { cudaEventDestroy(event_); }

void Event::record(const Stream& stream) const { check_cuda(cudaEventRecord(event_, stream.get()), "recording an event"); }

}  // namespace heddle::testing
