// Readiness of experts: a word of the caller's for each, by which a kernel sees that all rows of the expert are there, while
// those of others are still on their way.
//
//   word = 2^32 x calls whose rows of the expert are all there  +  pieces of the call in progress
//
// A piece is what one worker brings: a row or a part of one, and one for the tables. The last one of a call carries into the
// upper half, so the word only grows and nobody clears it: it is at least n 2^32 once the n-th call's rows are there.
// Each piece is added with release and acquire at the scope of the device, after its bytes; a reader acquires the word.
#pragma once

#include <cstdint>

#include "device/atomic.hpp"
#include "device/coop.hpp"

namespace heddle {

/// Null: nobody wants to know.
struct ReadyView {
  uint64_t* words = nullptr;  // [L] the caller's

  HEDDLE_HD bool is_set() const { return words != nullptr; }
};

inline constexpr uint64_t kReadyCall = uint64_t{1} << 32;

HEDDLE_HD inline uint64_t next_ready(uint64_t word) { return (word / kReadyCall + 1) * kReadyCall; }

/// By one lane, after its worker's lanes: one piece of the `pieces` that an expert gets in this call.
HEDDLE_HD inline void add_ready(uint64_t* word, uint64_t pieces) {
  const uint64_t before = add_in_turn(word, 1);
  if (before % kReadyCall + 1 == pieces) add_in_turn(word, kReadyCall - pieces);
}

/// Ends a call in which not all pieces come, as a source was masked: an expert of which some are there (the tables are) has not
/// been told of. `all`: no expert has, as the tables were held back. All members, after they met.
template <class Coop>
HEDDLE_HD void complete_ready(const Coop& coop, const ReadyView& ready, int experts, bool all = false) {
  deal_lanes(coop, 0, experts, [&](long expert) {
    const uint64_t word = load_relaxed(ready.words + expert);
    if (all || word % kReadyCall != 0) store_release(ready.words + expert, next_ready(word));
  });
}

/// After a fault: whoever waits for an expert goes on, and finds poison. All members, after they met.
template <class Coop>
HEDDLE_HD void give_up_ready(const Coop& coop, const ReadyView& ready, int experts) {
  deal_lanes(coop, 0, experts, [&](long expert) {
    store_release(ready.words + expert, next_ready(load_relaxed(ready.words + expert)));
  });
}

}  // namespace heddle
