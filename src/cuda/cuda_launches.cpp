// How CudaBackend launches kernels: which, by how many, and what they are told.
#include <algorithm>
#include <utility>

#include "cuda/cuda_backend.hpp"
#include "cuda/decode.hpp"
#include "cuda/plan_blocks.hpp"
#include "cuda/signals.hpp"
#include "cuda/take_ids.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

constexpr int kPlanThreads = 256;
constexpr int kOwnShared = 4096;  // that kernels may declare themselves
constexpr int kFewDecodeBlocks = 16;

const Kernels& kernels_of(Workers workers) {
  switch (workers) {
    case Workers::warp: return warp_kernels();
    case Workers::block: return block_kernels();
    case Workers::grid: break;
  }
  return grid_kernels();
}

}  // namespace

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
  GivenIds given;
  void* of_plan[] = {&topo, &plan, &site, &given};
  fire(plan_shot(topo, plan, of_plan));
  rehearse_whole();
  rehearse_decode(dispatch, combine);
  const ServiceKernels& services = service_kernels();
  for (const void* kernel : {services.publish_fault, services.close_pair, services.announce_destroyed,
                             services.claim_fault, services.reset, take_ids_kernel(), take_map_kernel(),
                             await_signals_kernel()}) {
    cudaFuncAttributes ignored{};
    check_cuda(cudaFuncGetAttributes(&ignored, kernel), "loading a kernel");
  }
  launch_.workers = wanted;
}

void CudaBackend::rehearse_decode(const DispatchArgs& dispatch, const CombineArgs& combine) {
  Site site{.is_rehearsal = true};
  DecodeSite decode;
  const DecodeKernels& kernels = decode_kernels();
  for (const void* kernel : {kernels.dispatch, kernels.combine, kernels.combine_masking}) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes_ - kOwnShared),
               "allowing a kernel more shared memory");
  }
  void* of_dispatch[] = {const_cast<DirectPort*>(&port_), const_cast<DispatchArgs*>(&dispatch), &site, &decode};
  void* of_combine[] = {const_cast<DirectPort*>(&port_), const_cast<CombineArgs*>(&combine), &site, &decode};
  fire(decode_shot(kernels.dispatch, 0, of_dispatch, decode_blocks(INT32_MAX)));
  fire(decode_shot(kernels.combine, 0, of_combine, decode_blocks(INT32_MAX)));
  fire(decode_shot(kernels.combine_masking, 0, of_combine, decode_blocks(INT32_MAX)));
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

/// A small call takes at most half of this rank's share: then the next one finds SMs for an early start.
int CudaBackend::decode_blocks(int64_t items) const {
  const int share = std::min(usable_sms(), kMostDecodeBlocks);
  const int64_t wanted = ceil_div(2 * items, kDecodeThreads / 32);  // about as many come as go
  if (wanted > share / 2) return share;
  return static_cast<int>(std::max<int64_t>(wanted, std::min(kFewDecodeBlocks, share / 2)));
}

/// Where ranks share a GPU, a launch must not take the SMs that another's needs, while both wait for each other.
bool CudaBackend::may_overlap(int blocks) const {
  return is_sm90_ && (usable_sms() == num_sms_ || 2 * blocks <= usable_sms());
}

CudaBackend::Shot CudaBackend::decode_shot(const void* kernel, int64_t shared_bytes, void** arguments, int blocks) const {
  return {.kernel = kernel, .arguments = arguments, .blocks = blocks, .threads = kDecodeBlock,
          .shared_bytes = static_cast<int>(shared_bytes), .stream = launch_.stream, .starts_early = may_overlap(blocks)};
}

bool CudaBackend::plans_by_blocks(const Topology& topo) const {
  return launch_.workers == Workers::grid && plan_shared_bytes(topo) <= most_shared_bytes_;
}

/// The plain plan, by one block, sums its lanes' counts one after the other: it is for tests, and for more experts than
/// shared memory holds.
CudaBackend::Shot CudaBackend::plan_shot(const Topology& topo, const PlanView& view, void** arguments) const {
  if (!plans_by_blocks(topo)) return shot_of(Step::plan, arguments);
  const int64_t tiles = std::max<int64_t>(1, ceil_div(view.tokens, kLeastTile));
  return {.kernel = plan_blocks_kernel(), .arguments = arguments,
          .blocks = static_cast<int>(std::min<int64_t>({tiles, usable_sms(), plan_lanes()})),
          .threads = grid_kernels().max_threads, .shared_bytes = static_cast<int>(plan_shared_bytes(topo)), .stream = launch_.stream};
}

void CudaBackend::fire(const Shot& shot) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shot.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shot.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shot.shared_bytes);
  config.stream = shot.stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = shot.starts_early ? 1 : 0;
  check_cuda(cudaLaunchKernelExC(&config, shot.kernel, shot.arguments), "launching a kernel");
}

Site CudaBackend::make_site() const {
  return {.barrier = static_cast<GridBarrier*>(barrier_.get()), .timeout_ns = 2 * parts_.timeout_ns + 1'000'000'000,
          .pump = static_cast<PumpState*>(pump_.get()), .decode = static_cast<DecodeState*>(decode_.get()),
          .ended = ended_.get(), .faulted = faulted_.get(), .refused = refused_.get()};
}

Site CudaBackend::next_site() {
  Site site = make_site();
  if (is_capturing()) return site;
  site.ticket = ++ticket_;
  if (launch_.wait) site.report = reports_.get() + ticket_ % kReports;
  return site;
}

}  // namespace heddle
