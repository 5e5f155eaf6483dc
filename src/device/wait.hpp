// What a waiter does between two looks at a counter.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

#if !HEDDLE_ON_DEVICE
#include <sched.h>
#endif

namespace heddle {

#if !HEDDLE_ON_DEVICE
/// What a host thread does between its looks in a long wait, e.g. run an interpreter's signal handlers. Of each thread.
struct WaitHook {
  void (*run)(void* argument) = nullptr;
  void* argument = nullptr;
};
inline constinit thread_local WaitHook wait_hook;
#endif

/// Spins a little (a peer that runs answers within a microsecond), then gives the core away: ranks may outnumber cores.
HEDDLE_HD inline void pause(int attempt) {
#if HEDDLE_ON_DEVICE
  if (attempt > 64) __nanosleep(64);
#else
  constexpr int kSpins = 64;
  if (attempt < kSpins) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    return;
  }
  sched_yield();
  if (wait_hook.run != nullptr) wait_hook.run(wait_hook.argument);
#endif
}

/// The deadline of a wait that should end by itself: it starts with the first look that has waited a while.
class Patience {
 public:
  HEDDLE_HD explicit Patience(uint64_t ns) : ns_(ns) {}

  /// After each look in vain; now() is asked now and then.
  template <class Now>
  HEDDLE_HD bool is_over(int attempt, const Now& now) {
    constexpr int kLooks = 256;
    if (attempt % kLooks != kLooks - 1) return false;
    if (deadline_ == 0) deadline_ = now() + ns_;
    return now() > deadline_;
  }

 private:
  uint64_t ns_;
  uint64_t deadline_ = 0;
};

}  // namespace heddle
