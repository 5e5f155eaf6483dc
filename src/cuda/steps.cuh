// Every step of protocol/ as kernels of one coop, over peers that are reached by load and store. Names: heddle_STEP_COOP.
// One file a coop instantiates them (steps_warp.cu, ...), so that they compile side by side; tests/cuda/kernels.txt lists them.
#pragma once

#include <type_traits>

#include "cuda/kernels.hpp"
#include "device/coop.cuh"
#include "device/grid.cuh"
#include "protocol/combine.hpp"
#include "protocol/dispatch.hpp"
#include "protocol/plan.hpp"
#include "protocol/poison.hpp"
#include "protocol/report.hpp"

namespace heddle {

template <class Coop>
__device__ Coop coop_at(const Site& site) {
  if constexpr (std::is_same_v<Coop, Grid>) return Grid(site.barrier, site.timeout_ns);
  else return Coop();
}

/// Tells the host how the step ended, if it wants to know. `more(report)` adds what only this step knows.
template <class Coop, class More>
__device__ void report_step(const Coop& coop, const Call& call, const Site& site, const More& more) {
  coop.sync();
  if (!is_leader(coop)) return;
  if (call.ctx.ledger->is_faulted() && site.faulted != nullptr) store_relaxed(site.faulted, 1);
  if (site.report == nullptr) return;
  report_call(call, *site.report);
  more(*site.report);
  publish_report(*site.report, site.ticket);
}

template <class Coop>
__device__ void run_plan(const Topology& topo, const PlanView& plan, const Site& site) {
  if (!site.is_rehearsal) make_plan(coop_at<Coop>(site), topo, plan);
}

template <class Coop, class Args, class Step, class More>
__device__ void run_step(const Args& args, const Site& site, const Step& step, const More& more) {
  if (site.is_rehearsal) return;
  const Coop coop = coop_at<Coop>(site);
  step(coop);
  report_step(coop, args.call, site, more);
}

/// Where nobody looks between the steps, one may follow a fault: it must not rely on what that step left undone.
template <class Coop>
__device__ bool goes_on(const Coop& coop, const Call& call) {
  const bool ok = !call.ctx.ledger->is_faulted();
  coop.sync();  // nobody claims a fault before all have looked
  return ok;
}

template <class Coop>
__device__ void receive_dispatch(const Coop& coop, const DirectPort& port, const DispatchArgs& args) {
  if (!goes_on(coop, args.call) || !dispatch_receive(coop, port, args)) poison_dispatch(coop, args);
}

template <class Coop>
__device__ void receive_combine(const Coop& coop, const DirectPort& port, const CombineArgs& args) {
  if (!goes_on(coop, args.call) || !combine_receive(coop, port, args)) poison_combine(coop, args);
}

}  // namespace heddle

// Arguments are read where the driver put them (__grid_constant__): a copy of 3 KB a thread would go to local memory.
#define HEDDLE_STEP(name, coop, Coop, Args, step, more)                                               \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                                     \
      heddle_##name##_##coop(const __grid_constant__ DirectPort port, const __grid_constant__ Args args, \
                             const __grid_constant__ Site site) {                                     \
    run_step<Coop>(args, site, [&](const Coop& own) { step(own, port, args); },                       \
                   [&](Report& report) { more; });                                                    \
  }

#define HEDDLE_STEPS(coop, Coop)                                                                      \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                                     \
      heddle_plan_##coop(const __grid_constant__ Topology topo, const __grid_constant__ PlanView plan, \
                         const __grid_constant__ Site site) {                                         \
    run_plan<Coop>(topo, plan, site);                                                                 \
  }                                                                                                   \
  HEDDLE_STEP(dispatch_send, coop, Coop, DispatchArgs, dispatch_send, (void)report)                   \
  HEDDLE_STEP(dispatch_headers, coop, Coop, DispatchArgs, dispatch_headers, report_sizes(args, report)) \
  HEDDLE_STEP(dispatch_receive, coop, Coop, DispatchArgs, receive_dispatch, report_drops(args, report)) \
  HEDDLE_STEP(combine_send, coop, Coop, CombineArgs, combine_send, (void)report)                      \
  HEDDLE_STEP(combine_headers, coop, Coop, CombineArgs, combine_headers, (void)report)                \
  HEDDLE_STEP(combine_receive, coop, Coop, CombineArgs, receive_combine, (void)report)                \
  const Kernels& coop##_kernels() {                                                                   \
    static const Kernels kernels{                                                                     \
        .max_threads = Coop::kMaxThreads,                                                             \
        .functions = {reinterpret_cast<const void*>(heddle_plan_##coop),                              \
                      reinterpret_cast<const void*>(heddle_dispatch_send_##coop),                     \
                      reinterpret_cast<const void*>(heddle_dispatch_headers_##coop),                  \
                      reinterpret_cast<const void*>(heddle_dispatch_receive_##coop),                  \
                      reinterpret_cast<const void*>(heddle_combine_send_##coop),                      \
                      reinterpret_cast<const void*>(heddle_combine_headers_##coop),                   \
                      reinterpret_cast<const void*>(heddle_combine_receive_##coop)}};                 \
    return kernels;                                                                                   \
  }
