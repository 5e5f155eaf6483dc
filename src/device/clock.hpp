// Time for deadlines, in nanoseconds of a clock that only grows.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

#if !HEDDLE_ON_DEVICE
#include <chrono>
#endif

namespace heddle {

HEDDLE_HD inline uint64_t clock_ns() {
#if HEDDLE_ON_DEVICE
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
#endif
}

}  // namespace heddle
