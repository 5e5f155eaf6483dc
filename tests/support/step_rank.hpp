// One rank that goes through plan, dispatch and combine step by step on a Machine, as ops/ does for a caller, and hands back
// every byte that the steps left: two machines must leave the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "support/machine.hpp"
#include "spec/world.hpp"

namespace heddle::testing {

using TableBytes = std::vector<uint8_t>;
/// By the name of a tensor.
using Tables = std::map<std::string, TableBytes>;

struct DispatchCase {
  Layout layout = Layout::token_major;
  Quantise quantise = Quantise::none;
  float global_scale = 0.0f;  // of nvfp4; 0: none is given
  ScaleLayout scale_layout = ScaleLayout::usual;
  DType dtype = DType::bf16;  // of the rows
  int alignment = 1;
  int max_tokens = 0;         // needed by slabs and fixed sizes
  bool fixed_size = false;
  int64_t capacity = -1;      // with fixed_size: rows of the outputs; -1 = the worst case
  bool zero_padding = false;
  bool split = false;
};

struct CombineCase {
  Weights weights = Weights::none;
  DType wire = DType::bf16;
  int biases = 0;
  bool row_weights = false;
  bool split = false;
};

/// The memory starts out filled with one byte, so that what a step must not touch shows.
class StepRank {
 public:
  static constexpr uint8_t kFill = 0x5A;

  StepRank(Machine&, const spec::World&, const Topology&, const MachineOptions&);

  // In this order; each returns what it made. `ok` of a step says whether it ended without a fault.
  Tables plan();
  /// For a whole dispatch that makes the plan: its inputs before, and what it made.
  void take_plan();
  Tables planned();
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
  const DispatchArgs& dispatch_args() const { return dispatch_; }
  CombineArgs echo_args();

  Ledger ledger();
  Machine& machine() { return machine_; }
  const Context& context() const { return ctx_; }
  int64_t rows() const { return rows_; }
  CallState state();

 private:
  struct Table {
    const char* name;
    const void* data;
    size_t bytes;
  };

  template <class T>
  T* take(int64_t count, uint8_t fill = kFill);
  template <class T>
  T* upload(const std::vector<T>& values);
  Tables dump(const std::vector<Table>&);
  int32_t number_at(const int32_t* word);
  void prepare_dispatch(const DispatchCase&);
  void prepare_combine(const CombineCase&, uint64_t seed);
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
  Context ctx_;
  std::vector<std::shared_ptr<void>> blocks_;
  PlanView plan_;
  DispatchCase dispatch_case_;
  DispatchArgs dispatch_;
  CombineCase combine_case_;
  CombineArgs combine_;
  int64_t received_ = 0;
  int64_t rows_ = 0;
  int64_t scale_words_ = 0;  // of all rows, and what pads them
};

/// TableBytes of a window whose ranges hold `slots` rows of a dispatch of this world (and its header tables).
size_t window_for(const spec::World&, const DispatchCase&, int64_t slots);

}  // namespace heddle::testing
