// One combine from its checks to its outputs.
#pragma once

#include <memory>

#include "ops/calls.hpp"

namespace heddle {

class CombineCall : public InFlight {
 public:
  /// Throws BadArgument; nothing was sent.
  CombineCall(Calls&, const Handle&, const CombineInput&, const CombineOptions&, bool split);

  void send();
  const Combined& result() const { return result_; }

 private:
  void receive() override;
  void check_x() const;
  void check_bias(const TensorView&, const char* name, DType out) const;
  void check_weights() const;
  void check_row_weights() const;
  void check_signals() const;
  int64_t signals_each() const;
  void await_signals();
  void check_out(DType out) const;
  Shape make_shape(DType out, bool split) const;
  void choose_wire(Shape&) const;
  Weights weights_mode(bool split) const;
  bool late_weights_fit(const Shape&) const;
  void check_room() const;
  void take_outputs();
  /// The host learns how the call ended.
  bool is_awaited() const;
  /// All steps are done by receive(), right after send().
  bool is_whole() const { return !args_.call.shape.split; }
  /// For the next step; see Calls::use().
  void place(bool wait);
  bool run_whole();
  bool run_receive_steps();
  void finish();
  ExpertView experts() const;

  Calls& calls_;
  std::shared_ptr<const Route> route_;
  CombineInput input_;
  CombineOptions options_;
  std::shared_ptr<void> state_;  // and the owners' status behind it
  CombineArgs args_;
  Combined result_;
  uint64_t started_ = 0;
};

}  // namespace heddle
