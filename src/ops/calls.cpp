#include "ops/calls.hpp"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <utility>

#include "ops/call_cost.hpp"
#include "ops/combine_call.hpp"
#include "ops/dispatch_call.hpp"
#include "ops/fault_report.hpp"
#include "ops/handle_call.hpp"
#include "ops/plan_call.hpp"
#include "protocol/call.hpp"

namespace heddle {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

/// Outputs of a buffer on a GPU.
Allocate allocator_of(Backend& backend) {
  if (backend.device().kind == DeviceKind::cpu) return allocate_host;
  return [&backend](DType dtype, std::vector<int64_t> shape) {
    TensorView view{.data = nullptr, .dtype = dtype, .shape = std::move(shape), .strides = {}, .device = backend.device()};
    auto owner = backend.take(static_cast<size_t>(view.numel()) * size_of(dtype));
    view.data = owner.get();
    return Tensor{view, std::move(owner)};
  };
}

}  // namespace

namespace {

/// What words take comes on top of what the caller asked for.
Window window_of(const BufferParts& parts) {
  const int ranks = parts.topo.world;
  return parts.words ? Window(ranks, Window::bytes_with_words(ranks, parts.window_bytes), true)
                     : Window(ranks, parts.window_bytes);
}

}  // namespace

Calls::Calls(BufferParts parts)
    : parts_(std::move(parts)), device_(backend().device()), ledger_(backend().allocate(sizeof(Ledger))),
      host_counts_(backend().share(sizeof(int32_t) * static_cast<size_t>(std::max(topology().num_local(topology().rank), 1)))),
      allocate_(allocator_of(backend())), id_(next_id()) {
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(parts_.config.timeout).count();
  ctx_ = {.topo = parts_.topo, .window = window_of(parts_),
          .ledger = static_cast<Ledger*>(ledger_.get()), .timeout_ns = static_cast<uint64_t>(timeout),
          .mask_late_peers = parts_.config.mask_late_peers, .in_place = parts_.in_place,
          .tags = device_.kind == DeviceKind::cuda};  // ranks have agreed on the kind of device
}

Calls::~Calls() { destroy_quietly(); }

void Calls::check_usable() {
  if (destroyed_) fail(ErrorCode::destroyed, "the buffer was destroyed; make a new one");
  if (!backend().is_faulted(ctx_)) return;
  if (first_fault_.empty()) raise_fault();  // of a call that nobody waited for
  fail(ErrorCode::faulted, "the buffer met a fault and waits for reset(): {}", first_fault_);
}

void Calls::use(const Placement& on, bool wait, int enough) {
  const int wanted = on.num_sms > 0 ? on.num_sms : parts_.sms_are_automatic ? enough : 0;
  const int most = config().num_sms;
  const bool fewer = wanted > 0 && (most == 0 || wanted < most);
  backend().use({.stream = on.stream, .num_sms = fewer ? wanted : most, .wait = wait});
}

/// By the most tokens that a rank may have: this one's may be few, and those that it receives many. Small batches,
/// which go by words, gain by every multiprocessor.
int Calls::enough_sms(const Shape& shape) const {
  if (!parts_.sms_are_automatic || shape.max_tokens == 0 || uses_words(ctx_, shape)) return 0;
  return CallCost::of(parts_.topo, shape, shape.max_tokens).enough_sms(config().num_sms);
}

void Calls::check_placement(const char* operation, const Placement& on) const {
  require(device_.kind == DeviceKind::cuda || on.is_default(), {"stream"},
          "{}: stream, num_sms or events were given, legal on the CPU: none", operation);
  require(on.num_sms >= 0, {"num_sms", on.num_sms, 0}, "{}: num_sms = {}, legal: 0 (the buffer's) or more", operation,
          on.num_sms);
}

void Calls::check_device(const char* operation, const char* name, const TensorView& view) const {
  if (!view.is_set() || view.device == device_) return;
  require(false, {fmt::format("{}.device", name)}, "{}: {} is on {}, legal: {}, where this buffer works", operation, name,
          name_of(view.device), name_of(device_));
}

void Calls::check_waits(const char* operation, const TensorView& waits) const {
  const int64_t world = topology().world;
  require(!waits.is_set() || (waits.dtype == DType::i64 && waits.numel() == world && waits.is_contiguous()),
          {"waits_total"}, "{}: waits_total is {}, legal: contiguous int64 [{}]", operation, waits.describe(), world);
  check_device(operation, "waits_total", waits);
}

