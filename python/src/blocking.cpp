#include "blocking.hpp"

#include "device/clock.hpp"
#include "device/wait.hpp"

namespace heddle::python {
namespace {

// Often enough for a person, and rare enough to cost a wait nothing.
constexpr uint64_t kLookEveryNs = 20'000'000;

}  // namespace

SignalWatch::SignalWatch(Buffer& buffer) : buffer_(buffer), next_look_ns_(clock_ns() + kLookEveryNs) {
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

/// In other threads than Python's main one this does nothing.
void SignalWatch::run_handlers() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  raised_.emplace();
  buffer_.interrupt();
}

}  // namespace heddle::python
