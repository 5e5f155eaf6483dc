#include "cuda/cuda_backend.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "cuda/combine_pump.hpp"
#include "cuda/dispatch_pump.hpp"
#include "cuda/graph_keep.hpp"
#include "cuda/host_words.hpp"
#include "cuda/plan_blocks.hpp"
#include "cuda/take_ids.hpp"
#include "device/wait.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

constexpr size_t kReports = 64;
constexpr size_t kIdChecks = 64;
constexpr int kPlanThreads = 256;

const Kernels& kernels_of(Workers workers) {
  switch (workers) {
    case Workers::warp: return warp_kernels();
    case Workers::block: return block_kernels();
    case Workers::grid: break;
  }
  return grid_kernels();
}

/// Throws what went wrong in the stream.
bool has_ended(CUstream_st* stream, const char* doing) {
  const cudaError_t state = cudaStreamQuery(stream);
  if (state == cudaSuccess) return true;
  if (state != cudaErrorNotReady) check_cuda(state, doing);
  cudaGetLastError();  // "not ready" is kept as an error, and others would take it for theirs
  return false;
}

bool is_capturing(CUstream_st* stream) {
  cudaStreamCaptureStatus status{};
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

/// A stream's handle may be that of an earlier one; its number is its own. Never 0 here.
unsigned long long id_of(CUstream_st* stream) {
  unsigned long long id = 0;
  check_cuda(cudaStreamGetId(stream, &id), "asking for a stream's number");
  return id + 1;
}

int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "asking for a GPU's attribute");
  return value;
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaParts& parts) { return std::make_unique<CudaBackend>(parts); }

CudaBackend::CudaBackend(const CudaParts& parts)
    : parts_(parts), port_(parts.windows, parts.heap), pool_(parts.device) {
  const CudaDevice device(parts.device);
  num_sms_ = attribute_of(parts.device, cudaDevAttrMultiProcessorCount);
  most_shared_bytes_ = attribute_of(parts.device, cudaDevAttrMaxSharedMemoryPerBlockOptin);
  check_cuda(cudaStreamCreateWithFlags(&own_stream_, cudaStreamNonBlocking), "making a stream");
  check_cuda(cudaStreamCreateWithFlags(&side_stream_, cudaStreamNonBlocking), "making a stream");
  check_cuda(cudaEventCreateWithFlags(&last_step_, cudaEventDisableTiming), "making an event");
  launch_.stream = own_stream_;
  barrier_ = allocate(sizeof(GridBarrier));
  pump_ = allocate(sizeof(PumpState));
  reports_ = map_host_array<Report>(kReports);
  reset_result_ = map_host_array<ResetResult>(1);
  faulted_ = map_host_array<uint64_t>(1);
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
  cudaEventDestroy(last_step_);
  cudaStreamDestroy(side_stream_);
  cudaStreamDestroy(own_stream_);
  drop_what_graphs_left();
}

void CudaBackend::use(const Launch& launch) {
  launch_ = launch;
  if (launch_.stream == nullptr) launch_.stream = own_stream_;
  if (is_rehearsed_[static_cast<size_t>(launch.workers)]) return;
  const CudaDevice device(parts_.device);
  rehearse(launch.workers);
}

/// Else the first launch would load code and enlarge the device's local memory, and both wait for kernels that run.
void CudaBackend::rehearse(Workers workers) {
  is_rehearsed_[static_cast<size_t>(workers)] = true;
  const Workers wanted = std::exchange(launch_.workers, workers);
  Site site{.is_rehearsal = true};
  Topology topo;
  PlanView plan;
  DispatchArgs dispatch;
  CombineArgs combine;
  DirectPort port = port_;
  for (int i = 0; i < kSteps; ++i) {
    const auto step = static_cast<Step>(i);
    void* of_plan[] = {&topo, &plan, &site};
    void* of_call[] = {&port, step < Step::combine_send ? static_cast<void*>(&dispatch) : &combine, &site};
    fire(shot_of(step, step == Step::plan ? of_plan : of_call));
  }
  check_cuda(cudaFuncSetAttribute(plan_blocks_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes_),
             "allowing a kernel more shared memory");
  void* of_plan[] = {&topo, &plan, &site};
  fire(plan_shot(topo, plan, of_plan));
  void* whole_dispatch[] = {&port, &dispatch, &site};
  void* whole_combine[] = {&port, &combine, &site};
  for (const void* kernel : {whole_kernels().dispatch, whole_kernels().combine}) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, whole_kernels().shared_bytes),
               "allowing a kernel more shared memory");
  }
  fire(whole_shot(whole_kernels().dispatch, whole_dispatch));
  fire(whole_shot(whole_kernels().combine, whole_combine));
  const ServiceKernels& services = service_kernels();
  for (const void* kernel : {services.publish_fault, services.close_pair, services.announce_destroyed,
                             services.claim_fault, services.reset, take_ids_kernel(), take_map_kernel()}) {
    cudaFuncAttributes ignored{};
    check_cuda(cudaFuncGetAttributes(&ignored, kernel), "loading a kernel");
  }
  launch_.workers = wanted;
}

