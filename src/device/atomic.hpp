// Counters and flags that other ranks see. Ordering is by acquire and release on 64-bit words only (32-bit ones of callers): no
// stand-alone fences, which ThreadSanitizer cannot see. On a GPU the scope is the system: the reader may be a peer or the host.
#pragma once

#include <cstdint>

#include "base/macros.hpp"

#if !HEDDLE_ON_DEVICE
#include <atomic>
#endif

namespace heddle {

HEDDLE_HD inline uint64_t load_acquire(const uint64_t* word) {
#if HEDDLE_ON_DEVICE
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
#endif
}

/// Of a caller's word.
HEDDLE_HD inline uint32_t load_acquire(const uint32_t* word) {
#if HEDDLE_ON_DEVICE
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(word)).load(std::memory_order_acquire);
#endif
}

HEDDLE_HD inline uint64_t load_relaxed(const uint64_t* word) {
#if HEDDLE_ON_DEVICE
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
#endif
}

HEDDLE_HD inline void store_release(uint64_t* word, uint64_t value) {
#if HEDDLE_ON_DEVICE
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
#endif
}

HEDDLE_HD inline void store_relaxed(uint64_t* word, uint64_t value) {
#if HEDDLE_ON_DEVICE
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_relaxed);
#endif
}

/// Adds n; what the adder wrote before is visible to whoever acquires the new total.
HEDDLE_HD inline void add_release(uint64_t* word, uint64_t n) {
#if HEDDLE_ON_DEVICE
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(n) : "memory");
#else
  std::atomic_ref<uint64_t>(*word).fetch_add(n, std::memory_order_release);
#endif
}

/// release_all(), then any number of store_released(): each shows what this thread has seen or done before, to all. One fence
/// for many words (a release store of each takes two to five times as long), on a CPU a release of each.
HEDDLE_HD inline void release_all() {
#if HEDDLE_ON_DEVICE
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

HEDDLE_HD inline void store_released(uint64_t* word, uint64_t value) {
#if HEDDLE_ON_DEVICE
  store_relaxed(word, value);
#else
  store_release(word, value);
#endif
}

/// The value before n was added. Orders nothing.
HEDDLE_HD inline uint64_t take_number(uint64_t* word, uint64_t n = 1) {
#if HEDDLE_ON_DEVICE
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(word), "l"(n));
  return before;
#else
  return std::atomic_ref<uint64_t>(*word).fetch_add(n, std::memory_order_relaxed);
#endif
}

/// The value before n was added, between threads of one device: whoever adds later sees what earlier ones did before.
HEDDLE_HD inline uint64_t add_in_turn(uint64_t* word, uint64_t n) {
#if HEDDLE_ON_DEVICE
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(word), "l"(n) : "memory");
  return before;
#else
  return std::atomic_ref<uint64_t>(*word).fetch_add(n, std::memory_order_acq_rel);
#endif
}

/// Sets a zero word to one; true for the one caller that did it.
HEDDLE_HD inline bool claim(uint64_t* word) {
#if HEDDLE_ON_DEVICE
  return atomicCAS_system(reinterpret_cast<unsigned long long*>(word), 0ull, 1ull) == 0;
#else
  uint64_t free = 0;
  return std::atomic_ref<uint64_t>(*word).compare_exchange_strong(free, 1, std::memory_order_acq_rel);
#endif
}

}  // namespace heddle
