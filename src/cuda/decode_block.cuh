// A block of a decode pump: what it has in its own memory, how its warps share work and meet.
#pragma once

#include <cstdint>

#include "cuda/decode.hpp"
#include "cuda/words.cuh"

namespace heddle {

inline constexpr int kDecodeWarps = kDecodeThreads / 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

/// In a block's own memory, as far as registers are better spent on rows.
struct DecodeBoard {
  WordWait wait;
  uint64_t seq;
  uint64_t incarnation;
  uint64_t lane_calls;  // of the lane, before this call
  int32_t lane;
  uint32_t opened;      // 1: it may begin; nothing changes it later
  uint32_t broken;      // 1: it has ended in a fault
  uint32_t unusual;
  uint32_t is_closer;
  uint8_t open[kMostWordRanks];   // neither masked nor removed
  uint8_t live[kMostWordRanks];   // takes part in this call
  uint8_t heard[kMostWordRanks];  // a Heard: why a source sends no rows
  uint8_t lost[kMostWordRanks];   // masked by a deadline in this call
  int32_t count[kMostWordRanks];  // rows from each source
  int32_t tokens[kMostWordRanks];
  int32_t offset[kMostWordRanks + 1];
  int32_t others;  // sources whose rows come by words
  int32_t most;    // rows of one of them
  int32_t gaps;    // between rows, claimed so far
  int32_t first_expert[kMostWordRanks + 1];  // of each rank
  int32_t sent[kMostWordRanks + 1];  // offsets of this rank's slots, where it makes its plan
};

__device__ inline void await_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// All that a pump is told, and the ways of its warps.
class DecodeBlock {
 protected:
  __device__ DecodeBlock(const DirectPort& port, const Call& call, const Site& site, const DecodeSite& decode,
                         DecodeBoard& board)
      : port_(port), call_(call), site_(site), decode_(decode), board_(board), topo_(call.ctx.topo),
        region_(decode.region), wait_(board.wait), kind_(static_cast<int>(call.shape.kind)) {}

  /// The next launch waits before it reads anything.
  __device__ void let_next_start() const {
#if __CUDA_ARCH__ >= 900
    if (decode_.lets_next_start) asm volatile("griddepcontrol.launch_dependents;");
#endif
  }
  __device__ static int lane() { return threadIdx.x & 31; }
  __device__ static int warp() { return threadIdx.x >> 5; }
  __device__ static bool is_last_block() { return blockIdx.x == gridDim.x - 1; }
  /// This warp among all; items are dealt to it and every workers() further on. Neighbouring items go to different blocks.
  __device__ static int worker() { return warp() * gridDim.x + blockIdx.x; }
  /// The one warp of each block that moves no rows.
  __device__ static bool is_clerk() { return warp() == kDecodeWarps; }
  /// All warps of the block but the clerk.
  __device__ static void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(kDecodeThreads) : "memory"); }
  /// The same; true for all if it is for one.
  __device__ static bool any_worker(bool here) {
    int any;
    asm volatile(
        "{ .reg .pred p, q; setp.ne.s32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.s32 %0, 1, 0, q; }"
        : "=r"(any)
        : "r"(int{here}), "n"(kDecodeThreads)
        : "memory");
    return any != 0;
  }
  /// The workers go on when the clerk has opened the call, each when it comes to it.
  __device__ static void let_workers_go() { asm volatile("bar.arrive 3, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static void await_clerk() { asm volatile("bar.sync 3, %0;" ::"n"(kDecodeBlock) : "memory"); }
  /// The clerk goes on when all workers have come by.
  __device__ static void let_clerk_go() { asm volatile("bar.arrive 2, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static void await_workers() { asm volatile("bar.sync 2, %0;" ::"n"(kDecodeBlock) : "memory"); }
  __device__ static int workers() { return kDecodeWarps * gridDim.x; }
  /// Of the lanes up to this one.
  __device__ static int32_t sum_of_lanes_to(int32_t own) {
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const int32_t lower = __shfl_up_sync(kAllLanes, own, apart);
      if (lane() >= apart) own += lower;
    }
    return own;
  }
  __device__ static int divide(int number, const Divider& by) {
    return by.divisor == 1 ? number : static_cast<int>(__umulhi(static_cast<uint32_t>(number), by.reciprocal));
  }

  const DirectPort& port_;
  const Call& call_;
  const Site& site_;
  const DecodeSite& decode_;
  DecodeBoard& board_;
  const Topology topo_;
  const WordRegion& region_;
  const WordWait& wait_;
  const int kind_;
};

}  // namespace heddle
