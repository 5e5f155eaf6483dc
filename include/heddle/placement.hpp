// Where and when a call runs on a GPU. On the CPU there is nothing to choose.
#pragma once

struct CUstream_st;  // *CUstream_st is a cudaStream_t, *CUevent_st a cudaEvent_t
struct CUevent_st;

namespace heddle {

/// With a stream the call is enqueued there: it reads its inputs, and its outputs are valid, when the stream comes to it.
/// Without, the call behaves as on a CPU: inputs are ready, and outputs are when it returns. All calls of a buffer run in
/// their order, whatever their streams.
struct Placement {
  CUstream_st* stream = nullptr;  // cudaStreamLegacy for the default stream
  int num_sms = 0;                // most multiprocessors that the call takes; 0 = the buffer's
  CUevent_st* after = nullptr;    // the call begins after this event
  CUevent_st* done = nullptr;     // recorded once the outputs are valid

  bool is_default() const { return stream == nullptr && num_sms == 0 && after == nullptr && done == nullptr; }
};

}  // namespace heddle
