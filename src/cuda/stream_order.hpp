// One order for the work of a buffer, on whatever streams it is enqueued.
#pragma once

struct CUevent_st;
struct CUstream_st;

namespace heddle {

/// Throws what went wrong in the stream.
bool has_ended(CUstream_st*, const char* doing);
bool is_capturing(CUstream_st*);

/// Steps of one buffer change its ledger, so they run one after the other also on different streams. In a capture the
/// graph keeps the order of what is captured, and the caller that of replays.
class StreamOrder {
 public:
  StreamOrder();
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;

  /// What comes next on the stream waits for the last step.
  void follow(CUstream_st*);
  /// What was enqueued there is the last step now.
  void note(CUstream_st*);

 private:
  unsigned long long last_stream_ = 0;  // its number; 0: none
  CUevent_st* last_step_ = nullptr;
};

}  // namespace heddle
