// What a test of the steps runs on: a CPU or a GPU, each with its own memory. One object a rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "cuda/cuda_backend.hpp"
#include "memory/cuda_vmm.hpp"
#include "protocol/backend.hpp"

namespace heddle::testing {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual Backend& backend() = 0;
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;
};

struct MachineOptions {
  bool gpu = false;
  size_t window_bytes = size_t{8} << 20;
  std::chrono::nanoseconds timeout = std::chrono::seconds(20);
  CudaPath path = CudaPath::automatic;
  Workers workers = Workers::grid;
  int num_sms = 0;  // 0: the GPU's share of this rank, so that all ranks' blocks fit
};

/// Collective over the ranks, which are threads. GPUs are dealt round robin.
std::unique_ptr<Machine> make_machine(Bootstrap&, const MachineOptions&);

/// SMs of the smallest GPU that each of `ranks` ranks can have to itself.
int sms_for(int ranks);
int count_gpus();

/// Ends a test early, as skipped, where there is no GPU.
#define HEDDLE_NEEDS_GPU() \
  if (const std::string problem = ::heddle::cuda_problem(); !problem.empty()) GTEST_SKIP() << problem

}  // namespace heddle::testing
