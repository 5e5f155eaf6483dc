// A buffer that knows which process built it: after a fork the child shares its windows with the parent's peers, so it must
// neither use nor destroy it.
#pragma once

#include <heddle/buffer.hpp>

#include <unistd.h>

#include <memory>

namespace heddle::python {

class OwnBuffer {
 public:
  OwnBuffer(std::shared_ptr<Bootstrap> bootstrap, const Config& config)
      : buffer_(std::make_unique<Buffer>(std::move(bootstrap), config)), pid_(::getpid()) {}

  ~OwnBuffer() {
    if (is_foreign()) buffer_.release();
  }

  /// Throws Error{usage} in a process that did not build it.
  Buffer& get() const {
    HEDDLE_CHECK(!is_foreign(),
                 "the buffer was built in process {} and is used in its child {}; legal: a buffer built after fork()",
                 pid_, ::getpid());
    return *buffer_;
  }

  bool is_foreign() const { return ::getpid() != pid_; }

 private:
  std::unique_ptr<Buffer> buffer_;
  pid_t pid_;
};

}  // namespace heddle::python
