#include "cuda/expert_gemm.hpp"

#include "cuda/gpu_machine.hpp"
#include "cuda/rounds.hpp"
#include "cuda/streams.hpp"
#include "device/clock.hpp"

namespace heddle::testing {
namespace {

__device__ uint64_t load_acquire_gpu(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

/// done[expert]: 1 = it is, 2 = it gave up.
__global__ void gemm(GemmArgs args, volatile int* done) {
  __shared__ bool here;
  const int expert = static_cast<int>(blockIdx.x);
  if (threadIdx.x == 0) {
    const uint64_t deadline = clock_ns() + uint64_t{kGemmSeconds} * 1'000'000'000;
    do {
      here = load_acquire_gpu(args.ready + expert) >= args.goal;
    } while (!here && clock_ns() < deadline);
  }
  __syncthreads();
  const int count = here ? args.counts[expert] : 0;
  for (int item = threadIdx.x; item < count * GemmArgs::kColumns; item += blockDim.x) {
    const int row = item / GemmArgs::kColumns, n = item % GemmArgs::kColumns;
    args.y[int64_t{expert} * args.group * GemmArgs::kColumns + item] = args.element(expert, row, n);
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) done[expert] = here ? 1 : 2;
}

class GpuGemm : public ExpertGemm {
 public:
  GpuGemm(const GemmArgs& args, int device) : args_(args), experts_(args.experts), device_(device) {
    use_gpu(device);
    stream_.emplace();
    cudaHostAlloc(reinterpret_cast<void**>(const_cast<int**>(&done_)), static_cast<size_t>(experts_) * sizeof(int), cudaHostAllocMapped);
    for (int expert = 0; expert < experts_; ++expert) done_[expert] = 0;
    cudaFuncAttributes loads{};
    cudaFuncGetAttributes(&loads, gemm);
  }
  ~GpuGemm() override {
    stream_->wait();
    cudaFreeHost(const_cast<int*>(done_));
  }
  void start() override {
    use_gpu(device_);
    gemm<<<experts_, 128, 0, stream_->get()>>>(args_, done_);
  }
  bool is_done(int expert) const override { return done_[expert] == 1; }
  bool finish() override {
    stream_->wait();
    bool all = true;
    for (int expert = 0; expert < experts_; ++expert) all = all && is_done(expert);
    return all;
  }

 private:
  GemmArgs args_;
  int experts_;
  int device_;
  std::optional<Stream> stream_;
  volatile int* done_ = nullptr;
};

}  // namespace

MakeGemm gpu_gemms(int device) {
  return [device](const GemmArgs& args) { return std::make_unique<GpuGemm>(args, device); };
}

}  // namespace heddle::testing
