// What the blocks of a launch that does a whole call share. One for each rank, in device memory, zero at first.
#pragma once

#include <cstdint>

#include "base/macros.hpp"
#include "device/atomic.hpp"
#include "device/clock.hpp"
#include "layout/limits.hpp"

namespace heddle {

/// How far the last block, which meets the peers, has come.
enum class Stage : uint64_t { opening = 0, ready = 1, broken = 2 };

enum class Queue { send, own, receive };

/// Moments of the last block, for benchmarks.
enum class Moment { start, opened, laid_out, sent, received, met, closed };
inline constexpr int kMoments = 7;

struct PumpState {
  uint64_t opened = 0;            // 1: the lane is open; written before all blocks meet
  uint64_t stage = 0;             // a Stage; atomic
  uint64_t next[3] = {};          // claims of each Queue; atomic
  uint64_t blocks_sent = 0;       // blocks whose rows of the round are all announced; atomic
  uint64_t late[kMaxRanks] = {};  // 1: the source was masked while rows came; atomic
  uint64_t hits[kMaxRanks] = {};  // of a combine whose hits travel alone: those sent to a source in this round; atomic
  uint64_t moments[kMoments] = {};
  int32_t senders = 0;  // workers of a block that send; 0: as many as are known to be good

  HEDDLE_HD void start_round(int ranks) {
    for (uint64_t& word : next) word = 0;
    for (int rank = 0; rank < ranks; ++rank) hits[rank] = 0;
    blocks_sent = 0;
  }
  HEDDLE_HD void start_call(int ranks, bool is_open) {
    start_round(ranks);
    for (int rank = 0; rank < ranks; ++rank) late[rank] = 0;
    store_relaxed(&stage, static_cast<uint64_t>(Stage::opening));
    opened = is_open;
  }
};

/// Cycles of this thread's processor.
HEDDLE_HD inline uint64_t cycles() {
#if HEDDLE_ON_DEVICE
  return static_cast<uint64_t>(clock64());
#else
  return 0;
#endif
}

}  // namespace heddle
