// What the workers of one block share beyond a coop: memory of their own, and words in it that all of them change.
//
// A coop of blocks (Grid; in tests a simulated one) also gives
//   block() of blocks()   this member's block
//   thread() of threads() its place among the block's lanes
//   block_sync()          orders memory between the lanes of the block; all of them must reach it
//   shared()              the block's memory, 16-aligned, as many bytes as the launch asked for, uninitialised
#pragma once

#include <cstdint>

#include "base/macros.hpp"

#if !HEDDLE_ON_DEVICE
#include <atomic>
#endif

namespace heddle {

/// What was there before.
HEDDLE_HD inline uint32_t or_shared(uint32_t* word, uint32_t bits) {
#if HEDDLE_ON_DEVICE
  return atomicOr(word, bits);
#else
  return std::atomic_ref<uint32_t>(*word).fetch_or(bits, std::memory_order_relaxed);
#endif
}

HEDDLE_HD inline void add_shared(int32_t* word, int32_t n) {
#if HEDDLE_ON_DEVICE
  atomicAdd(word, n);
#else
  std::atomic_ref<int32_t>(*word).fetch_add(n, std::memory_order_relaxed);
#endif
}

/// Acquire and release between the threads of a block, on words of any memory.
HEDDLE_HD inline uint64_t load_block(const uint64_t* word) {
#if HEDDLE_ON_DEVICE
  uint64_t value;
  asm volatile("ld.acquire.cta.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
#else
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire);
#endif
}

HEDDLE_HD inline void store_block(uint64_t* word, uint64_t value) {
#if HEDDLE_ON_DEVICE
  asm volatile("st.release.cta.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
#else
  std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
#endif
}

/// One less, after all that the thread did.
HEDDLE_HD inline void leave_block(uint64_t* word) {
#if HEDDLE_ON_DEVICE
  asm volatile("red.release.cta.add.u64 [%0], %1;" ::"l"(word), "l"(~uint64_t{0}) : "memory");
#else
  std::atomic_ref<uint64_t>(*word).fetch_sub(1, std::memory_order_release);
#endif
}

/// Sets a zero word to one; true for the one caller that did it.
HEDDLE_HD inline bool claim_block(uint64_t* word) {
#if HEDDLE_ON_DEVICE
  return atomicCAS(reinterpret_cast<unsigned long long*>(word), 0ull, 1ull) == 0;
#else
  uint64_t free = 0;
  return std::atomic_ref<uint64_t>(*word).compare_exchange_strong(free, 1, std::memory_order_acq_rel);
#endif
}

/// Raises a word to at least `value`.
HEDDLE_HD inline void max_block(uint64_t* word, uint64_t value) {
#if HEDDLE_ON_DEVICE
  atomicMax(reinterpret_cast<unsigned long long*>(word), static_cast<unsigned long long>(value));
#else
  std::atomic_ref<uint64_t> seen(*word);
  for (uint64_t now = seen.load(); now < value && !seen.compare_exchange_weak(now, value);) {
  }
#endif
}

HEDDLE_HD inline int count_bits(uint32_t word) {
#if HEDDLE_ON_DEVICE
  return __popc(word);
#else
  return __builtin_popcount(word);
#endif
}

}  // namespace heddle
