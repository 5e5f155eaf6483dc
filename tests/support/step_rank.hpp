// One rank that goes through plan, dispatch and combine step by step on a Machine, as ops/ does for a caller, and hands
// back every byte that the steps left: two machines must leave the same.
#pragma once

#include <cstdint>

#include "support/machine.hpp"
#include "support/step_memory.hpp"
#include "support/step_shapes.hpp"

namespace heddle::testing {

class StepRank {
 public:
  StepRank(Machine&, const spec::World&, const Topology&, const MachineOptions&);

  // In this order; each returns what it made. `ok` of a step says whether it ended without a fault.
  Tables plan();
  /// For a whole dispatch that makes the plan: its inputs before, and what it made. With wide_ids its ids are a
  /// caller's table of int64, which the dispatch takes, too.
  void take_plan(bool wide_ids = false);
  Tables planned();
  /// The plan of a caller's table of int64, which it takes first; `bad` gets the place + 1 of an id that is none.
  Tables plan_from_table(uint64_t* bad = nullptr);
  bool send_dispatch(const DispatchCase&);
  bool read_headers();
  bool receive_dispatch();
  Tables dispatched();
  /// The three steps of a dispatch of fixed size in one, those of a combine in one.
  bool whole_dispatch(const DispatchCase&, bool makes_plan = false);
  bool whole_combine(const CombineCase&, uint64_t seed);
  /// Rows for the combine are random, but for a seed the same on every machine.
  bool send_combine(const CombineCase&, uint64_t seed);
  bool receive_combine();
  Tables combined();

  /// For rounds without the host: the last dispatch, to be run again, and a combine that returns what it put out.
  /// Biases, weights and row weights of the combine hold any numbers.
  const DispatchArgs& dispatch_args() const { return dispatch_; }
  CombineArgs echo_args(const CombineCase& = {});

  /// What a dispatch gets, once prepared; whole_dispatch() and send_dispatch() do that, too.
  void prepare_dispatch(const DispatchCase&);
  /// What a combine gets; the same.
  void prepare_combine(const CombineCase&, uint64_t seed);
  const CombineArgs& combine_args() const { return combine_; }
  template <class T>
  T* take(int64_t count) { return memory_.take<T>(count); }
  template <class T>
  T at(const T* word) { return memory_.at(word); }

  Ledger ledger();
  Machine& machine() { return machine_; }
  const Context& context() const { return ctx_; }
  int64_t rows() const { return rows_; }
  CallState state();

 private:
  void take_route();
  void take_outputs();
  void take_scales();
  std::byte* take_rows(int64_t bytes);
  int64_t worst_received() const;
  int64_t worst_rows() const;

  Machine& machine_;
  const spec::World& world_;
  const spec::Batch& batch_;
  Topology topo_;
  StepMemory memory_;
  Context ctx_;
  PlanView plan_;
  TableView ids_;  // the caller's
  uint64_t* ready_ = nullptr;  // of all dispatches that tell of experts
  DispatchCase dispatch_case_;
  DispatchArgs dispatch_;
  CombineCase combine_case_;
  CombineArgs combine_;
  int64_t received_ = 0;
  int64_t rows_ = 0;
  int64_t scale_words_ = 0;  // of all rows, and what pads them
};

}  // namespace heddle::testing