Plan Calls::plan(const TensorView& ids, const Placement& on) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  ++metrics_.plans;
  return PlanAccess::make(make_plan_data(*this, ids, on));
}

Reach Calls::reach(const TensorView& ids, const Placement& on) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  ++metrics_.plans;
  Reach reach;
  make_plan_data(*this, ids, on, &reach);
  return reach;
}

Plan Calls::plan_from_rank_map(const TensorView& map, const Placement& on) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  ++metrics_.plans;
  return PlanAccess::make(make_plan_data_from_map(*this, map, on));
}

Handle Calls::handle(const Plan& plan, const RouteTensors& tensors, const Placement& on) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  check_placement("handle", on);
  use(on, true);
  HEDDLE_CHECK(!backend().is_capturing(), "handle: made in a capture, legal: before it");
  return {.route = make_route(*this, PlanAccess::data(plan), tensors)};
}

void Calls::drop_in_flight(const char* why) {
  for (auto& lanes : in_flight_) {
    for (auto& call : lanes) {
      if (call) call->drop(why);
      call.reset();
    }
  }
}

void Calls::run_refused(Kind kind, const Refusal& refusal) {
  ++metrics_.refusals;
  use({}, true);
  const auto state = backend().take(sizeof(CallState));
  const Call call{.ctx = ctx_, .shape = {.kind = kind}, .state = static_cast<CallState*>(state.get()),
                  .refusal = refusal};
  bool ok = false;
  if (kind == Kind::dispatch) {
    DispatchArgs args;
    args.call = call;
    ok = backend().dispatch_send(args) && backend().dispatch_headers(args) && backend().dispatch_receive(args);
  } else {
    CombineArgs args;
    args.call = call;
    ok = backend().combine_send(args) && backend().combine_headers(args) && backend().combine_receive(args);
  }
  if (!ok) raise_fault();
}

void Calls::begin(Kind kind, const Placement& on) {
  check_usable();
  settle();
  use(on, false);
  check_capture(kind);
  backend().interrupt(ctx_, false);  // meant for the call before
  receive_before(kind);
  check_usable();
  use(on, false);
}

/// Lets go of what calls that have ended well needed, though nobody waited for them.
void Calls::settle() {
  const uint64_t ended = backend().steps_ended();
  if (backend().is_faulted(ctx_)) return;  // asked after: a step tells of its fault before its end
  quarantine_.settle(ended);
}

void Calls::receive_before(Kind kind) {
  auto& lanes = in_flight_[static_cast<size_t>(kind)];
  const size_t lane = sent_[static_cast<size_t>(kind)]++ % kLanes;
  const auto before = std::exchange(lanes[lane], nullptr);
  if (before) before->run_receive();
  if (has_captured_ && lanes[1 - lane]) lanes[1 - lane]->run_receive();
}

/// What was captured runs when the graph does; it must not be mixed with what runs now.
void Calls::check_capture(Kind kind) {
  const bool capturing = backend().is_capturing();
  has_captured_ = has_captured_ || capturing;
  for (const auto& call : in_flight_[static_cast<size_t>(kind)]) {
    if (!call || !call->is_open() || call->is_captured() == capturing) continue;
    HEDDLE_CHECK(!capturing, "{}: a split call is open at a capture; receive it before", name_of(kind));
    call->drop("the call was captured, and not received in its capture");
  }
}

void Calls::refuse(Kind kind, std::string_view argument) {
  const std::lock_guard lock(mutex_);
  begin(kind, {});
  run_refused(kind, refusal_of({argument}));
}

template <class Make>
auto Calls::start(Kind kind, const Placement& on, const Make& make) {
  begin(kind, on);
  std::exception_ptr reason;
  Refusal refusal;
  try {
    auto call = make();
    call->send();
    return call;
  } catch (const BadArgument& bad) {
    reason = std::current_exception();
    refusal = bad.refusal;
  } catch (...) {
    if (backend().is_faulted(ctx_)) throw;  // the send's own: nothing more can be said to the others
    reason = std::current_exception();
    refusal = refusal_of({"memory"});  // an allocator's, say
  }
  if (!backend().is_capturing()) run_refused(kind, refusal);  // a capture sends nothing, so there is nothing to refuse
  std::rethrow_exception(reason);
}

