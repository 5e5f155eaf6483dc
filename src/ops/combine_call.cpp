#include "ops/combine_call.hpp"

#include <algorithm>

#include "base/math.hpp"
#include "ops/row_counts.hpp"
#include "protocol/combine.hpp"

namespace heddle {
namespace {

bool is_summable(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32; }

}  // namespace

CombineCall::CombineCall(Calls& calls, const Handle& handle, const CombineInput& input, const CombineOptions& options,
                         bool split)
    : InFlight(calls.backend().is_capturing()), calls_(calls), route_(handle.route), input_(input), options_(options),
      started_(calls.backend().now()) {
  calls.checked_route("combine", handle);
  calls.check_placement("combine", options.on);
  check_x();
  const DType out = options.out_dtype.value_or(input.x.dtype);
  check_bias(input.bias0, "bias0", out);
  check_bias(input.bias1, "bias1", out);
  require(input.bias0.is_set() || !input.bias1.is_set(), {"bias1"}, "combine: bias1 was given without bias0");
  check_weights();
  check_row_weights();
  check_out(out);
  calls.check_waits("combine", input.waits_total);
  check_signals();
  if (is_captured()) calls.backend().keep(route_);
  state_ = calls.backend().take(sizeof(CallState) + static_cast<size_t>(calls.topology().world));
  args_.call.ctx = calls.context();
  args_.call.waits = static_cast<int64_t*>(input.waits_total.data);
  args_.call.state = static_cast<CallState*>(state_.get());
  args_.call.shape = make_shape(out, split);
  args_.hidden = static_cast<int32_t>(input.x.shape.back());
  args_.layout = route_->layout;
  args_.plan = route_->plan->view;
  args_.route = route_->view;
  args_.experts = experts();
  check_room();
  take_outputs();
}

void CombineCall::check_x() const {
  const TensorView& x = input_.x;
  require(is_summable(x.dtype), {"x.dtype"}, "combine: x is {}, legal: bfloat16, float16, float32", name_of(x.dtype));
  require(!options_.out_dtype || is_summable(*options_.out_dtype), {"out_dtype"},
          "combine: out_dtype is {}, legal: bfloat16, float16, float32",
          name_of(options_.out_dtype.value_or(DType::bf16)));
  const bool is_slab = route_->layout == Layout::slab;
  require(x.shape.size() == 2 || (is_slab && x.shape.size() == 3), {"x.ndim", static_cast<int64_t>(x.shape.size()), 2},
          "combine: x is {}, legal: [rows, hidden]", x.describe());
  const int64_t rows = x.numel() / std::max<int64_t>(1, x.shape.back());
  require(rows == route_->rows || x.shape.back() == 0, {"x.rows", rows, route_->rows},
          "combine: x has {} rows, the dispatch put out {}", rows, route_->rows);
  require(x.has_dense_rows() && (x.shape.size() == 2 || x.is_contiguous()), {"x.strides"},
          "combine: x's rows are not dense");
  const int64_t bytes = x.shape.back() * static_cast<int64_t>(size_of(x.dtype));
  require(bytes > 0 && bytes % 16 == 0, {"hidden", x.shape.back(), 0},
          "combine: hidden = {}, a row of {} bytes; legal: rows of a positive multiple of 16 bytes", x.shape.back(),
          bytes);
  calls_.check_device("combine", "x", x);
}

void CombineCall::check_bias(const TensorView& bias, const char* name, DType out) const {
  if (!bias.is_set()) return;
  const int64_t tokens = route_->plan->view.tokens;
  const int64_t hidden = input_.x.shape.back();
  require(bias.dtype == out && bias.shape.size() == 2 && bias.dim(0) == tokens && bias.dim(1) == hidden &&
              bias.is_contiguous(),
          {name, bias.dim(0), tokens}, "combine: {} is {}, legal: contiguous {} [{}, {}]", name, bias.describe(),
          name_of(out), tokens, hidden);
  calls_.check_device("combine", name, bias);
}

void CombineCall::check_weights() const {
  const TensorView& weights = input_.weights;
  const PlanView& plan = route_->plan->view;
  const bool grouped = route_->layout != Layout::token_major;
  require(!options_.weighted || (grouped && route_->has_weights), {"weighted"},
          "combine: weighted needs a dispatch that was given weights, in expert_major or slab layout");
  if (!weights.is_set()) return;
  require(!options_.weighted, {"weights"}, "combine: weights were given and weighted too; legal: one of them");
  require(grouped, {"weights"}, "combine: weights need the expert_major or slab layout: a token-major row is a sum");
  require(weights.dtype == DType::f32 && weights.shape.size() == 2 && weights.dim(0) == plan.tokens &&
              weights.dim(1) == plan.topk && weights.is_contiguous(),
          {"weights.shape", weights.dim(0), plan.tokens}, "combine: weights is {}, legal: contiguous float32 [{}, {}]",
          weights.describe(), plan.tokens, plan.topk);
  calls_.check_device("combine", "weights", weights);
}

void CombineCall::check_row_weights() const {
  const TensorView& weights = input_.row_weights;
  if (!weights.is_set()) return;
  const int64_t topk = route_->plan->view.topk;
  require(topk > 0, {"row_weights"}, "combine: row_weights need expert ids, but the plan was made from a rank map");
  const bool token_major = route_->layout == Layout::token_major;
  const int64_t wanted = route_->rows * (token_major ? topk : 1);
  require(weights.dtype == DType::f32 && weights.numel() == wanted && weights.is_contiguous() &&
              weights.shape.size() == (token_major ? 2u : 1u),
          {"row_weights.numel", weights.numel(), wanted}, "combine: row_weights is {}, legal: contiguous float32 [{}{}]",
          weights.describe(), route_->rows, token_major ? fmt::format(", {}", topk) : "");
  calls_.check_device("combine", "row_weights", weights);
}

void CombineCall::check_signals() const {
  const RowSignals& ready = input_.ready;
  if (!ready.words.is_set()) return;
  const auto local = int64_t{calls_.topology().num_local(calls_.topology().rank)};
  require(route_->layout == Layout::slab, {"ready"}, "combine: ready is given, legal with a slab's handle");
  require(ready.rows_each >= 0, {"ready.rows_each", ready.rows_each, 0}, "combine: ready.rows_each = {}, legal: 0 or more",
          ready.rows_each);
  const int64_t wanted = local * signals_each();
  require(ready.words.dtype == DType::i32 && ready.words.is_contiguous() && ready.words.numel() >= wanted,
          {"ready.words", ready.words.numel(), wanted}, "combine: ready.words is {}, legal: {} or more contiguous int32",
          ready.words.describe(), wanted);
  calls_.check_device("combine", "ready.words", ready.words);
  if (ready.rows_each == 0) return;
  require(ready.counts.dtype == DType::i32 && ready.counts.numel() == local && ready.counts.is_contiguous(),
          {"ready.counts", ready.counts.numel(), local}, "combine: ready.counts is {}, legal: contiguous int32 [{}]",
          ready.counts.describe(), local);
  calls_.check_device("combine", "ready.counts", ready.counts);
}

/// Of an expert.
int64_t CombineCall::signals_each() const {
  const int each = input_.ready.rows_each;
  return each == 0 ? 1 : ceil_div(int64_t{calls_.topology().world} * route_->max_tokens, each);
}

/// On the launch's stream, before the first step.
void CombineCall::await_signals() {
  const RowSignals& ready = input_.ready;
  if (!ready.words.is_set()) return;
  const SignalView view{.words = static_cast<const uint32_t*>(ready.words.data),
                        .counts = ready.rows_each > 0 ? static_cast<const int32_t*>(ready.counts.data) : nullptr,
                        .experts = calls_.topology().num_local(calls_.topology().rank),
                        .pitch = static_cast<int32_t>(signals_each()), .rows_each = ready.rows_each, .wanted = ready.wanted};
  if (!calls_.backend().await_signals(calls_.context(), view)) calls_.raise_fault();
}

void CombineCall::check_out(DType out) const {
  const TensorView& view = options_.out;
  if (!view.is_set()) return;
  const int64_t tokens = route_->plan->view.tokens;
  const int64_t hidden = input_.x.shape.back();
  require(view.dtype == out && view.shape.size() == 2 && view.dim(0) == tokens && view.dim(1) == hidden &&
              view.has_dense_rows(),
          {"out.shape", view.dim(0), tokens}, "combine: out is {}, legal: {} [{}, {}] with dense rows", view.describe(),
          name_of(out), tokens, hidden);
  calls_.check_device("combine", "out", view);
}

/// Late weights go to the owners if they fit, so that a rank's hits are summed before the wire; what a split call sends
/// cannot wait for them, and is summed at the source.
Weights CombineCall::weights_mode(bool split) const {
  if (options_.weighted) return Weights::at_owner;
  if (!input_.weights.is_set()) return Weights::none;
  return split || route_->max_tokens == 0 ? Weights::at_source : Weights::late;
}

Shape CombineCall::make_shape(DType out, bool split) const {
  Shape shape;
  shape.kind = Kind::combine;
  shape.layout = route_->layout;
  shape.weights = weights_mode(split);
  shape.dtype = out;
  shape.split = split;
  shape.row_weights = input_.row_weights.is_set();
  choose_wire(shape);
  shape.topk = route_->plan->view.topk;
  shape.experts = route_->plan->topo.experts;
  shape.alignment = route_->alignment;
  shape.max_tokens = route_->max_tokens;
  if (shape.weights == Weights::late && !late_weights_fit(shape)) {
    shape.weights = Weights::at_source;
    choose_wire(shape);
  }
  return shape;
}

/// Rows that travel alone keep the experts' dtype; a sum is rounded to the result's.
void CombineCall::choose_wire(Shape& shape) const {
  const DType usual = shape.weights == Weights::at_source ? input_.x.dtype : shape.dtype;
  set_wire(shape, options_.wire, input_.x.shape.back(), usual);
}

/// By agreed values only, so that all ranks choose alike.
bool CombineCall::late_weights_fit(const Shape& shape) const {
  return range_of({.ctx = calls_.context(), .shape = shape, .state = nullptr, .refusal = {}}).count >= 1;
}

void CombineCall::check_room() const {
  const Call& call = args_.call;
  const Range range = range_of(call);
  const int64_t tokens = call.shape.split ? call.shape.max_tokens : 1;
  const int64_t places = tokens * places_of(call.shape);
  const int64_t needed = window_bytes_for(call.ctx.topo.world, range.slots + places * range.stride);
  require(!call.shape.split || call.shape.max_tokens > 0, {"max_tokens", 0, 1},
          "combine: a split call needs max_tokens, of the buffer or the dispatch");
  require(range.count >= places, {"window_bytes", calls_.parts().window_bytes, needed},
          "combine: window_bytes = {} holds {} rows of {} bytes a peer, this call needs {}; legal: {} or more",
          calls_.parts().window_bytes, range.count, range.stride, places, needed);
}

ExpertView CombineCall::experts() const {
  const TensorView& x = input_.x;
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  const int64_t stride = x.shape.size() == 2 ? x.stride(0) : x.stride(1);
  return {.x = static_cast<const std::byte*>(x.data), .x_stride = stride * size, .rows = route_->rows, .dtype = x.dtype,
          .row_weights = static_cast<const float*>(input_.row_weights.data)};
}

void CombineCall::take_outputs() {
  const PlanView& plan = route_->plan->view;
  const DType dtype = args_.call.shape.dtype;
  if (options_.out.is_set()) result_.x.view = options_.out;
  else result_.x = calls_.allocate()(dtype, {plan.tokens, args_.hidden});
  CombinedView& out = args_.out;
  out.x = result_.x.data<std::byte>();
  out.x_stride = result_.x.view.stride(0) * static_cast<int64_t>(size_of(dtype));
  out.bias[0] = static_cast<const std::byte*>(input_.bias0.data);
  out.bias[1] = static_cast<const std::byte*>(input_.bias1.data);
  out.weights_in = static_cast<const float*>(input_.weights.data);
  out.status = static_cast<uint8_t*>(state_.get()) + sizeof(CallState);
  if (!args_.call.shape.row_weights) return;
  result_.weights = calls_.allocate()(DType::f32, {plan.tokens, plan.topk});
  out.weights = result_.weights.data<float>();
}

void CombineCall::place(bool wait) { calls_.use(options_.on, wait, calls_.enough_sms(args_.call.shape)); }

bool CombineCall::is_awaited() const { return options_.on.stream == nullptr || !calls_.backend().is_asynchronous(); }

void CombineCall::send() {
  if (is_whole()) return;
  place(false);
  calls_.backend().wait_for(options_.on.after);
  await_signals();
  if (!calls_.backend().combine_send(args_)) calls_.raise_fault();
}

bool CombineCall::run_whole() {
  place(is_awaited());
  calls_.backend().wait_for(options_.on.after);
  await_signals();
  return calls_.backend().combine(args_);
}

bool CombineCall::run_receive_steps() {
  place(false);
  if (!calls_.backend().combine_headers(args_)) return false;
  place(is_awaited());
  return calls_.backend().combine_receive(args_);
}

void CombineCall::receive() {
  Backend& backend = calls_.backend();
  if (!(is_whole() ? run_whole() : run_receive_steps())) calls_.raise_fault();
  backend.signal(options_.on.done);
  if (is_awaited()) calls_.raise_refusal(Kind::combine, backend.report());
  finish();
}

void CombineCall::finish() {
  OperationMetrics& metrics = calls_.counters().combine;
  ++metrics.calls;
  metrics.nanoseconds += calls_.backend().now() - started_;
  if (!is_awaited()) return;
  count_rows(args_.call, calls_.backend().report(), metrics, result_.masked);
}

}  // namespace heddle