std::shared_ptr<void> CudaBackend::allocate(size_t bytes) {
  const CudaDevice device(parts_.device);
  auto block = take(bytes);
  follow_last_step(launch_.stream);
  check_cuda(cudaMemsetAsync(block.get(), 0, bytes, launch_.stream), "clearing device memory");
  note_step(launch_.stream);
  return block;
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

int64_t CudaBackend::plan_lanes() const { return launch_.workers == Workers::warp ? 32 : kPlanThreads; }

int CudaBackend::usable_sms() const {
  return launch_.num_sms > 0 ? std::min(launch_.num_sms, num_sms_) : num_sms_;
}

CudaBackend::Shot CudaBackend::shot_of(Step step, void** arguments) const {
  const Kernels& kernels = kernels_of(launch_.workers);
  const bool by_grid = launch_.workers == Workers::grid && step != Step::plan;
  return {.kernel = kernels.of(step), .arguments = arguments, .blocks = by_grid ? usable_sms() : 1,
          .threads = step == Step::plan ? static_cast<int>(plan_lanes()) : kernels.max_threads,
          .stream = launch_.stream};
}

CudaBackend::Shot CudaBackend::whole_shot(const void* kernel, void** arguments) const {
  return {.kernel = kernel, .arguments = arguments, .blocks = usable_sms(), .threads = whole_kernels().threads,
          .shared_bytes = whole_kernels().shared_bytes, .stream = launch_.stream};
}

/// The plain plan, by one block, sums its lanes' counts one after the other: it is for tests, and for more experts than
/// shared memory holds.
CudaBackend::Shot CudaBackend::plan_shot(const Topology& topo, const PlanView& view, void** arguments) const {
  const int64_t shared = plan_shared_bytes(topo);
  if (launch_.workers != Workers::grid || shared > most_shared_bytes_) return shot_of(Step::plan, arguments);
  const int64_t tiles = std::max<int64_t>(1, ceil_div(view.tokens, kTileTokens));
  return {.kernel = plan_blocks_kernel(), .arguments = arguments,
          .blocks = static_cast<int>(std::min<int64_t>({tiles, usable_sms(), plan_lanes()})),
          .threads = grid_kernels().max_threads, .shared_bytes = static_cast<int>(shared), .stream = launch_.stream};
}

void CudaBackend::fire(const Shot& shot) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shot.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shot.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shot.shared_bytes);
  config.stream = shot.stream;
  check_cuda(cudaLaunchKernelExC(&config, shot.kernel, shot.arguments), "launching a kernel");
}

/// Steps of one buffer change its ledger, so they run one after the other also on different streams. In a capture the
/// graph keeps the order of what is captured, and the caller that of replays.
void CudaBackend::follow_last_step(CUstream_st* stream) {
  if (last_stream_ == 0 || heddle::is_capturing(stream) || last_stream_ == id_of(stream)) return;
  check_cuda(cudaStreamWaitEvent(stream, last_step_, 0), "ordering streams");
}

void CudaBackend::note_step(CUstream_st* stream) {
  if (heddle::is_capturing(stream)) return;
  check_cuda(cudaEventRecord(last_step_, stream), "recording an event");
  last_stream_ = id_of(stream);
}

Site CudaBackend::make_site() const {
  return {.barrier = static_cast<GridBarrier*>(barrier_.get()), .timeout_ns = 2 * parts_.timeout_ns + 1'000'000'000,
          .pump = static_cast<PumpState*>(pump_.get()), .ended = ended_.get(), .faulted = faulted_.get(),
          .refused = refused_.get()};
}

Site CudaBackend::next_site() {
  Site site = make_site();
  if (is_capturing()) return site;
  site.ticket = ++ticket_;
  if (launch_.wait) site.report = reports_.get() + ticket_ % kReports;
  return site;
}

