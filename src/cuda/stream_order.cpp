#include "cuda/stream_order.hpp"

#include "memory/cuda_driver.hpp"

namespace heddle {
namespace {

/// A stream's handle may be that of an earlier one; its number is its own. Never 0 here.
unsigned long long id_of(CUstream_st* stream) {
  unsigned long long id = 0;
  check_cuda(cudaStreamGetId(stream, &id), "asking for a stream's number");
  return id + 1;
}

}  // namespace

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

StreamOrder::StreamOrder() {
  check_cuda(cudaEventCreateWithFlags(&last_step_, cudaEventDisableTiming), "making an event");
}

StreamOrder::~StreamOrder() { cudaEventDestroy(last_step_); }

void StreamOrder::follow(CUstream_st* stream) {
  if (last_stream_ == 0 || is_capturing(stream) || last_stream_ == id_of(stream)) return;
  check_cuda(cudaStreamWaitEvent(stream, last_step_, 0), "ordering streams");
}

void StreamOrder::note(CUstream_st* stream) {
  if (is_capturing(stream)) return;
  check_cuda(cudaEventRecord(last_step_, stream), "recording an event");
  last_stream_ = id_of(stream);
}

}  // namespace heddle
