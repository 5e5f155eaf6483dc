// Kernels of the full-load test: rows that change from round to round, and their exact check where they come back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

struct CUstream_st;
struct CUgraphExec_st;

namespace heddle::testing {

/// For this thread; the others below launch on it.
void use_gpu(int device);

/// Whole numbers from -2 to 2, other ones for each rank, token, column and round.
struct RowPattern {
  int rank = 0;
  int tokens = 0;
  int hidden = 0;
  uint32_t round = 0;
};

/// x is [tokens][hidden] bf16.
void fill_rows(void* x, const RowPattern&, CUstream_st*);

/// Adds to *bad the rows that are not the pattern times hits[token]: exact in bf16 for up to 64 hits.
void count_bad_rows(const void* x, const int32_t* hits, const RowPattern&, unsigned long long* bad, CUstream_st*);

/// Another kernel on the same GPU: copies one half of its memory to the other, on a stream of its own.
class Noise {
 public:
  Noise(void* memory, size_t bytes, int blocks);
  ~Noise();
  Noise(const Noise&) = delete;
  /// About a millisecond more of it.
  void go_on();

 private:
  void* memory_;
  size_t words_;
  int blocks_;
  CUstream_st* stream_ = nullptr;
};

/// What `work` enqueues on the stream, to be run again and again.
class Graph {
 public:
  Graph(CUstream_st*, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  void replay() const;

 private:
  CUstream_st* stream_;
  CUgraphExec_st* graph_ = nullptr;
};

}  // namespace heddle::testing
