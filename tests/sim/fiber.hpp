// A rank of the simulation: a stack of its own on the one thread there is. Sanitizers are told of each change of stack, and
// ThreadSanitizer takes each fiber for a thread: a change orders nothing, so what the protocol fails to order is a race.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace heddle::testing {

class Fiber {
 public:
  /// It starts with the first resume().
  explicit Fiber(std::function<void()> body);
  /// It has ended, or never started: a stack with live objects cannot go.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Once it has ended: another body, which starts with the next resume(). Cheaper than another fiber, as ThreadSanitizer takes it
  /// for the same thread.
  void restart(std::function<void()> body);
  /// From the main stack; returns when the fiber yields or ends.
  void resume();
  /// From the fiber's own stack.
  void yield();
  /// The one that runs on this thread; null on the main stack.
  static Fiber* current();
  bool has_started() const;
  bool has_ended() const;

  /// What the main stack does in between, the fiber has done: a put that lands late is still its sender's store.
  void begin_acting_for();
  void end_acting_for();
  /// The main stack may read what the fiber wrote.
  void join();

 private:
  struct Stack;
  std::unique_ptr<Stack> stack_;
};

}  // namespace heddle::testing
