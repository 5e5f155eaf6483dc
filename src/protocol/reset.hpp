// The only resync (I11): members stop, meet, clear what is theirs, and meet again. By one thread; the rank's own kernels have
// ended and its own puts have landed.
#pragma once

#include <cstdint>

#include "protocol/context.hpp"

namespace heddle {

/// A reset counter holds 2 x incarnation + phase below, and above how often its source has come back to the owner after a
/// reset that left the owner out.
inline constexpr uint64_t kLeftOut = uint64_t{1} << 40;

HEDDLE_HD inline uint64_t total_from(const std::byte* window, const Context& ctx, int peer) {
  return load_acquire(&cells_of(window, ctx, peer).reset) % kLeftOut;
}
HEDDLE_HD inline uint64_t left_out_by(const std::byte* window, const Context& ctx, int peer) {
  return load_acquire(&cells_of(window, ctx, peer).reset) / kLeftOut;
}

/// Brings this rank's reset counter at each member to 2 x incarnation + phase, and waits for theirs. The counters are
/// absolute and never cleared, so a meeting that was broken off can be held again. False: `missing` did not come.
template <class Port>
HEDDLE_HD bool meet(Port& port, const Context& ctx, const RankSet& members, uint64_t total, RankSet& missing) {
  Ledger& ledger = *ctx.ledger;
  const int64_t counter = static_cast<int64_t>(offsetof(Cells, reset));
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer) || ledger.told[peer] >= total) continue;
    const bool was_out = ledger.mask[peer] == static_cast<uint64_t>(Mask::removed) && ledger.told[peer] / 2 < total / 2;
    const uint64_t n = total - ledger.told[peer] + (was_out ? kLeftOut : 0);
    port.add(peer, ctx.window.cells(ctx.topo.rank) + counter, static_cast<int64_t>(n));
    ledger.told[peer] = total;
  }
  missing = {};
  const uint64_t deadline = port.now() + ctx.timeout_ns;
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer)) continue;
    for (int attempt = 0; total_from(port.local(), ctx, peer) < total; ++attempt) {
      if (port.now() > deadline || load_acquire(&ledger.interrupted) != 0) {
        missing.add(peer);
        break;
      }
      port.relax(attempt);
    }
  }
  return missing.empty();
}

/// Clears what peers wrote in this rank's control region, but for the reset counters.
HEDDLE_HD inline void clear_cells(std::byte* window, const Context& ctx) {
  for (int source = 0; source < ctx.topo.world; ++source) {
    auto& cells = *reinterpret_cast<Cells*>(window + ctx.window.cells(source));
    for (uint64_t* word = &cells.headers[0][0]; word != &cells.reset; ++word) store_relaxed(word, 0);
  }
}

HEDDLE_HD inline void clear_tags(std::byte* window, const Context& ctx) {
  if (!ctx.tags) return;
  for (int item = 0; item < kKinds * kLanes * ctx.topo.world; ++item) {
    const auto kind = static_cast<Kind>(item / kLanes / ctx.topo.world);
    const int64_t at = ctx.window.tags(kind, item / ctx.topo.world % kLanes, item % ctx.topo.world);
    auto* tags = reinterpret_cast<uint64_t*>(window + at);
    for (int64_t i = 0; i < ctx.window.num_tags(); ++i) store_relaxed(tags + i, 0);
  }
}

/// All but what the reset counters at the peers show. Word by word: a second ledger would be 10 KB of a kernel's stack.
HEDDLE_HD inline void clear_ledger(const Context& ctx, const RankSet& members) {
  Ledger& ledger = *ctx.ledger;
  for (uint64_t* word = &ledger.seq; word != &ledger.told[0]; ++word) *word = 0;
  ledger.fault = {};
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer)) ledger.mask[peer] = static_cast<uint64_t>(Mask::removed);
  }
  ledger.fault_claimed = 0;
}

/// The incarnation to go to: this rank's next, or that which a member is in or on its way to. A rank that an earlier reset
/// left out lags behind.
HEDDLE_HD inline uint64_t newest(const std::byte* window, const Context& ctx, const RankSet& members) {
  uint64_t most = ctx.ledger->incarnation + 1;
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    const uint64_t theirs = total_from(window, ctx, peer) / 2;
    if (members.has(peer) && theirs > most) most = theirs;
  }
  return most;
}

HEDDLE_HD inline void note_left_out(const std::byte* window, const Context& ctx) {
  for (int peer = 0; peer < ctx.topo.world; ++peer) ctx.ledger->left_out[peer] = left_out_by(window, ctx, peer);
}

/// A member that is further has gone on without this rank since note_left_out(). Without such a sign it was here, and is in
/// its next reset already.
HEDDLE_HD inline bool is_left_out(const std::byte* window, const Context& ctx, const RankSet& members) {
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (members.has(peer) && left_out_by(window, ctx, peer) > ctx.ledger->left_out[peer]) return true;
  }
  return false;
}

struct NoWords {
  HEDDLE_HD void operator()() const {}
};

/// Repairs the buffer for `members`, of which this rank is one. False: those in `missing` did not come; try again. Cells are
/// cleared once: after the first meeting has ended for all, a member that is through the second may already write to them.
/// `clear_words()` zeroes this rank's self-announcing words.
template <class Port, class ClearWords = NoWords>
HEDDLE_HD bool reset(Port& port, const Context& ctx, const RankSet& members, RankSet& missing,
                     const ClearWords& clear_words = {}) {
  Ledger& ledger = *ctx.ledger;
  const std::byte* window = port.local();
  store_release(&ledger.interrupted, 0);  // meant for the call before
  while (true) {
    const uint64_t next = newest(window, ctx, members);
    if (ledger.cleared != next) {
      if (!meet(port, ctx, members, 2 * next, missing)) return false;
      note_left_out(window, ctx);  // before the look: what comes after it is of a later incarnation
      if (newest(window, ctx, members) > next) continue;
      clear_cells(port.local(), ctx);
      clear_tags(port.local(), ctx);
      clear_words();
      ledger.cleared = next;
    }
    if (!meet(port, ctx, members, 2 * next + 1, missing)) return false;
    if (newest(window, ctx, members) > next && is_left_out(window, ctx, members)) continue;
    ledger.incarnation = next;
    clear_ledger(ctx, members);
    return true;
  }
}

}  // namespace heddle
