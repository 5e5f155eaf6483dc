#include "cuda/rounds.hpp"

#include "base/dtype.hpp"
#include "base/error.hpp"

namespace heddle::testing {
namespace {

__device__ float value_at(const RowPattern& pattern, int token, int column) {
  uint32_t h = (pattern.round * 131u + pattern.rank) * 0x9E3779B1u + token * 0x85EBCA77u + column * 0xC2B2AE3Du;
  h ^= h >> 15;
  h *= 0x2C1B3C6Du;
  h ^= h >> 13;
  return static_cast<float>(static_cast<int>(h % 5) - 2);
}

__global__ void fill(bf16* x, RowPattern pattern) {
  for (int token = blockIdx.x; token < pattern.tokens; token += gridDim.x) {
    for (int column = threadIdx.x; column < pattern.hidden; column += blockDim.x) {
      x[int64_t{token} * pattern.hidden + column] = to_bf16(value_at(pattern, token, column));
    }
  }
}

__global__ void check(const bf16* x, const int32_t* hits, RowPattern pattern, unsigned long long* bad) {
  for (int token = blockIdx.x; token < pattern.tokens; token += gridDim.x) {
    int wrong = 0;
    for (int column = threadIdx.x; column < pattern.hidden; column += blockDim.x) {
      const float wanted = value_at(pattern, token, column) * static_cast<float>(hits[token]);
      const float seen = to_float(x[int64_t{token} * pattern.hidden + column]);
      wrong |= !(seen == wanted);  // NaN too
    }
    if (__syncthreads_or(wrong) && threadIdx.x == 0) atomicAdd(bad, 1ull);
  }
}

__global__ void noise(uint4* memory, size_t words, int repeats) {
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x) {
      uint4 word = memory[i];
      word.x += 1;
      memory[words + i] = word;
    }
  }
}

void check_cuda(cudaError_t error, const char* doing) {
  if (error != cudaSuccess) fail(ErrorCode::system, "{}: {}", doing, cudaGetErrorString(error));
}

void check_launch() { check_cuda(cudaGetLastError(), "launching"); }

}  // namespace

constexpr int kBlocks = 64;

void use_gpu(int device) { check_cuda(cudaSetDevice(device), "choosing a GPU"); }

void fill_rows(void* x, const RowPattern& pattern, CUstream_st* stream) {
  fill<<<kBlocks, 256, 0, stream>>>(static_cast<bf16*>(x), pattern);
  check_launch();
}

void count_bad_rows(const void* x, const int32_t* hits, const RowPattern& pattern, unsigned long long* bad,
                    CUstream_st* stream) {
  check<<<kBlocks, 256, 0, stream>>>(static_cast<const bf16*>(x), hits, pattern, bad);
  check_launch();
}

Noise::Noise(void* memory, size_t bytes, int blocks)
    : memory_(memory), words_(bytes / 2 / sizeof(uint4)), blocks_(blocks) {
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

Noise::~Noise() {
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
}

void Noise::go_on() {
  constexpr size_t kBytesPerBlock = 50'000'000;  // an SM moves about 50 GB/s
  const size_t repeats = 1 + kBytesPerBlock * static_cast<size_t>(blocks_) / (words_ * sizeof(uint4));
  noise<<<blocks_, 512, 0, stream_>>>(static_cast<uint4*>(memory_), words_, static_cast<int>(repeats));
  check_launch();
}

Graph::Graph(CUstream_st* stream, const std::function<void()>& work) : stream_(stream) {
  cudaGraph_t captured = nullptr;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  work();
  check_cuda(cudaStreamEndCapture(stream, &captured), "ending a capture");
  check_cuda(cudaGraphInstantiate(&graph_, captured, 0), "instantiating a graph");
  check_cuda(cudaGraphDestroy(captured), "destroying a graph");
  check_cuda(cudaGraphUpload(graph_, stream), "uploading a graph");
  check_cuda(cudaStreamSynchronize(stream), "uploading a graph");
}

Graph::~Graph() { cudaGraphExecDestroy(graph_); }

void Graph::replay() const { check_cuda(cudaGraphLaunch(graph_, stream_), "launching a graph"); }

}  // namespace heddle::testing
