#include "ops/calls.hpp"

#include <atomic>
#include <type_traits>
#include <utility>

#include "ops/combine_call.hpp"
#include "ops/dispatch_call.hpp"
#include "ops/fault_report.hpp"
#include "ops/handle_call.hpp"
#include "ops/plan_call.hpp"
#include "protocol/call.hpp"

namespace heddle {
namespace {

int first_of(const RankSet& ranks) {
  int rank = 0;
  while (rank < kMaxRanks && !ranks.has(rank)) ++rank;
  return rank;
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

ErrorCode error_of(FaultCode code) {
  switch (code) {
    case FaultCode::mismatch: return ErrorCode::mismatch;
    case FaultCode::peer_destroyed: return ErrorCode::destroyed;
    case FaultCode::interrupted: return ErrorCode::faulted;
    default: return ErrorCode::timeout;
  }
}

}  // namespace

Calls::Calls(BufferParts parts) : parts_(std::move(parts)), ledger_(std::make_unique<Ledger>()), id_(next_id()) {
  const auto timeout = std::chrono::duration_cast<std::chrono::nanoseconds>(parts_.config.timeout).count();
  ctx_ = {.topo = parts_.topo, .window = Window(parts_.topo.world, parts_.window_bytes), .ledger = ledger_.get(),
          .timeout_ns = static_cast<uint64_t>(timeout), .mask_late_peers = parts_.config.mask_late_peers,
          .in_place = parts_.in_place};
}

Calls::~Calls() { destroy(); }

void Calls::check_usable() const {
  if (destroyed_) fail(ErrorCode::destroyed, "the buffer was destroyed; make a new one");
  if (ctx_.ledger->is_faulted()) {
    fail(ErrorCode::faulted, "the buffer met a fault and waits for reset(): {}", first_fault_);
  }
}

Plan Calls::plan(const TensorView& ids) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  ++metrics_.plans;
  return PlanAccess::make(make_plan_data(*this, ids));
}

Plan Calls::plan_from_rank_map(const TensorView& map) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  ++metrics_.plans;
  return PlanAccess::make(make_plan_data_from_map(*this, map));
}

Handle Calls::handle(const Plan& plan, const RouteTensors& tensors) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  return {.route = make_route(*this, PlanAccess::data(plan), tensors)};
}

void InFlight::run_receive() noexcept {
  if (done_) return;
  done_ = true;
  try {
    receive();
  } catch (...) {
    error_ = std::current_exception();
  }
}

void InFlight::complete() {
  run_receive();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void InFlight::drop(std::string why) {
  if (done_) return;
  done_ = true;
  error_ = std::make_exception_ptr(Error(ErrorCode::faulted, why));
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
  const auto state = parts_.backend->allocate(sizeof(CallState));
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

void Calls::begin(Kind kind) {
  check_usable();
  store_release(&ledger_->interrupted, 0);  // meant for the call before
  auto& lanes = in_flight_[static_cast<size_t>(kind)];
  const auto before = std::exchange(lanes[sent_[static_cast<size_t>(kind)]++ % kLanes], nullptr);
  if (!before || !before->is_open()) return;
  before->run_receive();
  check_usable();
}

void Calls::refuse(Kind kind, std::string_view argument) {
  const std::lock_guard lock(mutex_);
  begin(kind);
  run_refused(kind, refusal_of({argument}));
}

template <class Make>
auto Calls::start(Kind kind, const Make& make) {
  begin(kind);
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
    if (ledger_->is_faulted()) throw;  // the send's own: nothing more can be said to the others
    reason = std::current_exception();
    refusal = refusal_of({"memory"});  // an allocator's, say
  }
  run_refused(kind, refusal);
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
    if (call->is_open()) store_release(&self->ledger_->interrupted, 0);
    call->complete();
  };
}

Received Calls::dispatch(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, [&] {
    return std::make_shared<DispatchCall>(*this, PlanAccess::data(plan), input, options, Use::first);
  });
  call->complete();
  return call->result();
}

Received Calls::dispatch_again(const Handle& handle, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, [&] {
    const Route& route = checked_route("dispatch", handle);
    DispatchOptions same = options;
    same.layout = route.layout;
    same.alignment = route.alignment;
    same.max_tokens = route.max_tokens;
    return std::make_shared<DispatchCall>(*this, route.plan, input, same, Use::again);
  });
  call->complete();
  return call->result();
}

Split<Received> Calls::dispatch_send(const Plan& plan, const DispatchInput& input, const DispatchOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::dispatch, [&] {
    return std::make_shared<DispatchCall>(*this, PlanAccess::data(plan), input, options, Use::split);
  });
  return in_flight(Kind::dispatch, call);
}

