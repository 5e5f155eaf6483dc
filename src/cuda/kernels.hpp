// The kernels that the library launches, for host code: which there are, and what all of them are told.
#pragma once

#include <array>
#include <cstdint>

#include "cuda/pump_state.hpp"
#include "device/grid_barrier.hpp"
#include "protocol/report.hpp"

namespace heddle {

enum class Step { plan, dispatch_send, dispatch_headers, dispatch_receive, combine_send, combine_headers, combine_receive };
inline constexpr int kSteps = 7;

struct DecodeState;

/// What a kernel is told of where it runs; the same for each replay of a captured launch.
struct Site {
  GridBarrier* barrier = nullptr;  // of the grid kernels
  uint64_t timeout_ns = 0;         // of the barrier
  Report* report = nullptr;        // null: nobody waits for one
  uint64_t ticket = 0;             // of this step; 0 in a graph
  PumpState* pump = nullptr;       // of whole calls
  DecodeState* decode = nullptr;   // of decode pumps
  uint64_t* ended = nullptr;       // in memory that the host can read; the ticket once the step has ended
  uint64_t* faulted = nullptr;     // in memory that the host can read; 1 once a step ended in a fault
  uint64_t* refused = nullptr;     // the same; seq of a call that a rank refused and no host waited for
  bool is_rehearsal = false;       // do nothing: the launch makes the driver load code and set memory aside
};

/// Arguments: plan (Topology, PlanView, Site), others (DirectPort, DispatchArgs or CombineArgs, Site).
struct Kernels {
  int max_threads = 0;
  std::array<const void*, kSteps> functions{};

  const void* of(Step step) const { return functions[static_cast<size_t>(step)]; }
};

const Kernels& warp_kernels();   // one warp
const Kernels& block_kernels();  // one block
const Kernels& grid_kernels();   // all blocks, resident at once

// Fast twins of steps, by all blocks; their arguments are the steps'.
const void* plan_blocks_kernel();  // plan_blocks.hpp; and GivenIds

/// All steps of a call in one launch, by all blocks. Arguments: (DirectPort, DispatchArgs or CombineArgs, Site, int movers).
struct WholeKernel {
  const void* function = nullptr;
  int threads = 0;

  int warps() const { return threads / 32; }
};

struct WholeKernels {
  WholeKernel dispatch;
  WholeKernel dispatch_belt;  // rows by bulk copies (dispatch_movers.hpp), of compute capability 9.0
  WholeKernel dispatch_cast;  // the same, where rows are cast
  WholeKernel combine;
  WholeKernel combine_belt;  // sums by bulk copies (combine_movers.hpp), of compute capability 9.0
};

const WholeKernels& whole_kernels();
WholeKernel dispatch_cast_kernel();  // of those

}  // namespace heddle
