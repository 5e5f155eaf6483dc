// Runs a group's sockets while a call of the group waits, on the thread of that call; between calls nothing runs.
#pragma once

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include <chrono>

namespace heddle {

class EventLoop {
 public:
  using Time = std::chrono::steady_clock::time_point;

  asio::io_context& context() { return context_; }

  /// Returns false if `until` came before done() was true.
  template <class Done>
  bool run_until(Time until, Done done) {
    while (!done()) {
      if (context_.run_one_until(until) == 0 && std::chrono::steady_clock::now() >= until) return done();
    }
    return true;
  }

 private:
  asio::io_context context_{1};
  // Else a moment without work would stop the context for good.
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
};

}  // namespace heddle
