// Every step of protocol/ as kernels of one coop, over peers that are reached by load and store. Names: heddle_STEP_COOP.
// One file a coop instantiates them (steps_warp.cu, ...), so that they compile side by side; tests/cuda/kernels.txt lists them.
#pragma once

#include <type_traits>

#include "cuda/kernels.hpp"
#include "cuda/owed.hpp"
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

/// A call that another rank refused has no result either (I7). Where no host waits, its outputs have to say so.
__device__ inline bool is_refused_unheard(const Call& call, const Site& site) {
  return site.report == nullptr && call.state->refused_by >= 0;
}

/// Where no host waits for the step, nobody else would tell the peers of its fault.
__device__ inline void tell_of_fault(const DirectPort& port, const Call& call, const Site& site) {
  if (!call.ctx.ledger->is_faulted()) return;
  if (site.faulted != nullptr) store_relaxed(site.faulted, 1);
  if (site.report == nullptr) publish_fault(port, call.ctx);
}

/// Tells the host how the step ended, if it wants to know. `more(report)` adds what only this step knows.
template <class Coop, class More>
__device__ void report_step(const Coop& coop, const DirectPort& port, const Call& call, const Site& site, const More& more) {
  coop.sync();
  if (!is_leader(coop)) return;
  tell_of_fault(port, call, site);
  if (is_refused_unheard(call, site) && site.refused != nullptr) store_relaxed(site.refused, call.state->seq);
  if (site.ticket != 0) store_release(site.ended, site.ticket);
  if (site.report == nullptr) return;
  report_call(call, *site.report);
  more(*site.report);
  publish_report(*site.report, site.ticket);  // last: the host may then give all of this memory back
}

template <class Coop>
__device__ void run_plan(const Topology& topo, const PlanView& plan, const Site& site) {
  if (!site.is_rehearsal) make_plan(coop_at<Coop>(site), topo, plan);
}

template <class Coop, class Args, class Step, class More>
__device__ void run_step(const DirectPort& port, const Args& args, const Site& site, const Step& step, const More& more) {
  if (site.is_rehearsal) return;
  const Coop coop = coop_at<Coop>(site);
  if (coop.index() == 0) pay_owed(port, args.call.ctx, site.decode, coop.lane(), coop.lanes());
  step(coop);
  report_step(coop, port, args.call, site, more);
}

/// Where nobody looks between the steps, one may follow a fault: it must not rely on what that step left undone.
template <class Coop>
__device__ bool goes_on(const Coop& coop, const Call& call) {
  const bool ok = !call.ctx.ledger->is_faulted();
  coop.sync();  // nobody claims a fault before all have looked
  return ok;
}

/// Where the host waits for the headers, it does not go on to the rows after a fault.
template <class Coop>
__device__ void headers_of_dispatch(const Coop& coop, const DirectPort& port, const DispatchArgs& args, const Site& site) {
  if (!dispatch_headers(coop, port, args) && site.report != nullptr) give_up_experts(coop, args);
}

template <class Coop>
__device__ void receive_dispatch(const Coop& coop, const DirectPort& port, const DispatchArgs& args, const Site& site) {
  const bool ok = goes_on(coop, args.call) && dispatch_receive(coop, port, args);
  if (ok && !is_refused_unheard(args.call, site)) return;
  coop.sync();
  poison_dispatch(coop, args);
  if (!ok) give_up_experts(coop, args);
}

template <class Coop>
__device__ void receive_combine(const Coop& coop, const DirectPort& port, const CombineArgs& args, const Site& site) {
  if (!goes_on(coop, args.call) || !combine_receive(coop, port, args)) return poison_combine(coop, args);
  if (!is_refused_unheard(args.call, site)) return;
  coop.sync();
  poison_combine(coop, args);
}

}  // namespace heddle

// Arguments are read where the driver put them (__grid_constant__): a copy of 3 KB a thread would go to local memory.
#define HEDDLE_STEP(name, coop, Coop, Args, step, more)                                               \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                                     \
      heddle_##name##_##coop(const __grid_constant__ DirectPort port, const __grid_constant__ Args args, \
                             const __grid_constant__ Site site) {                                     \
    run_step<Coop>(port, args, site, [&](const Coop& own) { step; },                                  \
                   [&](Report& report) { more; });                                                    \
  }

#define HEDDLE_STEPS(coop, Coop)                                                                      \
  extern "C" __global__ void __launch_bounds__(Coop::kMaxThreads)                                     \
      heddle_plan_##coop(const __grid_constant__ Topology topo, const __grid_constant__ PlanView plan, \
                         const __grid_constant__ Site site) {                                         \
    run_plan<Coop>(topo, plan, site);                                                                 \
  }                                                                                                   \
  HEDDLE_STEP(dispatch_send, coop, Coop, DispatchArgs, dispatch_send(own, port, args), (void)report)    \
  HEDDLE_STEP(dispatch_headers, coop, Coop, DispatchArgs, headers_of_dispatch(own,                      \
              port, args, site), report_sizes(args, report))                                                  \
  HEDDLE_STEP(dispatch_receive, coop, Coop, DispatchArgs, receive_dispatch(own,                         \
              port, args, site), report_drops(args, report))                                            \
  HEDDLE_STEP(combine_send, coop, Coop, CombineArgs, combine_send(own, port, args), (void)report)       \
  HEDDLE_STEP(combine_headers, coop, Coop, CombineArgs, combine_headers(own, port, args), (void)report) \
  HEDDLE_STEP(combine_receive, coop, Coop, CombineArgs, receive_combine(own,                            \
              port, args, site), report_results(args, report))                                          \
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
