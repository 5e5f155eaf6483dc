// Every step of protocol/ as kernels of one coop, over peers that are reached by load and store. Names: heddle_STEP_COOP.
// One file a coop instantiates them (steps_warp.cu, ...), so that they compile side by side; tests/cuda/kernels.txt lists them.
#pragma once

#include "device/coop.cuh"
#include "protocol/combine.hpp"
#include "protocol/dispatch.hpp"
#include "protocol/plan.hpp"

// Arguments are read where the driver put them (__grid_constant__): a copy of 3 KB a thread would go to local memory.
#define HEDDLE_STEP(step, coop, Coop, Args)                                                   \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                             \
      heddle_##step##_##coop(const __grid_constant__ DirectPort port, const __grid_constant__ Args args) { \
    heddle::step(Coop(), port, args);                                                         \
  }

#define HEDDLE_STEPS(coop, Coop)                                                              \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                             \
      heddle_plan_##coop(const __grid_constant__ Topology topo, const __grid_constant__ PlanView view) { \
    heddle::make_plan(Coop(), topo, view);                                                    \
  }                                                                                           \
  HEDDLE_STEP(dispatch_send, coop, Coop, DispatchArgs)                                        \
  HEDDLE_STEP(dispatch_headers, coop, Coop, DispatchArgs)                                     \
  HEDDLE_STEP(dispatch_receive, coop, Coop, DispatchArgs)                                     \
  HEDDLE_STEP(combine_send, coop, Coop, CombineArgs)                                          \
  HEDDLE_STEP(combine_headers, coop, Coop, CombineArgs)                                       \
  HEDDLE_STEP(combine_receive, coop, Coop, CombineArgs)
