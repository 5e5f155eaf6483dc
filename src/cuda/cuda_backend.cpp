#include "cuda/cuda_backend.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "cuda/architectures.hpp"
#include "cuda/combine_pump.hpp"
#include "cuda/decode.hpp"
#include "cuda/dispatch_pump.hpp"
#include "cuda/graph_keep.hpp"
#include "cuda/host_words.hpp"
#include "cuda/signals.hpp"
#include "cuda/take_ids.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking for a GPU's attribute");
  return value;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaParts& parts) {
  if (const std::string problem = architecture_problem(parts.device); !problem.empty()) {
    fail(ErrorCode::system, "{}", problem);
  }
  return std::make_unique<CudaBackend>(parts);
}

CudaBackend::CudaBackend(const CudaParts& parts)
    : parts_(parts), port_(parts.windows, parts.heap), pool_(parts.device) {
  const CudaDevice device(parts.device);
  num_sms_ = attribute_of(parts.device, cudaDevAttrMultiProcessorCount);
  most_shared_bytes_ = attribute_of(parts.device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  is_sm90_ = attribute_of(parts.device, cudaDevAttrComputeCapabilityMajor) >= 9;
  check_cuda(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking), "making a stream");
  check_cuda(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), "making a stream");
  order_ = std::make_unique<StreamOrder>();
  launch_.stream = own_stream_;
  barrier_ = allocate(sizeof(GridBarrier));
  pump_ = allocate(sizeof(PumpState));
  decode_ = allocate(sizeof(DecodeState));
  reports_ = map_host_array<Report>(kReports);
  reset_result_ = map_host_array<ResetResult>(1);
  faulted_ = map_host_array<uint64_t>(1);
  watch_ = std::make_unique<WordWatch>(faulted_, [rank = parts.rank, gpu = parts.device] {
    log_warn("rank {}: a call on GPU {} ended in a fault, and nobody waited for it; the buffer's next call raises",
             rank, gpu);
  });
  refused_ = map_host_array<uint64_t>(1);
  ended_ = map_host_array<uint64_t>(1);
  id_checks_ = map_host_array<IdCheck>(kIdChecks);
  ledger_ = std::make_unique<Ledger>();
  control_ = map_host_words(sizeof(Cells) * static_cast<size_t>(parts.ranks));
  last_report_ = reports_.get();
  rehearse(Workers::grid);
  finish(own_stream_, "loading the kernels");
}

CudaBackend::~CudaBackend() {
  // Nothing to be done about errors: the process may be ending, and the driver gone before us.
  try {
    drain();  // steps that nobody waited for write to what goes now
  } catch (const Error&) {
  }
  cudaStreamDestroy(side_stream_);
  cudaStreamDestroy(own_stream_);
  drop_what_graphs_left();
}

std::shared_ptr<void> CudaBackend::allocate(size_t bytes) {
  const CudaDevice device(parts_.device);
  auto block = take(bytes);
  order_->follow(launch_.stream);
  check_cuda(cudaMemsetAsync(block.get(), 0, bytes, launch_.stream), "clearing device memory");
  order_->note(launch_.stream);
  return block;
}

std::shared_ptr<void> CudaBackend::share(size_t bytes) {
  const CudaDevice device(parts_.device);
  return map_host_words(bytes);
}

std::shared_ptr<void> CudaBackend::take(size_t bytes) {
  drop_what_graphs_left();
  auto block = pool_.take(bytes);
  keep(block);
  return block;
}

bool CudaBackend::is_capturing() const { return launch_.stream != own_stream_ && heddle::is_capturing(launch_.stream); }

void CudaBackend::keep(std::shared_ptr<const void> kept) {
  if (is_capturing()) keep_in_graph(launch_.stream, std::move(kept));
}

/// In a capture nobody could be told of a bad id: it counts as none.
IdCheck CudaBackend::expect_ids() {
  IdCheck check;
  if (is_capturing()) return check;
  check.ticket = ++plans_;
  id_checks_.get()[check.ticket % kIdChecks] = check;
  return check;
}

uint64_t* CudaBackend::place_of(const IdCheck& check) const {
  return check.ticket == 0 ? nullptr : &id_checks_.get()[check.ticket % kIdChecks].bad;
}

void CudaBackend::take_ids(const TableView& ids, int experts, int32_t* to, IdCheck& check) {
  uint64_t* bad = place_of(check);
  void* arguments[] = {const_cast<TableView*>(&ids), &experts, &to, &bad};
  take_table(take_ids_kernel(), ids, arguments);
}

