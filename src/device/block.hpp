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

HEDDLE_HD inline void or_shared(uint32_t* word, uint32_t bits) {
#if HEDDLE_ON_DEVICE
  atomicOr(word, bits);
#else
  std::atomic_ref<uint32_t>(*word).fetch_or(bits, std::memory_order_relaxed);
#endif
}

HEDDLE_HD inline void add_shared(int32_t* word, int32_t n) {
#if HEDDLE_ON_DEVICE
  atomicAdd(word, n);
#else
  std::atomic_ref<int32_t>(*word).fetch_add(n, std::memory_order_relaxed);
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
