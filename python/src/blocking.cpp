#include "blocking.hpp"

#include <unistd.h>

#include "device/clock.hpp"
#include "device/wait.hpp"

namespace heddle::python {
namespace {

// Often enough for a person, and rare enough to cost a wait nothing.
constexpr uint64_t kLookEveryNs = 20'000'000;

}  // namespace

/// Python runs handlers in its main thread only. Another thread must not ask for the GIL in the middle of a call: when the
/// interpreter ends meanwhile it ends that thread, by unwinding it through frames that may not throw.
SignalWatch::SignalWatch(Buffer& buffer) : buffer_(buffer), next_look_ns_(clock_ns() + kLookEveryNs) {
  if (::gettid() != ::getpid()) return;
  wait_hook = {.run = &SignalWatch::look, .argument = this};
}

SignalWatch::~SignalWatch() { wait_hook = {}; }

void SignalWatch::look(void* self) {
  auto* watch = static_cast<SignalWatch*>(self);
  const uint64_t now = clock_ns();
  if (now < watch->next_look_ns_ || watch->raised_) return;
  watch->next_look_ns_ = now + kLookEveryNs;
  watch->run_handlers();
}

void SignalWatch::run_handlers() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  raised_.emplace();
  buffer_.interrupt();
}

}  // namespace heddle::python