uint64_t CudaBackend::bad_id(const IdCheck& check) const {
  const IdCheck& told = id_checks_.get()[check.ticket % kIdChecks];
  return check.ticket == 0 || told.ticket != check.ticket ? 0 : load_acquire(&told.bad);
}

void CudaBackend::take_map(const TableView& map, uint8_t* to) {
  void* arguments[] = {const_cast<TableView*>(&map), &to};
  take_table(take_map_kernel(), map, arguments);
}

void CudaBackend::take_table(const void* kernel, const TableView& table, void** arguments) {
  if (table.numel() == 0) return;
  const CudaDevice device(parts_.device);
  const int64_t blocks = std::min<int64_t>(ceil_div(table.numel(), kIdThreads), usable_sms());
  order_->follow(launch_.stream);
  fire({.kernel = kernel, .arguments = arguments, .blocks = static_cast<int>(blocks), .threads = kIdThreads,
        .stream = launch_.stream});
  order_->note(launch_.stream);
}

void CudaBackend::plan(const Topology& topo, const PlanView& view) { make_plan(topo, view, {}); }

void CudaBackend::plan_from(const TableView& ids, IdCheck& check, const Topology& topo, const PlanView& view) {
  if (!plans_by_blocks(topo)) return Backend::plan_from(ids, check, topo, view);
  make_plan(topo, view, {.table = ids, .bad = place_of(check)});
}

void CudaBackend::make_plan(const Topology& topo, const PlanView& view, const GivenIds& given) {
  const CudaDevice device(parts_.device);
  Site site = make_site();
  void* arguments[] = {const_cast<Topology*>(&topo), const_cast<PlanView*>(&view), &site, const_cast<GivenIds*>(&given)};
  order_->follow(launch_.stream);
  fire(plan_shot(topo, view, arguments));
  order_->note(launch_.stream);
  if (launch_.wait && !is_capturing()) drain();
}

bool CudaBackend::await_signals(const Context& ctx, const SignalView& view) {
  const CudaDevice device(parts_.device);
  uint64_t* faulted = faulted_.get();
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Context*>(&ctx), const_cast<SignalView*>(&view), &faulted};
  order_->follow(launch_.stream);
  fire({.kernel = await_signals_kernel(), .arguments = arguments, .threads = kSignalThreads, .stream = launch_.stream});
  order_->note(launch_.stream);
  return true;
}

template <class Args>
bool CudaBackend::run(Step step, const Args& args) {
  Site site = begin_step();
  const bool ends_call = step == Step::dispatch_receive || step == Step::combine_receive;
  if (!ends_call) site.refused = nullptr;  // somebody may wait for the last step
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Args*>(&args), &site};
  return run_shot(shot_of(step, arguments), site, args.call);
}

Site CudaBackend::begin_step() {
  if (const uint64_t seq = std::exchange(*refused_, 0)) {
    log_warn("call {} was refused by another rank; its outputs hold NaN and no ids, as nobody waited for it", seq);
  }
  return next_site();
}

bool CudaBackend::run_shot(const Shot& shot, const Site& site, const Call& call) {
  const CudaDevice device(parts_.device);
  order_->follow(launch_.stream);
  fire(shot);
  order_->note(launch_.stream);
  return site.report == nullptr || await(site, call);
}

template <class Args>
bool CudaBackend::run_decode(uint32_t phases, const Args& args) {
  DecodeSite decode = DecodeSite::of(args.call, phases);
  if constexpr (std::is_same_v<Args, DispatchArgs>) decode.add(args, place_of(args.id_check));
  const int blocks = decode_blocks(int64_t{args.plan.tokens} * decode.region.parts);
  decode.lets_next_start = may_overlap(blocks);
  Site site = begin_step();
  if (!decode.receives()) site.refused = nullptr;  // somebody may wait for the last step
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Args*>(&args), &site, &decode};
  return run_shot(decode_shot(decode_kernels().of(args), decode_shared_bytes(args), arguments, blocks), site, args.call);
}

bool CudaBackend::decode_whole(const DispatchArgs& args) {
  return run_decode(kSendPhase | kReceivePhase, args);
}
bool CudaBackend::decode_whole(const CombineArgs& args) {
  return run_decode(kSendPhase | kReceivePhase, args);
}

/// A call of words has no other way. Who refuses one sends none, and reads those of others by the plain steps.
bool CudaBackend::decodes(const Call& call) const { return !call.refusal.is_set() && uses_words(call.ctx, call.shape); }

