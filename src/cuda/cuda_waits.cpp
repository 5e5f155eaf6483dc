// How the host waits for CudaBackend's steps, breaks them off, and copies to and from the GPU.
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "cuda/cuda_backend.hpp"
#include "memory/cuda_driver.hpp"

namespace heddle {

/// Every wait of a kernel has a deadline, so the step ends once the stream has come to it; one that ended without a word
/// broke off at its barrier.
bool CudaBackend::await(const Site& site, const Call& call) {
  constexpr int kLooks = 256;
  const uint64_t began = now_ns(), deadline = began + patience();
  for (int attempt = 0; load_acquire(&site.report->ticket) != site.ticket; ++attempt) {
    relax(attempt);
    deliver_interrupt();
    if (attempt % kLooks != 0) continue;
    if (now_ns() > deadline) give_up("a step");
    if (!has_ended(launch_.stream, "running a step")) continue;
    if (load_acquire(&site.report->ticket) != site.ticket) return end_broken(call);
  }
  waited_ += now_ns() - began;
  last_report_ = site.report;
  if (site.report->faulted != 0) watch_->noticed();
  return site.report->faulted == 0;
}

bool CudaBackend::end_broken(const Call& call) {
  watch_->noticed();
  claim_fault(call.ctx, {.code = FaultCode::timeout, .awaited = Awaited::credit, .kind = call.shape.kind,
                         .peer = parts_.rank, .hash = call.shape.hash()});
  return false;
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

void CudaBackend::read(void* to, const void* from, size_t bytes) { copy(to, from, bytes, launch_.stream); }
void CudaBackend::write(void* to, const void* from, size_t bytes) { copy(to, from, bytes, launch_.stream); }

/// The driver would block where pageable memory waits for the stream, with locks that other ranks of the process need. So
/// the stream's end is waited for before.
void CudaBackend::copy(void* to, const void* from, size_t bytes, CUstream_st* stream) {
  if (bytes == 0) return;
  const CudaDevice device(parts_.device);
  order_->follow(stream);
  finish(stream, "waiting to copy");
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying to or from the GPU");
  order_->note(stream);
  finish(stream, "copying to or from the GPU");
}

}  // namespace heddle