/// In a capture nobody could be told of a bad id: it counts as none.
IdCheck CudaBackend::take_ids(const TableView& ids, int experts, int32_t* to) {
  IdCheck check;
  IdCheck* told = nullptr;
  if (!is_capturing()) {
    check.ticket = ++plans_;
    told = id_checks_.get() + check.ticket % kIdChecks;
    *told = check;
  }
  uint64_t* bad = told == nullptr ? nullptr : &told->bad;
  void* arguments[] = {const_cast<TableView*>(&ids), &experts, &to, &bad};
  take_table(take_ids_kernel(), ids, arguments);
  return check;
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
  follow_last_step(launch_.stream);
  fire({.kernel = kernel, .arguments = arguments, .blocks = static_cast<int>(blocks), .threads = kIdThreads,
        .stream = launch_.stream});
  note_step(launch_.stream);
}

void CudaBackend::plan(const Topology& topo, const PlanView& view) {
  const CudaDevice device(parts_.device);
  Site site = make_site();
  void* arguments[] = {const_cast<Topology*>(&topo), const_cast<PlanView*>(&view), &site};
  follow_last_step(launch_.stream);
  fire(plan_shot(topo, view, arguments));
  note_step(launch_.stream);
  if (launch_.wait && !is_capturing()) drain();
}

template <class Args>
bool CudaBackend::run(Step step, const Args& args) {
  return run_shot(args, [&](void** arguments) { return shot_of(step, arguments); });
}

template <class Args, class MakeShot>
bool CudaBackend::run_shot(const Args& args, const MakeShot& make_shot) {
  const CudaDevice device(parts_.device);
  if (const uint64_t seq = std::exchange(*refused_, 0)) {
    log_warn("call {} was refused by another rank; its outputs hold NaN and no ids, as nobody waited for it", seq);
  }
  Site site = next_site();
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<Args*>(&args), &site};
  follow_last_step(launch_.stream);
  fire(make_shot(arguments));
  note_step(launch_.stream);
  return site.report == nullptr || await(site, args.call);
}

bool CudaBackend::dispatch_send(const DispatchArgs& args) { return run(Step::dispatch_send, args); }
bool CudaBackend::dispatch_headers(const DispatchArgs& args) { return run(Step::dispatch_headers, args); }
bool CudaBackend::dispatch_receive(const DispatchArgs& args) { return run(Step::dispatch_receive, args); }
bool CudaBackend::combine_send(const CombineArgs& args) { return run(Step::combine_send, args); }
bool CudaBackend::combine_headers(const CombineArgs& args) { return run(Step::combine_headers, args); }
bool CudaBackend::combine_receive(const CombineArgs& args) { return run(Step::combine_receive, args); }

template <class Args>
bool CudaBackend::run_whole(const void* kernel, const Args& args) {
  return run_shot(args, [&](void** arguments) { return whole_shot(kernel, arguments); });
}

bool CudaBackend::dispatch(const DispatchArgs& args) {
  if (launch_.workers != Workers::grid || !has_pump(args)) return Backend::dispatch(args);
  return run_whole(whole_kernels().dispatch, args);
}

bool CudaBackend::combine(const CombineArgs& args) {
  if (launch_.workers != Workers::grid || !has_pump(args)) return Backend::combine(args);
  return run_whole(whole_kernels().combine, args);
}

PumpState CudaBackend::look_at_pump() {
  PumpState state;
  read(&state, pump_.get(), sizeof state);
  return state;
}

void CudaBackend::tune(int senders) {
  const int32_t wanted = senders;
  write(&static_cast<PumpState*>(pump_.get())->senders, &wanted, sizeof wanted);
}

/// Every wait of a kernel has a deadline, so the step ends once the stream has come to it; one that ended without a word
/// broke off at its barrier.
bool CudaBackend::await(const Site& site, const Call& call) {
  constexpr int kLooks = 256;
  const uint64_t deadline = now_ns() + patience();
  for (int attempt = 0; load_acquire(&site.report->ticket) != site.ticket; ++attempt) {
    relax(attempt);
    deliver_interrupt();
    if (attempt % kLooks != 0) continue;
    if (now_ns() > deadline) give_up("a step");
    if (!has_ended(launch_.stream, "running a step")) continue;
    if (load_acquire(&site.report->ticket) != site.ticket) return end_broken(call);
  }
  last_report_ = site.report;
  return site.report->faulted == 0;
}

bool CudaBackend::end_broken(const Call& call) {
  claim_fault(call.ctx, {.code = FaultCode::timeout, .awaited = Awaited::credit, .kind = call.shape.kind,
                         .peer = parts_.rank, .hash = call.shape.hash()});
  return false;
}

