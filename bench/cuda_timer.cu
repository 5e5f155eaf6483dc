#include "cuda_timer.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace heddle::bench {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;

__global__ void wait_for(const volatile uint32_t* word, uint32_t turn) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*word < turn && now - start < 5'000'000'000ull);
}

}  // namespace

void check(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) fail(ErrorCode::system, "{}: {}", doing, cudaGetErrorString(error));
}

double cycles_per_us(int device) {
  int khz = 0;
  check(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device), "asking for a GPU's clock rate");
  return khz * 1e-3;
}

Gate::Gate() {
  void* word = nullptr;
  check(cudaHostAlloc(&word, sizeof(uint32_t), cudaHostAllocPortable | cudaHostAllocMapped), "making a gate");
  word_ = static_cast<volatile uint32_t*>(word);
  *word_ = 0;
}

Gate::~Gate() { cudaFreeHost(const_cast<uint32_t*>(word_)); }

void Gate::close(uint32_t turn, cudaStream_t stream) const {
  wait_for<<<1, 1, 0, stream>>>(word_, turn);
  check(cudaGetLastError(), "closing the gate");
}

void Gate::open(uint32_t turn) const { *word_ = turn; }

Timer::Timer() {
  check(cudaEventCreate(&begin_), "making an event");
  check(cudaEventCreate(&end_), "making an event");
  check(cudaMalloc(&flush_, kFlushBytes), "making room to flush the L2");
}

Timer::~Timer() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
  cudaFree(flush_);
}

void Timer::enqueue(const Gate& gate, uint32_t turn, cudaStream_t stream, const std::function<void()>& work) {
  check(cudaMemsetAsync(flush_, static_cast<int>(turn), kFlushBytes, stream), "flushing the L2");
  gate.close(turn, stream);
  check(cudaEventRecord(begin_, stream), "recording an event");
  work();
  check(cudaEventRecord(end_, stream), "recording an event");
}

float Timer::microseconds() const {
  check(cudaEventSynchronize(end_), "waiting for an event");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading events");
  return milliseconds * 1000;
}

Spread spread_of(std::vector<float> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t count = samples.size();
  return {.median = samples[count / 2], .p99 = samples[std::min(count - 1, count * 99 / 100)], .least = samples[0]};
}

}  // namespace heddle::bench
