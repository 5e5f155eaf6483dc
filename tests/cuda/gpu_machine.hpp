// A rank's GPU, or its share of one.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cuda/cuda_backend.hpp"
#include "cuda/host_bytes.hpp"
#include "memory/cuda_vmm.hpp"
#include "support/machine.hpp"

namespace heddle::testing {

struct GpuOptions {
  CudaPath path = CudaPath::automatic;
  Workers workers = Workers::grid;
  size_t heap_bytes = 0;
  RankPairs apart{};  // pairs that meet in pinned host memory
  int num_sms = 0;    // 0: the GPU's share of this rank, so that all ranks' blocks fit
};

class GpuMachine : public Machine {
 public:
  /// Collective over ranks that are threads or processes. GPUs are dealt round robin.
  GpuMachine(Bootstrap&, const MachineOptions&, const GpuOptions&);

  CudaBackend& backend() override { return backend_; }
  void read(void* to, const void* from, size_t bytes) override {
    check_host_bytes(to, bytes);
    backend_.read(to, from, bytes);
  }
  void write(void* to, const void* from, size_t bytes) override {
    check_host_bytes(from, bytes);
    backend_.write(to, from, bytes);
  }
  std::byte* heap(int64_t bytes) override;
  bool has_heap() const override { return heap_.has_value(); }
  void deliver(int64_t offset, int64_t bytes) override;
  void deliver_counter(int64_t offset) override { deliver(offset, sizeof(uint64_t)); }
  PeerView windows() const { return memory_.memory.view(); }
  int device() const { return device_; }
  CudaPath path() const { return memory_.path; }

 private:
  PeerView reached() const;

  int device_;
  CudaMemory memory_;
  std::optional<CudaMemory> heap_;
  int held_reader_;
  std::shared_ptr<std::byte> held_;  // takes what this rank writes to that reader
  CudaBackend backend_;
};

MakeMachine gpu_machines(const GpuOptions& = {});

/// SMs of the smallest GPU that each of `ranks` ranks can have to itself.
int sms_for(int ranks);
int count_gpus();

/// Ends a test early, as skipped, where there is no GPU.
#define HEDDLE_NEEDS_GPU() \
  if (const std::string problem = ::heddle::cuda_problem(); !problem.empty()) GTEST_SKIP() << problem

}  // namespace heddle::testing
