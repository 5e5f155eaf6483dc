// Times work on a GPU as its user sees it: from its first kernel to its usable output, caches cold, all ranks let go at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace heddle::bench {

void check(cudaError_t, const char* doing);

/// Of a GPU's processors.
double cycles_per_us(int device);

/// One for all ranks: kernels that wait until the host lets them go, so that ranks start within a microsecond.
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  /// The stream goes on once the gate shows `turn`, or after five seconds.
  void close(uint32_t turn, cudaStream_t) const;
  void open(uint32_t turn) const;

 private:
  volatile uint32_t* word_ = nullptr;
};

class Timer {
 public:
  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  /// Enqueues: flush of the L2, gate, `work` between two events.
  void enqueue(const Gate&, uint32_t turn, cudaStream_t, const std::function<void()>& work);
  /// Waits for what was enqueued.
  float microseconds() const;

 private:
  cudaEvent_t begin_{};
  cudaEvent_t end_{};
  void* flush_ = nullptr;
};

struct Spread {
  float median = 0;
  float p99 = 0;
  float least = 0;
};

Spread spread_of(std::vector<float> samples);

}  // namespace heddle::bench
