#include "cuda_host.hpp"

#include <heddle/heddle.hpp>

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "cuda/device_pool.hpp"
#include "cuda/stream_order.hpp"
#include "cuda_idle.hpp"
#include "cuda_timer.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle::bench {
namespace {

constexpr int kGroup = 20;  // reading the clock may take longer than one call
constexpr int kGroups = 50;
constexpr int kExperts = 32, kTopk = 8, kHidden = 7168;

double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

class HostBench {
 public:
  explicit HostBench(const std::string& json_path)
      : json_(json_path), text_(json_path.substr(0, json_path.rfind('.')) + ".txt") {
    check(cudaSetDevice(0), "choosing a GPU");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
  }

  void run() {
    text_ << fmt::format("{:52}{:>9}{:>9}\n", "us of the calling thread", "median", "90 %");
    json_ << "[";
    measure_cuda();
    measure_buffer();
    json_ << "\n]\n";
  }

 private:
  void time(const std::string& name, const std::function<void()>& call) {
    std::vector<double> samples;
    for (int group = -2; group < kGroups; ++group) {
      const double began = thread_us();
      for (int i = 0; i < kGroup; ++i) call();
      if (group >= 0) samples.push_back((thread_us() - began) / kGroup);
      check(cudaStreamSynchronize(stream_), "emptying the stream");  // its queue must not fill
    }
    std::sort(samples.begin(), samples.end());
    const double median = samples[samples.size() / 2], late = samples[samples.size() * 9 / 10];
    text_ << fmt::format("{:52}{:9.2f}{:9.2f}\n", name, median, late);
    json_ << fmt::format("{}\n {{\"name\": \"{}\", \"median_us\": {:.3f}, \"p90_us\": {:.3f}}}", comma_, name, median, late);
    comma_ = ",";
  }

  void measure_cuda() {
    time("launch, no arguments", [&] { launch_idle(0, 0, false, stream_); });
    time("launch, 3.5 KB of arguments", [&] { launch_idle(kIdleBytes, 0, false, stream_); });
    time("launch, the same and 64 KB of block memory", [&] { launch_idle(kIdleBytes, 65536, false, stream_); });
    time("launch, the same, may start early", [&] { launch_idle(kIdleBytes, 65536, true, stream_); });
    time("event recorded", [&] { check(cudaEventRecord(event_, stream_), "recording"); });
    time("event waited for", [&] { check(cudaStreamWaitEvent(stream_, event_, 0), "waiting"); });
    time("is a stream captured", [&] { is_capturing(stream_); });
    time("number of a stream", [&] {
      unsigned long long id = 0;
      check(cudaStreamGetId(stream_, &id), "asking");
    });
    time("device chosen and given back", [&] { const CudaDevice device(0); });
    DevicePool pool(0);
    time("block of the pool", [&] { pool.take(1024); });
    time("block of the pool, cudaMallocAsync", [&] {
      void* block = nullptr;
      check(cudaMallocAsync(&block, 1024, stream_), "allocating");
      check(cudaFreeAsync(block, stream_), "freeing");
    });
  }

  TensorView tensor(DType dtype, std::vector<int64_t> shape) {
    TensorView view{.data = nullptr, .dtype = dtype, .shape = std::move(shape), .strides = {}, .device = {DeviceKind::cuda, 0}};
    check(cudaMalloc(&view.data, static_cast<size_t>(view.numel()) * size_of(dtype)), "allocating");
    check(cudaMemset(view.data, 0, static_cast<size_t>(view.numel()) * size_of(dtype)), "clearing");
    return view;
  }

  void measure_buffer() {
    Buffer buffer(std::move(in_process(1, std::chrono::seconds(60))[0]), {.experts = kExperts, .device = {DeviceKind::cuda, 0}});
    const TensorView ids = tensor(DType::i64, {1, kTopk}), x = tensor(DType::bf16, {1, kHidden});
    const TensorView weights = tensor(DType::f32, {1, kTopk}), rows = tensor(DType::bf16, {kExperts, 1, kHidden});
    const std::vector<int64_t> spread{0, 4, 8, 12, 16, 20, 24, 28};
    check(cudaMemcpy(ids.data, spread.data(), sizeof(int64_t) * kTopk, cudaMemcpyHostToDevice), "writing ids");
    DispatchOptions options;
    options.on.stream = stream_;
    options.max_tokens = 1;
    options.layout = Layout::slab;
    options.quantise = Quantise::fp8;
    const Handle handle = buffer.dispatch(ids, {.x = x, .scales = {}, .weights = {}}, options).handle;
    time("Buffer: plan", [&] { buffer.plan(ids, options.on); });
    time("Buffer: dispatch by ids, slab, FP8", [&] { buffer.dispatch(ids, {.x = x, .scales = {}, .weights = {}}, options); });
    time("Buffer: the same in two halves", [&] {
      buffer.dispatch_send(ids, {.x = x, .scales = {}, .weights = {}}, options).receive();
    });
    CombineOptions back;
    back.on.stream = stream_;
    const CombineInput sums{.x = rows, .bias0 = {}, .bias1 = {}, .row_weights = {}, .weights = weights};
    time("Buffer: combine, weights given late", [&] { buffer.combine(handle, sums, back); });
    options.layout = Layout::token_major;
    options.quantise = Quantise::none;
    const Plan plan = buffer.plan(ids, options.on);
    time("Buffer: dispatch by plan, token-major, exact", [&] {
      buffer.dispatch(plan, {.x = x, .scales = {}, .weights = weights}, options);
    });
    options.fixed_size = true;
    time("Buffer: the same of fixed size", [&] {
      buffer.dispatch(plan, {.x = x, .scales = {}, .weights = weights}, options);
    });
  }

  std::ofstream json_, text_;
  const char* comma_ = "";
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

int run_host(int argc, char** argv) {
  HEDDLE_CHECK(argc == 2, "usage: heddle_cuda_bench host OUT.json");
  HostBench(argv[1]).run();
  return 0;
}

}  // namespace heddle::bench
