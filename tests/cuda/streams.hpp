// Streams and events of a test.
#pragma once

struct CUstream_st;
struct CUevent_st;

namespace heddle::testing {

/// On the GPU that use_gpu() chose.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  CUstream_st* get() const { return stream_; }
  /// Returns when all is done; lets other ranks of the process go on meanwhile.
  void wait() const;

 private:
  CUstream_st* stream_ = nullptr;
};

class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  CUevent_st* get() const { return event_; }
  void record(const Stream&) const;

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace heddle::testing
