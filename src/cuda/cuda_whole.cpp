// How CudaBackend does whole calls in one launch: by which kernel, with how much block memory.
#include <algorithm>
#include <utility>

#include "cuda/combine_pump.hpp"
#include "cuda/cuda_backend.hpp"
#include "cuda/dispatch_pump.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

constexpr int kFewestMovers = 3;  // with fewer belts, lanes move more

constexpr auto kDispatchBoard = static_cast<int>(sizeof(DispatchBoard<DirectPort>));
constexpr auto kCombineBoard = static_cast<int>(sizeof(CombineBoard<DirectPort>));

int most_movers(const WholeKernel& kernel) { return kernel.warps() - 1; }  // one warp publishes

}  // namespace

void CudaBackend::rehearse_whole() {
  const WholeKernels& whole = whole_kernels();
  Site site{.is_rehearsal = true};
  DispatchArgs dispatch;
  CombineArgs combine;
  DirectPort port = port_;
  int movers = 0;
  void* of_dispatch[] = {&port, &dispatch, &site, &movers};
  void* of_combine[] = {&port, &combine, &site, &movers};
  for (const WholeKernel& kernel :
       {whole.dispatch, whole.dispatch_belt, whole.dispatch_cast, whole.combine, whole.combine_belt}) {
    const void* function = kernel.function;
    const bool combines = function == whole.combine.function || function == whole.combine_belt.function;
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, function), "loading a kernel");
    const int most = most_shared_bytes_ - static_cast<int>(attributes.sharedSizeBytes);
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most),
               "allowing a kernel more shared memory");
    fire(whole_shot({.kernel = kernel, .shared_bytes = most}, combines ? of_combine : of_dispatch));
  }
}

CudaBackend::Shot CudaBackend::whole_shot(const WholeShape& shape, void** arguments) const {
  return {.kernel = shape.kernel.function, .arguments = arguments, .blocks = usable_sms(), .threads = shape.kernel.threads,
          .shared_bytes = shape.shared_bytes, .stream = launch_.stream};
}

CudaBackend::WholeShape CudaBackend::shape_of(const DispatchArgs& args) const {
  const WholeKernels& whole = whole_kernels();
  const auto plan = args.makes_plan ? static_cast<int>(plan_shared_bytes(args.call.ctx.topo)) : 0;
  const BeltShape belt = belt_of(args);
  const WholeKernel& by_belt = args.call.shape.quantise == Quantise::none ? whole.dispatch_belt : whole.dispatch_cast;
  const int movers = std::min(most_movers(by_belt), belt.workers_in(most_shared_bytes_ - kDispatchBoard));
  if (!is_sm90_ || !can_ride(args) || movers < kFewestMovers) {
    return {.kernel = whole.dispatch, .movers = most_movers(whole.dispatch), .shared_bytes = kDispatchBoard + plan};
  }
  const int behind = std::max(static_cast<int>(belt.bytes(movers)), plan);
  return {.kernel = by_belt, .movers = movers, .shared_bytes = kDispatchBoard + behind};
}

CudaBackend::WholeShape CudaBackend::shape_of(const CombineArgs& args) const {
  const WholeKernels& whole = whole_kernels();
  const int movers = std::min(most_movers(whole.combine_belt), SumShape::workers_in(most_shared_bytes_ - kCombineBoard));
  if (!is_sm90_ || !can_ride(args) || movers < kFewestMovers) {
    return {.kernel = whole.combine, .movers = most_movers(whole.combine), .shared_bytes = kCombineBoard};
  }
  return {.kernel = whole.combine_belt, .movers = movers,
          .shared_bytes = kCombineBoard + static_cast<int>(SumShape::bytes(movers))};
}

/// Calls that no pump can do: only the last step is waited for.
bool CudaBackend::dispatch_by_steps(const DispatchArgs& args) {
  const bool wait = std::exchange(launch_.wait, false);
  dispatch_send(args);
  dispatch_headers(args);
  launch_.wait = wait;
  return dispatch_receive(args);
}

bool CudaBackend::combine_by_steps(const CombineArgs& args) {
  const bool wait = std::exchange(launch_.wait, false);
  combine_send(args);
  combine_headers(args);
  launch_.wait = wait;
  return combine_receive(args);
}

bool CudaBackend::dispatch(const DispatchArgs& args) {
  if (decodes(args.call)) return decode_whole(args);
  if (launch_.workers != Workers::grid || !has_pump(args)) return dispatch_by_steps(args);
  if (args.ids.data != nullptr) {
    DispatchArgs taken = args;
    take_ids(args.ids, args.call.ctx.topo.experts, args.plan.ids, taken.id_check);
    taken.ids = {};
    return dispatch(taken);
  }
  if (args.makes_plan && kDispatchBoard + plan_shared_bytes(args.call.ctx.topo) > most_shared_bytes_) {
    make_plan_of(args);
    DispatchArgs planned = args;
    planned.makes_plan = false;
    return dispatch(planned);
  }
  WholeShape shape = shape_of(args);
  Site site = begin_step();
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<DispatchArgs*>(&args), &site, &shape.movers};
  return run_shot(whole_shot(shape, arguments), site, args.call);
}

bool CudaBackend::combine(const CombineArgs& args) {
  if (decodes(args.call)) return decode_whole(args);
  if (launch_.workers != Workers::grid || !has_pump(args)) return combine_by_steps(args);
  WholeShape shape = shape_of(args);
  Site site = begin_step();
  void* arguments[] = {const_cast<DirectPort*>(&port_), const_cast<CombineArgs*>(&args), &site, &shape.movers};
  return run_shot(whole_shot(shape, arguments), site, args.call);
}

const char* CudaBackend::variant_of(const DispatchArgs& args) const {
  if (decodes(args.call)) return "words";
  if (!has_pump(args)) return "steps";
  return shape_of(args).kernel.function == whole_kernels().dispatch.function ? "lanes" : "belt";
}

const char* CudaBackend::variant_of(const CombineArgs& args) const {
  if (decodes(args.call)) return "words";
  if (!has_pump(args)) return "steps";
  return shape_of(args).kernel.function == whole_kernels().combine_belt.function ? "belt" : "lanes";
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

}  // namespace heddle
