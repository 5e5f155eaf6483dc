// Streams and events of a test.
#pragma once

#include <cstddef>
#include <memory>

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

/// Zeroed memory of the GPU that use_gpu() chose.
std::shared_ptr<std::byte> take_on_gpu(size_t bytes);
void copy_on_gpu(void* to, const void* from, size_t bytes, const Stream&);

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
