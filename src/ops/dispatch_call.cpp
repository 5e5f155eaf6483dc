#include "ops/dispatch_call.hpp"

#include <algorithm>

#include "device/quantise_args.hpp"
#include "ops/row_counts.hpp"
#include "protocol/call.hpp"

namespace heddle {

DispatchCall::DispatchCall(Calls& calls, const PlanForDispatch& made, const DispatchInput& input,
                           const DispatchOptions& options, Use use)
    : InFlight(calls.backend().is_capturing()), calls_(calls), plan_(made.plan), input_(input), options_(options),
      waived_(calls.backend()), started_(calls.backend().now()) {
  check_plan();
  max_tokens_ = options.max_tokens > 0 ? options.max_tokens : calls.config().max_tokens;
  fixed_ = options.fixed_size || use == Use::split || options.layout == Layout::slab;
  check_x();
  check_scales();
  check_weights();
  check_totals();
  check_quantise();
  check_options();
  args_.call.ctx = calls.context();
  args_.call.shape = make_shape();
  args_.call.shape.cached = use == Use::again;
  args_.call.shape.split = use == Use::split;
  check_room();
  if (is_captured()) calls.backend().keep(plan_);
  args_.call.waits = static_cast<int64_t*>(input.waits_total.data);
  args_.out.total_counts = static_cast<int32_t*>(input.counts_total.data);
  args_.out.ready.words = static_cast<uint64_t*>(input.expert_ready.data);
  state_ = calls.backend().take(sizeof(CallState));
  args_.call.state = static_cast<CallState*>(state_.get());
  args_.plan = plan_->view;
  args_.makes_plan = !made.is_made;
  args_.ids = made.given;
  args_.id_check = plan_->ids;
  args_.batch = {.x = static_cast<const std::byte*>(input.x.data),
                 .x_stride = input.x.stride(0) * static_cast<int64_t>(size_of(input.x.dtype)),
                 .scales = static_cast<const uint32_t*>(input.scales.data),
                 .scale_row_stride = input.scales.stride(0), .scale_col_stride = input.scales.stride(1),
                 .weights = static_cast<const float*>(input.weights.data),
                 .global_scale = static_cast<const float*>(input.global_scale.data)};
  take_tables();
  if (fixed_) take_outputs(worst_received(), options.capacity >= 0 ? options.capacity : worst_rows());
}

Shape DispatchCall::make_shape() const {
  Shape shape;
  const bool quantises = options_.quantise != Quantise::none;
  shape.kind = Kind::dispatch;
  shape.layout = options_.layout;
  shape.quantise = options_.quantise;
  shape.dtype = input_.x.dtype;
  shape.wire = wire_dtype(input_.x.dtype, options_.quantise);
  shape.row_weights = input_.weights.is_set();
  shape.payload_bytes = static_cast<int32_t>(row_bytes(input_.x.dim(1), input_.x.dtype, options_.quantise));
  shape.scale_words = static_cast<int32_t>(quantises ? num_scale_words(input_.x.dim(1), options_.quantise)
                                           : input_.scales.is_set() ? input_.scales.dim(1)
                                                                    : 0);
  shape.topk = plan_->view.topk;
  shape.experts = plan_->topo.experts;
  shape.alignment = options_.alignment;
  shape.max_tokens = max_tokens_;
  return shape;
}

/// Peers have sent already: without memory for the rows, receive and drop them, so that the buffer stays usable.
void DispatchCall::take_exact_outputs(int64_t received, int64_t rows) {
  try {
    take_outputs(received, rows);
  } catch (...) {
    args_.route.capacity = args_.out.rows = 0;
    args_.out.x = nullptr;
    args_.offer = {};
    place(true);
    if (!calls_.backend().dispatch_receive(args_)) calls_.raise_fault();
    throw;
  }
}

void DispatchCall::place(bool wait) { calls_.use(options_.on, wait, calls_.enough_sms(args_.call.shape)); }

bool DispatchCall::is_awaited() const { return is_blocking() || !calls_.backend().is_asynchronous(); }

void DispatchCall::send() {
  if (is_whole()) return;
  place(false);
  calls_.backend().wait_for(options_.on.after);
  if (!calls_.backend().dispatch_send(args_)) calls_.raise_fault();
}

bool DispatchCall::run_whole() {
  place(is_awaited());
  calls_.backend().wait_for(options_.on.after);
  return calls_.backend().dispatch(args_);
}

bool DispatchCall::run_receive_steps() {
  Backend& backend = calls_.backend();
  place(!fixed_);
  if (!backend.dispatch_headers(args_)) calls_.raise_fault();
  if (!fixed_) take_exact_outputs(backend.report().received, backend.report().rows);
  place(is_awaited() || (!fixed_ && backend.report().refused_by >= 0));
  return backend.dispatch_receive(args_);
}

void DispatchCall::receive() {
  Backend& backend = calls_.backend();
  if (!(is_whole() ? run_whole() : run_receive_steps())) {
    if (args_.offer.is_set) calls_.keep_until_reset(result_.x.owner);
    calls_.raise_fault();
  }
  backend.signal(options_.on.done);
  // A source that closed the pair meanwhile may have stores on their way into the rows it was offered.
  if (args_.offer.is_set && !is_awaited()) calls_.keep_until_ended(result_.x.owner);
  else if (args_.offer.is_set && has_lost_a_source()) calls_.keep_until_reset(result_.x.owner);
  if (is_awaited() || !fixed_) calls_.raise_refusal(Kind::dispatch, backend.report());
  finish();
  if (is_awaited() || !fixed_) check_ids();  // now the plan has ended, too
}

/// Without a report of the end any source may have got lost.
bool DispatchCall::has_lost_a_source() const {
  const Report& report = calls_.backend().report();
  for (int source = 0; source < calls_.topology().world; ++source) {
    if (report.counted[source] != 0 && !report.is_live(source)) return true;
  }
  return false;
}

void DispatchCall::finish() {
  OperationMetrics& metrics = calls_.counters().dispatch;
  ++metrics.calls;
  metrics.nanoseconds += calls_.backend().now() - started_;
  route_->num_received = route_->view.capacity;
  result_.num_rows = route_->rows;
  if (fixed_ && !is_awaited()) return;
  const Report& report = calls_.backend().report();
  route_->num_received = report.received;
  result_.num_rows = options_.layout == Layout::token_major ? std::min(report.received, route_->rows) : report.rows;
  if (!fixed_) take_counts();
  result_.num_dropped = is_awaited() ? report.num_dropped : 0;
  count_rows(args_.call, report, metrics, result_.masked);
  if (!is_awaited() && args_.offer.is_set) metrics.rows_in_place += static_cast<uint64_t>(report.received);
  if (result_.num_dropped > 0 && !options_.drop_overflow) {
    fail(ErrorCode::overflow,
         "dispatch: {} rows past capacity = {} were dropped (at least {} were needed); raise capacity or set drop_overflow",
         result_.num_dropped, route_->rows, result_.num_rows + result_.num_dropped);
  }
}

void DispatchCall::take_counts() {
  const Topology& topo = calls_.topology();
  const int32_t* counts = calls_.host_counts();
  result_.counts.assign(counts, counts + topo.num_local(topo.rank));
}

}  // namespace heddle
