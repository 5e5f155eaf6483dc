// Calls that may wait for other ranks: without the GIL, and open to Python's signal handlers.
#pragma once

#include <heddle/buffer.hpp>

#include <optional>

#include "bindings.hpp"
#include "without_gil.hpp"

namespace heddle::python {

/// While it lives, a wait of this thread runs Python's signal handlers now and then. An exception of theirs (Ctrl-C)
/// interrupts the buffer and comes out of rethrow(). To be made without the GIL.
class SignalWatch {
 public:
  explicit SignalWatch(Buffer& buffer);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  bool was_raised() const { return raised_.has_value(); }
  void rethrow() {
    if (raised_) throw std::move(*raised_);
  }

 private:
  static void look(void* self);
  void run_handlers();

  Buffer& buffer_;
  uint64_t next_look_ns_ = 0;
  std::optional<nb::python_error> raised_;
};

/// Runs `call(buffer)` and returns its result.
template <class Call>
auto blocking(Buffer& buffer, const Call& call) {
  const WithoutGil released;
  SignalWatch watch(buffer);
  try {
    if constexpr (std::is_void_v<decltype(call(buffer))>) {
      call(buffer);
      watch.rethrow();
    } else {
      auto result = call(buffer);
      watch.rethrow();
      return result;
    }
  } catch (const Error&) {
    watch.rethrow();
    throw;
  }
}

}  // namespace heddle::python