Combined Calls::combine(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::combine, [&] {
    return std::make_shared<CombineCall>(*this, handle, input, options, false);
  });
  call->complete();
  return call->result();
}

Split<Combined> Calls::combine_send(const Handle& handle, const CombineInput& input, const CombineOptions& options) {
  const std::lock_guard lock(mutex_);
  const auto call = start(Kind::combine, [&] {
    return std::make_shared<CombineCall>(*this, handle, input, options, true);
  });
  return in_flight(Kind::combine, call);
}

const Route& Calls::checked_route(const char* operation, const Handle& handle) const {
  const Route* route = handle.route.get();
  require(route != nullptr && route->buffer == id_, {"handle"},
          "{}: handle {}; legal: the handle of a dispatch of this buffer", operation,
          route == nullptr ? "is not set" : "belongs to another buffer");
  const uint64_t now = ledger_->incarnation;
  require(route->incarnation == now,
          {"handle.incarnation", static_cast<int64_t>(route->incarnation), static_cast<int64_t>(now)},
          "{}: handle is of incarnation {}, the buffer is in {}: a handle does not survive reset()", operation,
          route->incarnation, now);
  return *route;
}

void Calls::raise_fault() {
  ++metrics_.faults;
  backend().publish_fault(ctx_);
  first_fault_ = describe_fault(ctx_, find_culprit(backend(), ctx_));
  throw Error(error_of(ctx_.ledger->fault.code), first_fault_);
}

void Calls::raise_refusal(Kind kind, const CallState& state) {
  if (state.refused_by < 0) return;
  const Refusal& refusal = state.refusal;
  const bool says_values = refusal.value != refusal.limit;
  fail(ErrorCode::refused, "{} (call {}): rank {} refused its arguments: {}{}", name_of(kind), state.seq, state.refused_by,
       refusal.argument, says_values ? fmt::format(" = {}, legal: {}", refusal.value, refusal.limit) : "");
}

void Calls::mask(int rank) {
  const std::lock_guard lock(mutex_);
  check_usable();
  HEDDLE_CHECK(rank >= 0 && rank < parts_.topo.world && rank != parts_.topo.rank,
               "mask: rank = {}, legal: 0 to {}, not the own rank {}", rank, parts_.topo.world - 1, parts_.topo.rank);
  if (ctx_.ledger->is_open(rank)) backend().close_pair(ctx_, rank);
}

std::vector<int> Calls::masked() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> ranks;
  for (int rank = 0; rank < parts_.topo.world; ++rank) {
    if (!ctx_.ledger->is_open(rank)) ranks.push_back(rank);
  }
  return ranks;
}

void Calls::reset(const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  if (destroyed_) check_usable();
  RankSet set;
  for (int rank : members) {
    HEDDLE_CHECK(rank >= 0 && rank < parts_.topo.world, "reset: members has {}, legal: 0 to {}", rank,
                 parts_.topo.world - 1);
    set.add(rank);
  }
  for (int rank = 0; members.empty() && rank < parts_.topo.world; ++rank) set.add(rank);
  HEDDLE_CHECK(set.has(parts_.topo.rank), "reset: members do not hold the own rank {}", parts_.topo.rank);
  drop_in_flight("the call was dropped by reset() before it was received");
  backend().drain();
  RankSet missing;
  if (!backend().reset(ctx_, set, missing)) {
    std::string names;
    for (int rank = 0; rank < parts_.topo.world; ++rank) {
      if (missing.has(rank)) names += fmt::format("{}{}", names.empty() ? "" : ", ", rank);
    }
    first_fault_ = fmt::format("reset: rank {} did not come within {:g} s; call reset() again, without the ranks that are gone",
                               names, static_cast<double>(ctx_.timeout_ns) * 1e-9);
    claim_fault(ctx_, {.code = FaultCode::timeout, .awaited = Awaited::reset, .peer = first_of(missing)});
    throw Error(ErrorCode::timeout, first_fault_);
  }
  ++metrics_.resets;
  sent_ = {};
  first_fault_.clear();
  if (members.empty()) quarantine_.clear();
}

void Calls::destroy() {
  const std::lock_guard lock(mutex_);
  if (destroyed_) return;
  destroyed_ = true;
  drop_in_flight("the buffer was destroyed before the call was received");
  backend().drain();
  backend().announce_destroyed(ctx_);
  backend().drain();
}

Metrics Calls::metrics() const {
  const std::lock_guard lock(mutex_);
  return metrics_;
}

void Calls::set_allocator(Allocate allocate) {
  const std::lock_guard lock(mutex_);
  allocate_ = std::move(allocate);
}

}  // namespace heddle