template <class Call>
auto Calls::in_flight(Kind kind, const std::shared_ptr<Call>& call) {
  const size_t lane = (sent_[static_cast<size_t>(kind)] - 1) % kLanes;
  in_flight_[static_cast<size_t>(kind)][lane] = call;
  using Result = std::remove_cvref_t<decltype(call->result())>;
  return Split<Result>{.result = {call, &call->result()}, .receive = hook_of(call)};
}

std::function<void()> Calls::hook_of(std::shared_ptr<InFlight> call) {
  return [weak = weak_from_this(), call] {
    const auto self = weak.lock();
    if (!self) fail(ErrorCode::destroyed, "the buffer of this call is gone");
    const std::lock_guard lock(self->mutex_);
    if (call->is_open()) self->backend().interrupt(self->ctx_, false);
    call->complete();
  };
}

Received Calls::dispatch(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, options.on, [&] {
    return std::make_shared<DispatchCall>(*this, PlanForDispatch{.plan = PlanAccess::data(plan)}, input, options,
                                          Use::first);
  });
  call->complete();
  return call->result();
}

Received Calls::dispatch(const TensorView& ids, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, options.on, [&] { return planned(ids, input, options, false); });
  call->complete();
  return call->result();
}

std::shared_ptr<DispatchCall> Calls::planned(const TensorView& ids, const DispatchInput& input,
                                             const DispatchOptions& options, bool split) {
  ++metrics_.plans;
  return std::make_shared<DispatchCall>(*this, make_plan_for_dispatch(*this, ids, options.on), input, options,
                                        split ? Use::split : Use::first);
}

Received Calls::dispatch_again(const Handle& handle, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, options.on, [&] {
    const Route& route = checked_route("dispatch", handle);
    DispatchOptions same = options;
    same.layout = route.layout;
    same.alignment = route.alignment;
    same.max_tokens = route.max_tokens;
    return std::make_shared<DispatchCall>(*this, PlanForDispatch{.plan = route.plan}, input, same, Use::again);
  });
  call->complete();
  return call->result();
}

Split<Received> Calls::dispatch_send(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, options.on, [&] {
    return std::make_shared<DispatchCall>(*this, PlanForDispatch{.plan = PlanAccess::data(plan)}, input, options,
                                          Use::split);
  });
  return in_flight(Kind::dispatch, call);
}

Split<Received> Calls::dispatch_send(const TensorView& ids, const DispatchInput& input,
                                     const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  return in_flight(Kind::dispatch,
                   start(Kind::dispatch, options.on, [&] { return planned(ids, input, options, true); }));
}

Combined Calls::combine(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::combine, options.on, [&] {
    return std::make_shared<CombineCall>(*this, handle, input, options, false);
  });
  call->complete();
  return call->result();
}

Split<Combined> Calls::combine_send(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::combine, options.on, [&] {
    return std::make_shared<CombineCall>(*this, handle, input, options, true);
  });
  return in_flight(Kind::combine, call);
}

const Route& Calls::checked_route(const char* operation, const Handle& handle) const {
  const Route* route = handle.route.get();
  require(route != nullptr && route->buffer == id_, {"handle"},
          "{}: handle {}; legal: the handle of a dispatch of this buffer", operation,
          route == nullptr ? "is not set" : "belongs to another buffer");
  const uint64_t now = incarnation_;
  require(route->incarnation == now,
          {"handle.incarnation", static_cast<int64_t>(route->incarnation), static_cast<int64_t>(now)},
          "{}: handle is of incarnation {}, the buffer is in {}: a handle does not survive reset()", operation,
          route->incarnation, now);
  return *route;
}

void Calls::raise_refusal(Kind kind, const Report& state) {
  if (state.refused_by < 0) return;
  const Refusal& refusal = state.refusal;
  const bool says_values = refusal.value != refusal.limit;
  fail(ErrorCode::refused, "{} (call {}): rank {} refused its arguments: {}{}", name_of(kind), state.seq, state.refused_by,
       refusal.argument, says_values ? fmt::format(" = {}, legal: {}", refusal.value, refusal.limit) : "");
}

Metrics Calls::metrics() const {
  const std::lock_guard lock(mutex_);
  Metrics metrics = metrics_;
  metrics.waiting_nanoseconds = parts_.backend->waited();
  return metrics;
}

void Calls::set_allocator(Allocate allocate) {
  const std::lock_guard lock(mutex_);
  allocate_ = std::move(allocate);
  has_own_allocator_ = true;
}

}  // namespace heddle
