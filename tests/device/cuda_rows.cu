#include "cuda_rows.hpp"

#include <stdexcept>
#include <string>

#include "device/coop.cuh"
#include "device/copy.hpp"
#include "device/quantise.hpp"
#include "device/rows.hpp"

namespace heddle::testing {
namespace {

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
}

// The last warp of a block works, so that nothing may depend on threadIdx.x being the lane.
template <class Work>
__global__ void by_block(Work work) {
  const Block block;
  if (block.index() == block.size() - 1) work(block);
}

template <class Work>
__global__ void by_warp(Work work) {
  work(Warp{});
}

template <class Work>
__global__ void by_solo(Work work) {
  work(Solo{});
}

template <class Work>
void launch(Worker worker, Work work) {
  switch (worker) {
    case Worker::warp: by_warp<<<1, 32>>>(work); break;
    case Worker::block: by_block<<<1, 128>>>(work); break;
    case Worker::solo: by_solo<<<1, 1>>>(work); break;
  }
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

struct Sum {
  SumArgs args;
  const Term* terms;
  int num_terms;
  template <class Coop>
  __device__ void operator()(const Coop& coop) const {
    sum_rows(coop, args, terms, num_terms);
  }
};

struct QuantiseOne {
  QuantiseArgs args;
  template <class Coop>
  __device__ void operator()(const Coop& coop) const {
    quantise_row(coop, args);
  }
};

struct Copy {
  void* dst;
  const void* src;
  size_t bytes;
  template <class Coop>
  __device__ void operator()(const Coop& coop) const {
    copy_bytes(coop, dst, src, bytes);
  }
};

struct Fill {
  void* dst;
  uint8_t value;
  size_t bytes;
  template <class Coop>
  __device__ void operator()(const Coop& coop) const {
    fill_bytes(coop, dst, value, bytes);
  }
};

struct CopyStrided {
  Strided<uint32_t> dst;
  Strided<const uint32_t> src;
  int64_t count;
  template <class Coop>
  __device__ void operator()(const Coop& coop) const {
    copy_strided_words(coop, dst, src, count);
  }
};

__global__ void cast_each(const float* values, CastBits* casts, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) casts[i] = cast_all(values[i]);
}

}  // namespace

bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

GpuBytes::GpuBytes(const std::vector<uint8_t>& bytes) : data_(nullptr), size_(bytes.size()) {
  if (size_ == 0) return;
  check(cudaMalloc(&data_, size_));
  check(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice));
}

GpuBytes::GpuBytes(GpuBytes&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }

GpuBytes::~GpuBytes() { cudaFree(data_); }

std::vector<uint8_t> GpuBytes::read() const {
  std::vector<uint8_t> bytes(size_);
  if (size_ > 0) check(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDeviceToHost));
  return bytes;
}

void gpu_sum(Worker worker, const SumArgs& args, const Term* terms, int num_terms) {
  launch(worker, Sum{args, terms, num_terms});
}

void gpu_quantise(Worker worker, const QuantiseArgs& args) { launch(worker, QuantiseOne{args}); }

void gpu_copy(Worker worker, void* dst, const void* src, size_t bytes) { launch(worker, Copy{dst, src, bytes}); }

void gpu_fill(Worker worker, void* dst, uint8_t value, size_t bytes) { launch(worker, Fill{dst, value, bytes}); }

void gpu_copy_strided(Worker worker, Strided<uint32_t> dst, Strided<const uint32_t> src, int64_t count) {
  launch(worker, CopyStrided{dst, src, count});
}

void gpu_cast_all(const float* values, CastBits* casts, int count) {
  cast_each<<<1, 1024>>>(values, casts, count);
  check(cudaGetLastError());
  check(cudaDeviceSynchronize());
}

}  // namespace heddle::testing
