// What a machine must offer for Buffer to run on it: memory, the steps, and the host's side of faults and resets. One POD of
// arguments per operation is all that a step gets. The host reads what a step left through report(), look() and read() only.
#pragma once

#include <heddle/device.hpp>

#include <cstddef>
#include <memory>

#include "protocol/combine_args.hpp"
#include "protocol/dispatch_args.hpp"
#include "protocol/ids.hpp"
#include "protocol/launch.hpp"
#include "protocol/report.hpp"
#include "protocol/signals.hpp"

struct CUevent_st;

namespace heddle {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const { return {}; }
  /// Until the next use().
  virtual void use(const Launch&) {}

  /// Memory that the steps can reach, zeroed. Never null.
  virtual std::shared_ptr<void> allocate(size_t bytes) = 0;
  /// The same where the host reads what steps write. May wait for all that runs on the GPU: when a buffer is born.
  virtual std::shared_ptr<void> share(size_t bytes) { return allocate(bytes); }
  /// The same as allocate(), uninitialised. What a capture takes lives as long as its graph.
  virtual std::shared_ptr<void> take(size_t bytes) { return allocate(bytes); }
  /// Copies between the host's memory and the steps', after all steps so far and before all later ones.
  virtual void read(void* to, const void* from, size_t bytes) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;

  /// How many lanes make a plan together; sizes PlanView::scratch.
  virtual int64_t plan_lanes() const = 0;
  /// For ids that are taken later: by take_ids(), or by a dispatch that is given them.
  virtual IdCheck expect_ids() { return {}; }
  virtual void take_ids(const TableView&, int experts, int32_t* to, IdCheck&) = 0;
  virtual void take_map(const TableView&, uint8_t* to) = 0;
  virtual void plan(const Topology&, const PlanView&) = 0;
  /// The same once its ids are taken.
  virtual void plan_from(const TableView& ids, IdCheck& check, const Topology& topo, const PlanView& view) {
    take_ids(ids, topo.experts, view.ids, check);
    plan(topo, view);
  }
  /// Whether a dispatch with DispatchArgs::makes_plan may save launches.
  virtual bool plans_in_dispatch() const { return false; }
  /// Place + 1 of an id that was found out of range; 0 if there is none, or if none is known yet.
  virtual uint64_t bad_id(const IdCheck& check) const { return check.bad; }

  // Each returns false if the call ended in a fault; the ledger says which. True if it was not waited for.
  /// Before a combine's first step: until the caller's kernel has made its rows.
  virtual bool await_signals(const Context&, const SignalView&) = 0;
  virtual bool dispatch_send(const DispatchArgs&) = 0;
  virtual bool dispatch_headers(const DispatchArgs&) = 0;
  virtual bool dispatch_receive(const DispatchArgs&) = 0;
  virtual bool combine_send(const CombineArgs&) = 0;
  virtual bool combine_headers(const CombineArgs&) = 0;
  virtual bool combine_receive(const CombineArgs&) = 0;

  /// All steps of an unsplit call whose outputs are there already. May be faster than one step after the other.
  virtual bool dispatch(const DispatchArgs& args) {
    return dispatch_send(args) && dispatch_headers(args) && dispatch_receive(args);
  }
  virtual bool combine(const CombineArgs& args) {
    return combine_send(args) && combine_headers(args) && combine_receive(args);
  }

  /// Whether steps return before they have ended, if Launch::wait is off.
  virtual bool is_asynchronous() const { return false; }
  /// Steps begun, and of those the ones that have ended, by number; steps of a capture have none.
  virtual uint64_t steps_begun() const { return 0; }
  virtual uint64_t steps_ended() const { return 0; }
  /// What the host has spent in waits for steps, nanoseconds, where they run elsewhere.
  virtual uint64_t waited() const { return 0; }
  /// What the last step that was waited for told; valid until the next.
  virtual const Report& report() const = 0;
  /// The ledger as it is after all steps so far; valid until the next step or look.
  virtual const Ledger& look(const Context&) = 0;
  /// Whether a step that has ended met a fault, also one that nobody waited for. Cheap.
  virtual bool is_faulted(const Context&) const = 0;
  /// Ends the step in progress, and what comes before the next interrupt(ctx, false). `on` true: any thread, any moment.
  virtual void interrupt(const Context&, bool on) = 0;

  // The launch's stream, of a GPU.
  virtual void wait_for(CUevent_st*) {}
  virtual void signal(CUevent_st*) {}
  virtual bool is_capturing() const { return false; }
  /// In a capture: keeps it as long as the graph.
  virtual void keep(std::shared_ptr<const void>) {}

  /// Returns once all puts of this rank have landed.
  virtual void drain() = 0;
  virtual void claim_fault(const Context&, const Fault&) = 0;
  virtual void publish_fault(const Context&) = 0;
  virtual void close_pair(const Context&, int peer) = 0;
  virtual void announce_destroyed(const Context&) = 0;
  virtual bool reset(const Context&, const RankSet& members, RankSet& missing) = 0;

  /// This rank's own window, for the host to read fault cells in; on a GPU a copy, made by this call.
  virtual const std::byte* window() = 0;
  virtual uint64_t now() = 0;
  virtual void relax(int attempt) = 0;

 protected:
  /// What a dispatch with `makes_plan` begins with, where that is steps of its own.
  void make_plan_of(const DispatchArgs& args) {
    if (!args.makes_plan) return;
    IdCheck check = args.id_check;
    if (args.ids.data == nullptr) return plan(args.call.ctx.topo, args.plan);
    plan_from(args.ids, check, args.call.ctx.topo, args.plan);
  }
};

}  // namespace heddle
