// What a rank says to a peer at the start of a call (I2), what it says when it refuses one (I7), leaves one (I9), or
// offers memory (I14). Plain bytes on the wire: change a field and golden.hpp will ask whether you meant it.
#pragma once

#include <cstdint>

#include "base/macros.hpp"
#include "layout/limits.hpp"

namespace heddle {

/// A set of ranks, as it travels.
struct RankSet {
  uint64_t words[kMaxRanks / 64] = {};

  HEDDLE_HD constexpr bool has(int rank) const { return words[rank / 64] >> (rank % 64) & 1; }
  HEDDLE_HD constexpr void add(int rank) { words[rank / 64] |= uint64_t{1} << (rank % 64); }
  HEDDLE_HD constexpr bool empty() const {
    for (uint64_t word : words)
      if (word != 0) return false;
    return true;
  }
};

/// Why a rank refused its own arguments: `argument` was `value`, the limit is `limit`.
struct Refusal {
  uint32_t code = 0;  // 0 = none; else an ErrorCode + 1
  char argument[28] = {};
  int64_t value = 0;
  int64_t limit = 0;

  HEDDLE_HD constexpr bool is_set() const { return code != 0; }
};

struct Header {
  uint64_t seq = 0;
  uint64_t incarnation = 0;
  uint64_t hash = 0;
  RankSet mask;        // whom the sender treats as masked
  uint32_t kind = 0;   // an op; the lane follows from the cell, and is here for the message of a mismatch
  uint32_t lane = 0;
  int32_t count = 0;   // rows for you in this call; with words 0, as their note says it
  int32_t slots = 0;   // rows for you in one round, at most; with words: where they begin, in 16-byte words
  int32_t rounds = 0;  // at least one
  int32_t tokens = 0;  // tokens of the sender's batch
  uint32_t offers = 0;     // 1: in this call receivers offer memory (I14)
  uint32_t row_words = 0;  // self-announcing 16-byte words of a row; 0: rows come another way
  Refusal refusal;
};

struct FaultCell {
  uint64_t incarnation = 0;
  uint64_t seq = 0;
  uint64_t hash = 0;
  uint32_t kind = 0;
  int32_t awaited = -1;  // the peer that the writer waited for or mismatched with
};

/// Where rows of one call may go at the receiver: staged, or straight into row 0 at `offset` of `segment`.
struct Offer {
  uint64_t seq = 0;
  uint64_t incarnation = 0;
  uint64_t hash = 0;
  uint64_t direct = 0;
  uint64_t segment = 0;
  uint64_t offset = 0;
  uint64_t stride = 0;
};

}  // namespace heddle