bool CudaBackend::dispatch_send(const DispatchArgs& args) {
  if (decodes(args.call)) return run_decode(kSendPhase, args);
  make_plan_of(args);
  return run(Step::dispatch_send, args);
}
/// Headers of words are read with the rows.
bool CudaBackend::dispatch_headers(const DispatchArgs& args) {
  return decodes(args.call) || run(Step::dispatch_headers, args);
}
bool CudaBackend::dispatch_receive(const DispatchArgs& args) {
  if (decodes(args.call)) return run_decode(kReceivePhase, args);
  return run(Step::dispatch_receive, args);
}
bool CudaBackend::combine_send(const CombineArgs& args) {
  if (decodes(args.call)) return run_decode(kSendPhase, args);
  return run(Step::combine_send, args);
}
bool CudaBackend::combine_headers(const CombineArgs& args) {
  return decodes(args.call) || run(Step::combine_headers, args);
}
bool CudaBackend::combine_receive(const CombineArgs& args) {
  if (decodes(args.call)) return run_decode(kReceivePhase, args);
  return run(Step::combine_receive, args);
}

void CudaBackend::claim_fault(const Context& ctx, const Fault& fault) {
  store_relaxed(faulted_.get(), 1);
  void* arguments[] = {const_cast<Context*>(&ctx), const_cast<Fault*>(&fault)};
  serve(service_kernels().claim_fault, arguments);
}

void CudaBackend::serve(const void* kernel, void** arguments, int threads) {
  const CudaDevice device(parts_.device);
  order_->follow(own_stream_);
  fire({.kernel = kernel, .arguments = arguments, .threads = threads, .stream = own_stream_});
  order_->note(own_stream_);
  finish(own_stream_, "running a service kernel");
}

void CudaBackend::drain() {
  const CudaDevice device(parts_.device);
  order_->follow(own_stream_);
  finish(own_stream_, "draining the steps");
}

void CudaBackend::publish_fault(const Context& ctx) {
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Context*>(&ctx)};
  serve(service_kernels().publish_fault, arguments);
}

void CudaBackend::close_pair(const Context& ctx, int peer) {
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Context*>(&ctx), &peer};
  serve(service_kernels().close_pair, arguments);
}

void CudaBackend::announce_destroyed(const Context& ctx) {
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Context*>(&ctx)};
  serve(service_kernels().announce_destroyed, arguments);
}

bool CudaBackend::reset(const Context& ctx, const RankSet& members, RankSet& missing) {
  const CudaDevice device(parts_.device);
  check_cuda(cudaMemsetAsync(barrier_.get(), 0, sizeof(GridBarrier), own_stream_), "clearing the barrier");
  check_cuda(cudaMemsetAsync(decode_.get(), 0, sizeof(DecodeState), own_stream_), "clearing what decode pumps remember");
  interrupt(ctx, false);
  ResetArgs args{.ctx = ctx, .members = members, .result = reset_result_.get()};
  *reset_result_ = {};
  void* arguments[] = {const_cast<DirectPort*>(&port_), &args};
  serve(service_kernels().reset, arguments, kResetThreads);
  missing = reset_result_->missing;
  if (reset_result_->is_whole != 0) store_relaxed(faulted_.get(), 0);
  return reset_result_->is_whole != 0;
}

const std::byte* CudaBackend::window() {
  if (parts_.windows_on_host) return parts_.windows.local();
  const CudaDevice device(parts_.device);
  check_cuda(cudaMemcpyAsync(control_.get(), parts_.windows.local(), sizeof(Cells) * static_cast<size_t>(parts_.ranks),
                             cudaMemcpyDefault, own_stream_),
             "reading the control region");
  finish(own_stream_, "reading the control region");
  return control_.get();
}

uint64_t CudaBackend::now() { return now_ns(); }
void CudaBackend::relax(int attempt) { pause(attempt); }

const Ledger& CudaBackend::look(const Context& ctx) {
  copy(ledger_.get(), ctx.ledger, sizeof(Ledger), own_stream_);
  return *ledger_;
}

uint64_t CudaBackend::steps_ended() const { return load_acquire(ended_.get()); }

bool CudaBackend::is_faulted() const {
  const bool is_faulted = load_acquire(faulted_.get()) != 0;
  if (is_faulted) watch_->noticed();
  return is_faulted;
}

void CudaBackend::wait_for(CUevent_st* event) {
  if (event != nullptr) check_cuda(cudaStreamWaitEvent(launch_.stream, event, 0), "waiting for an event");
}

void CudaBackend::signal(CUevent_st* event) {
  if (event != nullptr) check_cuda(cudaEventRecord(event, launch_.stream), "recording an event");
}

}  // namespace heddle
