#include "ops/dispatch_call.hpp"

#include <algorithm>

#include "device/quantise_args.hpp"
#include "ops/row_counts.hpp"
#include "protocol/call.hpp"

namespace heddle {
namespace {

const char* name_of(Layout layout) {
  switch (layout) {
    case Layout::token_major: return "token_major";
    case Layout::expert_major: return "expert_major";
    case Layout::slab: return "slab";
  }
  return "unknown";
}

}  // namespace

DispatchCall::DispatchCall(Calls& calls, std::shared_ptr<const PlanData> plan, const DispatchInput& input,
                           const DispatchOptions& options, Use use)
    : InFlight(calls.backend().is_capturing()), calls_(calls), plan_(std::move(plan)), input_(input), options_(options),
      started_(calls.backend().now()) {
  check_plan();
  max_tokens_ = options.max_tokens > 0 ? options.max_tokens : calls.config().max_tokens;
  fixed_ = options.fixed_size || use == Use::split || options.layout == Layout::slab;
  check_x();
  check_scales();
  check_weights();
  check_options();
  args_.call.ctx = calls.context();
  args_.call.shape = make_shape();
  args_.call.shape.cached = use == Use::again;
  args_.call.shape.split = use == Use::split;
  check_room();
  if (is_captured()) calls.backend().keep(plan_);
  state_ = calls.backend().take(sizeof(CallState));
  args_.call.state = static_cast<CallState*>(state_.get());
  args_.plan = plan_->view;
  args_.batch = {.x = static_cast<const std::byte*>(input.x.data),
                 .x_stride = input.x.stride(0) * static_cast<int64_t>(size_of(input.x.dtype)),
                 .scales = static_cast<const uint32_t*>(input.scales.data),
                 .scale_row_stride = input.scales.stride(0), .scale_col_stride = input.scales.stride(1),
                 .weights = static_cast<const float*>(input.weights.data)};
  take_tables();
  if (fixed_) take_outputs(worst_received(), options.capacity >= 0 ? options.capacity : worst_rows());
}

void DispatchCall::check_plan() const {
  require(plan_ != nullptr, {"plan"}, "dispatch: plan is not set; legal: a plan made by this buffer");
  require(plan_->buffer == calls_.id(), {"plan"}, "dispatch: plan was made by another buffer; legal: one of this buffer");
  const uint64_t bad = calls_.backend().bad_id(plan_->ids);
  require(bad == 0, {"ids"}, "dispatch: the plan's ids[{}][{}] was not an expert; legal: 0 to {}, or -1 for none",
          (bad - 1) / std::max(1, plan_->view.topk), (bad - 1) % std::max(1, plan_->view.topk), plan_->topo.experts - 1);
}

void DispatchCall::check_x() const {
  const TensorView& x = input_.x;
  const int64_t tokens = plan_->view.tokens;
  require(x.shape.size() == 2, {"x.ndim", static_cast<int64_t>(x.shape.size()), 2},
          "dispatch: x is {}, legal: [tokens, hidden]", x.describe());
  require(x.dim(0) == tokens, {"x.shape[0]", x.dim(0), tokens}, "dispatch: x has {} rows, the plan {} tokens", x.dim(0),
          tokens);
  require(x.has_dense_rows(), {"x.stride(1)", x.stride(1), 1}, "dispatch: x.stride(1) = {}, legal: 1", x.stride(1));
  const int64_t bytes = x.dim(1) * static_cast<int64_t>(size_of(x.dtype));
  require(bytes > 0 && bytes % 16 == 0, {"hidden", x.dim(1), 0},
          "dispatch: hidden (x.shape[1]) = {}, a row of {} bytes; legal: rows of a positive multiple of 16 bytes",
          x.dim(1), bytes);
  calls_.check_device("dispatch", "x", x);
}

void DispatchCall::check_scales() const {
  const TensorView& scales = input_.scales;
  if (!scales.is_set()) return;
  require(options_.quantise == Quantise::none, {"scales"},
          "dispatch: scales were given and quantise too; legal: one of them");
  require(size_of(scales.dtype) == 4, {"scales.itemsize", static_cast<int64_t>(size_of(scales.dtype)), 4},
          "dispatch: scales is {}, legal: a 4-byte type", name_of(scales.dtype));
  require(scales.shape.size() == 2 && scales.dim(0) == plan_->view.tokens,
          {"scales.shape[0]", scales.dim(0), plan_->view.tokens}, "dispatch: scales is {}, legal: [{}, any]",
          scales.describe(), plan_->view.tokens);
  calls_.check_device("dispatch", "scales", scales);
}

void DispatchCall::check_weights() const {
  const TensorView& weights = input_.weights;
  if (!weights.is_set()) return;
  const PlanView& plan = plan_->view;
  require(weights.dtype == DType::f32, {"weights.dtype"}, "dispatch: weights is {}, legal: float32",
          name_of(weights.dtype));
  require(weights.shape.size() == 2 && weights.dim(0) == plan.tokens && weights.dim(1) == plan.topk,
          {"weights.shape", weights.dim(0), plan.tokens}, "dispatch: weights is {}, legal: [{}, {}]",
          weights.describe(), plan.tokens, plan.topk);
  require(weights.is_contiguous(), {"weights.strides"}, "dispatch: weights is not contiguous");
  calls_.check_device("dispatch", "weights", weights);
}

void DispatchCall::check_options() const {
  const PlanView& plan = plan_->view;
  calls_.check_placement("dispatch", options_.on);
  require(fixed_ || !is_captured(), {"fixed_size"}, "dispatch: fixed_size is false, legal in a captured call: true");
  require(options_.alignment >= 1, {"alignment", options_.alignment, 1}, "dispatch: alignment = {}, legal: 1 or more",
          options_.alignment);
  require(plan_->has_ids || options_.layout == Layout::token_major, {"layout"},
          "dispatch: layout {} needs expert ids, but the plan was made from a rank map; legal: token_major",
          name_of(options_.layout));
  const int limit = calls_.config().max_tokens;
  require(options_.max_tokens >= 0 && (limit == 0 || options_.max_tokens <= limit),
          {"max_tokens", options_.max_tokens, limit}, "dispatch: max_tokens = {}, legal: 1 to the buffer's {}",
          options_.max_tokens, limit);
  require(max_tokens_ == 0 || plan.tokens <= max_tokens_, {"tokens", plan.tokens, max_tokens_},
          "dispatch: {} tokens, at most max_tokens = {} (raise max_tokens of the buffer or the call)", plan.tokens,
          max_tokens_);
  require(!fixed_ || max_tokens_ > 0, {"max_tokens", 0, 1},
          "dispatch: fixed-size outputs, slabs and split calls need max_tokens, of the buffer or the call");
  require(options_.capacity < 0 || options_.layout != Layout::slab, {"capacity", options_.capacity, -1},
          "dispatch: capacity = {}, legal with a slab: none", options_.capacity);
  require(options_.capacity < 0 || fixed_, {"capacity", options_.capacity, -1},
          "dispatch: capacity = {} needs fixed_size", options_.capacity);
  const bool quantises = options_.quantise != Quantise::none;
  require(!quantises || input_.x.dtype == DType::bf16, {"x.dtype"},
          "dispatch: x is {}, legal with quantise: bfloat16", name_of(input_.x.dtype));
}

Shape DispatchCall::make_shape() const {
  Shape shape;
  const bool quantises = options_.quantise != Quantise::none;
  shape.kind = Kind::dispatch;
  shape.layout = options_.layout;
  shape.quantise = options_.quantise;
  shape.dtype = input_.x.dtype;
  shape.wire = quantises ? DType::e4m3 : input_.x.dtype;
  shape.row_weights = input_.weights.is_set();
  shape.payload_bytes = static_cast<int32_t>(input_.x.dim(1) * static_cast<int64_t>(size_of(shape.wire)));
  shape.scale_words = static_cast<int32_t>(quantises ? num_scale_words(input_.x.dim(1), options_.quantise)
                                           : input_.scales.is_set() ? input_.scales.dim(1)
                                                                    : 0);
  shape.topk = plan_->view.topk;
  shape.experts = plan_->topo.experts;
  shape.alignment = options_.alignment;
  shape.max_tokens = max_tokens_;
  return shape;
}

/// What all ranks find alike, since it depends on agreed values only.
void DispatchCall::check_room() const {
  const Call& call = args_.call;
  const Range range = range_of(call);
  const int ranks = call.ctx.topo.world;
  const int64_t slots = call.shape.split ? call.shape.max_tokens : 1;
  const int64_t needed = window_bytes_for(ranks, range.slots + slots * range.stride);
  require(range.count >= slots, {"window_bytes", calls_.parts().window_bytes, needed},
          "dispatch: window_bytes = {} holds {} rows of {} bytes a peer, this call needs {}; legal: {} or more",
          calls_.parts().window_bytes, range.count, range.stride, slots, needed);
  require(!fixed_ || worst_rows() <= INT32_MAX, {"max_tokens", max_tokens_, 0},
          "dispatch: {} rows in the worst case (ranks {} x max_tokens {}), at most {}", worst_rows(), ranks, max_tokens_,
          INT32_MAX);
}

int64_t DispatchCall::worst_received() const {
  return int64_t{calls_.topology().world} * max_tokens_;
}

int64_t DispatchCall::worst_rows() const {
  const Topology& topo = calls_.topology();
  const int64_t local = topo.num_local(topo.rank);
  const int64_t alignment = options_.alignment;
  switch (options_.layout) {
    case Layout::token_major: return worst_received();
    case Layout::slab: return local * worst_received();
    case Layout::expert_major: break;
  }
  const int64_t hits = std::min<int64_t>(plan_->view.topk, local);
  return round_up(worst_received() * hits + (alignment - 1) * local, alignment);
}

/// Tables whose size is known before any header.
void DispatchCall::take_tables() {
  route_ = std::make_shared<Route>(calls_.backend());
  Arena& arena = route_->arena;
  const Topology& topo = calls_.topology();
  const int64_t local = topo.num_local(topo.rank);
  route_->plan = plan_;
  route_->layout = options_.layout;
  route_->max_tokens = max_tokens_;
  route_->alignment = options_.alignment;
  route_->fixed_size = fixed_;
  route_->has_weights = input_.weights.is_set();
  route_->buffer = calls_.id();
  route_->incarnation = calls_.incarnation();
  result_.handle.route = route_;
  RouteView& view = route_->view;
  view.recv_offset = arena.take<int32_t>(topo.world + 1);
  view.source_tokens = arena.take<int32_t>(topo.world);
  view.status = arena.take<uint8_t>(topo.world);
  view.send_row = arena.take<int32_t>(std::max(topo.world, topo.experts));
  result_.num_per_expert = make(DType::i32, {local});
  args_.out.counts = result_.num_per_expert.data<int32_t>();
  result_.dropped = make(DType::i64, {1});
  args_.out.num_dropped = result_.dropped.data<int64_t>();
  if (options_.layout != Layout::token_major) {
    view.expert_row = arena.take<int32_t>(local * topo.world);
    result_.expert_offsets = make(DType::i64, {local + 1});
    args_.out.expert_offsets = result_.expert_offsets.data<int64_t>();
  }
  if (options_.layout == Layout::slab) {
    result_.layout_range = make(DType::i64, {local, topo.world});
    args_.out.layout_range = result_.layout_range.data<int64_t>();
  }
  args_.route = view;
}

Tensor DispatchCall::make(DType dtype, std::vector<int64_t> shape) {
  return calls_.allocate()(dtype, std::move(shape));
}

Tensor DispatchCall::make_x(int64_t rows) {
  const Shape& shape = args_.call.shape;
  const int64_t hidden = input_.x.dim(1);
  const bool is_slab = options_.layout == Layout::slab;
  const int64_t group = is_slab ? worst_received() : 0;
  const auto dims = is_slab ? std::vector<int64_t>{group > 0 ? rows / group : 0, group, hidden}
                            : std::vector<int64_t>{rows, hidden};
  if (!calls_.has_own_allocator()) {
    if (Tensor x = make_x_in_heap(rows, dims); x.is_set()) return x;
  }
  Tensor x = make(shape.wire, dims);
  offer_if_in_heap(x, rows);
  return x;
}

Tensor DispatchCall::make_x_in_heap(int64_t rows, const std::vector<int64_t>& dims) {
  const Shape& shape = args_.call.shape;
  if (!offers_rows(args_.call.ctx, shape) || !calls_.parts().heap) return {};
  auto block = calls_.parts().heap(rows * shape.payload_bytes);
  if (!block) return {};
  calls_.backend().keep(block->memory);
  args_.offer = {.is_set = true, .offset = block->offset};
  const TensorView view{.data = block->memory.get(), .dtype = shape.wire, .shape = dims, .strides = {},
                        .device = calls_.backend().device()};
  return {view, std::move(block->memory)};
}

/// The caller's allocator may take memory of the heap, too.
void DispatchCall::offer_if_in_heap(const Tensor& x, int64_t rows) {
  const Shape& shape = args_.call.shape;
  if (!offers_rows(args_.call.ctx, shape) || !calls_.parts().heap_offset) return;
  const auto offset = calls_.parts().heap_offset(x.view.data, rows * shape.payload_bytes);
  if (offset) args_.offer = {.is_set = true, .offset = *offset};
}

/// Row-major, or column-major in each expert of a slab, as grouped GEMMs read them.
void DispatchCall::take_scales(int64_t rows) {
  const Shape& shape = args_.call.shape;
  const int64_t words = shape.scale_words;
  if (words == 0) return;
  const DType dtype = shape.quantise == Quantise::none ? input_.scales.dtype
                      : shape.quantise == Quantise::fp8_ue8m0 ? DType::i32
                                                              : DType::f32;
  ScaleView& view = args_.out.scales;
  if (options_.layout == Layout::slab) {
    const int64_t group = worst_received();
    const int64_t experts = group > 0 ? rows / group : 0;
    result_.scales = make(dtype, {experts, words, group});
    result_.scales.view.shape = {experts, group, words};
    result_.scales.view.strides = {words * group, 1, group};
    view = {.group = group, .group_stride = words * group, .row_stride = 1, .col_stride = group};
  } else {
    result_.scales = make(dtype, {rows, words});
    view = {.row_stride = words, .col_stride = 1};
  }
  view.words = result_.scales.data<uint32_t>();
}

void DispatchCall::take_outputs(int64_t received, int64_t rows) {
  const int64_t topk = plan_->view.topk;
  const bool token_major = options_.layout == Layout::token_major;
  Arena& arena = route_->arena;
  RouteView& view = route_->view;
  view.capacity = received;
  view.recv_token = arena.take<int32_t>(received);
  view.recv_ids = arena.take<int32_t>(received * topk);
  view.recv_weights = arena.take<float>(received * topk);
  if (!token_major) view.row_of = arena.take<int32_t>(received * topk);
  route_->rows = rows;
  args_.route = view;

  OutputView& out = args_.out;
  result_.x = make_x(rows);
  out.x = result_.x.data<std::byte>();
  out.rows = rows;
  out.zero_padding = options_.zero_padding;
  take_scales(rows);
  if (token_major && topk > 0) {
    result_.ids = make(DType::i32, {rows, topk});
    result_.weights = make(DType::f32, {rows, topk});
    out.ids = result_.ids.data<int32_t>();
    out.weights = result_.weights.data<float>();
  }
  if (!token_major) {
    result_.weights = make(DType::f32, {rows});
    out.row_weights = result_.weights.data<float>();
  }
  result_.row_source = make(DType::i32, {rows});
  result_.row_token = make(DType::i32, {rows});
  out.row_source = result_.row_source.data<int32_t>();
  out.row_token = result_.row_token.data<int32_t>();
}

/// Peers have sent already: without memory for the rows, receive and drop them, so that the buffer stays usable.
void DispatchCall::take_exact_outputs(int64_t received, int64_t rows) {
  try {
    take_outputs(received, rows);
  } catch (...) {
    args_.route.capacity = args_.out.rows = 0;
    args_.offer = {};
    calls_.use(options_.on, true);
    if (!calls_.backend().dispatch_receive(args_)) calls_.raise_fault();
    throw;
  }
}

bool DispatchCall::is_awaited() const { return is_blocking() || !calls_.backend().is_asynchronous(); }

void DispatchCall::send() {
  calls_.use(options_.on, false);
  calls_.backend().wait_for(options_.on.after);
  if (!calls_.backend().dispatch_send(args_)) calls_.raise_fault();
}

void DispatchCall::receive() {
  Backend& backend = calls_.backend();
  calls_.use(options_.on, !fixed_);
  if (!backend.dispatch_headers(args_)) calls_.raise_fault();
  if (!fixed_) take_exact_outputs(backend.report().received, backend.report().rows);
  calls_.use(options_.on, is_awaited() || (!fixed_ && backend.report().refused_by >= 0));
  if (!backend.dispatch_receive(args_)) {
    if (args_.offer.is_set) calls_.keep_until_reset(result_.x.owner);
    calls_.raise_fault();
  }
  backend.signal(options_.on.done);
  // A source that closed the pair meanwhile may have stores on their way into the rows it was offered.
  if (args_.offer.is_set && !is_awaited()) calls_.keep_until_ended(result_.x.owner);
  else if (args_.offer.is_set && has_lost_a_source()) calls_.keep_until_reset(result_.x.owner);
  if (is_awaited() || !fixed_) calls_.raise_refusal(Kind::dispatch, backend.report());
  finish();
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
  result_.num_dropped = is_awaited() ? report.num_dropped : 0;
  count_rows(args_.call, report, metrics, result_.masked);
  if (result_.num_dropped > 0 && !options_.drop_overflow) {
    fail(ErrorCode::overflow,
         "dispatch: {} rows past capacity = {} were dropped (at least {} were needed); raise capacity or set drop_overflow",
         result_.num_dropped, route_->rows, result_.num_rows + result_.num_dropped);
  }
}

}  // namespace heddle
