// A buffer that knows which process built it: after a fork the child shares its windows with the parent's peers, so it must
// neither use nor destroy it.
#pragma once

#include <heddle/buffer.hpp>

#include <unistd.h>

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace heddle::python {

/// The arrays that a split call uses until its receive; empty after it.
using Kept = std::shared_ptr<std::shared_ptr<void>>;

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

  /// Nobody may ask for a split call's receive. Then the second call of the kind after it launches that, and nothing else holds
  /// the arrays until then. By the thread that has sent, with the GIL held.
  template <class Result>
  Kept keep(std::shared_ptr<void> arrays) {
    Lanes& lanes = open_[std::is_same_v<Result, Combined>];
    auto kept = std::make_shared<std::shared_ptr<void>>(std::move(arrays));
    lanes.of[lanes.sent++ % lanes.of.size()] = kept;
    return kept;
  }

 private:
  std::unique_ptr<Buffer> buffer_;
  pid_t pid_;

  struct Lanes {
    std::array<Kept, 2> of;  // of the last two split calls
    size_t sent = 0;
  };
  std::array<Lanes, 2> open_;  // of dispatches, and of combines
};

}  // namespace heddle::python
