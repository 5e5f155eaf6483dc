// What a waiter does between two looks at a counter.
#pragma once

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

}  // namespace heddle