void CudaBackend::claim_fault(const Context& ctx, const Fault& fault) {
  store_relaxed(faulted_.get(), 1);
  void* arguments[] = {const_cast<Context*>(&ctx), const_cast<Fault*>(&fault)};
  serve(service_kernels().claim_fault, arguments);
}

/// Longer than any step, and what a caller's stream may have to do before.
uint64_t CudaBackend::patience() const { return 4 * parts_.timeout_ns + 30'000'000'000; }

void CudaBackend::give_up(const char* what) {
  store_relaxed(faulted_.get(), 1);
  fail(ErrorCode::system, "{}: the GPU did not come to its end within {} s", what, patience() / 1'000'000'000);
}

void CudaBackend::finish(CUstream_st* stream, const char* doing) {
  const uint64_t deadline = now_ns() + patience();
  for (int attempt = 0; !has_ended(stream, doing); ++attempt) {
    if (now_ns() > deadline) give_up(doing);
    relax(attempt);
    deliver_interrupt();
  }
}

void CudaBackend::serve(const void* kernel, void** arguments) {
  const CudaDevice device(parts_.device);
  follow_last_step(own_stream_);
  fire({.kernel = kernel, .arguments = arguments, .stream = own_stream_});
  note_step(own_stream_);
  finish(own_stream_, "running a service kernel");
}

void CudaBackend::drain() {
  const CudaDevice device(parts_.device);
  follow_last_step(own_stream_);
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
  interrupt(ctx, false);
  ResetArgs args{.ctx = ctx, .members = members, .result = reset_result_.get()};
  *reset_result_ = {};
  void* arguments[] = {const_cast<DirectPort*>(&port_), &args};
  serve(service_kernels().reset, arguments);
  missing = reset_result_->missing;
  if (reset_result_->is_whole != 0) store_relaxed(faulted_.get(), 0);
  return reset_result_->is_whole != 0;
}

const std::byte* CudaBackend::window() {
  if (parts_.windows_on_host) return parts_.windows.local();
  const CudaDevice device(parts_.device);
  check_cuda(cudaMemcpyAsync(control_.get(), parts_.windows.local(), sizeof(Cells) * static_cast<size_t>(parts_.ranks),
                             cudaMemcpyDeviceToHost, own_stream_),
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

bool CudaBackend::is_faulted() const { return load_acquire(faulted_.get()) != 0; }

/// From any thread, also in a signal handler: so the host's next look at its wait does it.
void CudaBackend::interrupt(const Context& ctx, bool on) {
  to_interrupt_.store(on ? ctx.ledger : nullptr, std::memory_order_release);
  if (on || interrupted_ == nullptr) return;
  set_interrupted(std::exchange(interrupted_, nullptr), 0);
}

void CudaBackend::deliver_interrupt() {
  Ledger* ledger = to_interrupt_.load(std::memory_order_acquire);
  if (ledger == nullptr || ledger == interrupted_) return;
  interrupted_ = ledger;
  set_interrupted(ledger, 1);
}

/// Not in the order of the steps: one of them is what shall end.
void CudaBackend::set_interrupted(Ledger* ledger, uint64_t word) {
  const CudaDevice device(parts_.device);
  check_cuda(cudaMemcpyAsync(&ledger->interrupted, &word, sizeof word, cudaMemcpyHostToDevice, side_stream_),
             "interrupting a step");
  while (!has_ended(side_stream_, "interrupting a step")) relax(0);
}

void CudaBackend::wait_for(CUevent_st* event) {
  if (event != nullptr) check_cuda(cudaStreamWaitEvent(launch_.stream, event, 0), "waiting for an event");
}

void CudaBackend::signal(CUevent_st* event) {
  if (event != nullptr) check_cuda(cudaEventRecord(event, launch_.stream), "recording an event");
}

void CudaBackend::read(void* to, const void* from, size_t bytes) { copy(to, from, bytes, launch_.stream); }
void CudaBackend::write(void* to, const void* from, size_t bytes) { copy(to, from, bytes, launch_.stream); }

/// The driver would block where pageable memory waits for the stream, with locks that other ranks of the process need. So
/// the stream's end is waited for before.
void CudaBackend::copy(void* to, const void* from, size_t bytes, CUstream_st* stream) {
  if (bytes == 0) return;
  const CudaDevice device(parts_.device);
  follow_last_step(stream);
  finish(stream, "waiting to copy");
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying to or from the GPU");
  note_step(stream);
  finish(stream, "copying to or from the GPU");
}

}  // namespace heddle
