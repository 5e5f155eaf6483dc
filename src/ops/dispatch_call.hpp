// One dispatch from its checks to its outputs.
#pragma once

#include <memory>

#include "ops/calls.hpp"
#include "ops/plan_call.hpp"

namespace heddle {

enum class Use { first, again, split };

class DispatchCall : public InFlight {
 public:
  /// Throws BadArgument; nothing was sent.
  DispatchCall(Calls&, const PlanForDispatch&, const DispatchInput&, const DispatchOptions&, Use);

  void send();
  const Received& result() const { return result_; }

 private:
  void receive() override;
  void check_plan() const;
  void check_ids() const;
  void check_x() const;
  void check_scales() const;
  void check_weights() const;
  void check_totals() const;
  void check_quantise() const;
  void check_options() const;
  void check_room() const;
  Shape make_shape() const;
  int64_t worst_received() const;
  int64_t worst_rows() const;

  /// No stream was named: the call returns when all is done.
  bool is_blocking() const { return options_.on.stream == nullptr; }
  /// The host learns how the call ended.
  bool is_awaited() const;
  /// Nobody needs to know sizes between its steps: all of them are done by receive(), right after send().
  bool is_whole() const { return fixed_ && !args_.call.shape.split; }
  /// For the next step; see Calls::use().
  void place(bool wait);
  bool run_whole();
  bool run_receive_steps();

  void take_tables();
  void take_outputs(int64_t received, int64_t rows);
  void take_exact_outputs(int64_t received, int64_t rows);
  Tensor make_x(int64_t rows);
  Tensor make_x_in_heap(int64_t rows, const std::vector<int64_t>& dims);
  void offer_if_in_heap(const Tensor& x, int64_t rows);
  void take_scales(int64_t rows);
  void take_places(int64_t rows);
  Tensor make(DType, std::vector<int64_t> shape);
  template <class T>
  T* take(Tensor&, DType, const std::vector<int64_t>& shape, bool waived);
  bool has_lost_a_source() const;
  void finish();
  void take_counts();

  Calls& calls_;
  std::shared_ptr<const PlanData> plan_;
  DispatchInput input_;
  DispatchOptions options_;
  bool fixed_ = false;
  int32_t max_tokens_ = 0;
  std::shared_ptr<Route> route_;
  std::shared_ptr<void> state_;
  Arena waived_;  // outputs that the caller does not want, but steps write
  DispatchArgs args_;
  Received result_;
  uint64_t started_ = 0;
};

}  // namespace heddle
