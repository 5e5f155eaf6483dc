// A split call between its send and its receive.
#pragma once

#include <exception>
#include <string>

namespace heddle {

/// A call that was sent. Its receive runs once, by its hook or by a later send that needs its lane; what that throws is the
/// hook's to raise, not the later send's.
class InFlight {
 public:
  explicit InFlight(bool captured) : captured_(captured) {}
  virtual ~InFlight() = default;

  void run_receive() noexcept;
  /// Runs the receive if it has not run, and throws what it threw.
  void complete();
  void drop(std::string why);  // it will not be received; complete() throws Error{faulted} with the reason
  bool is_open() const { return !done_; }
  /// It was sent in the capture of a graph, so its receive belongs there too.
  bool is_captured() const { return captured_; }

 private:
  virtual void receive() = 0;  // throws the call's fault or refusal

  const bool captured_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace heddle
