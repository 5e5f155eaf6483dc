// The only resync (I11): members stop, meet, clear what is theirs, and meet again. By one host thread; the rank's own
// kernels have ended and its own puts have landed.
#pragma once

#include <cstdint>
#include <cstring>

#include "protocol/context.hpp"

namespace heddle {

/// Brings this rank's reset counter at each member to 2 x incarnation + phase, and waits for theirs. The counters are
/// absolute and never cleared, so a meeting that was broken off can be held again. False: `missing` did not come.
template <class Port>
bool meet(Port& port, const Context& ctx, const RankSet& members, uint64_t total, RankSet& missing) {
  Ledger& ledger = *ctx.ledger;
  const int64_t counter = static_cast<int64_t>(offsetof(Cells, reset));
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer) || ledger.told[peer] >= total) continue;
    port.add(peer, ctx.window.cells(ctx.topo.rank) + counter, static_cast<int64_t>(total - ledger.told[peer]));
    ledger.told[peer] = total;
  }
  missing = {};
  const uint64_t deadline = port.now() + ctx.timeout_ns;
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer)) continue;
    const Cells& cells = cells_of(port.local(), ctx, peer);
    for (int attempt = 0; load_acquire(&cells.reset) < total; ++attempt) {
      if (port.now() > deadline) {
        missing.add(peer);
        break;
      }
      port.relax(attempt);
    }
  }
  return missing.empty();
}

/// Clears what peers wrote in this rank's control region, but for the reset counters.
inline void clear_cells(std::byte* window, const Context& ctx) {
  for (int source = 0; source < ctx.topo.world; ++source) {
    auto& cells = *reinterpret_cast<Cells*>(window + ctx.window.cells(source));
    for (uint64_t* word = &cells.headers[0][0]; word != &cells.reset; ++word) store_relaxed(word, 0);
  }
}

inline void clear_ledger(const Context& ctx, const RankSet& members) {
  Ledger& old = *ctx.ledger;
  Ledger fresh;
  fresh.incarnation = fresh.cleared = old.incarnation + 1;
  std::memcpy(fresh.told, old.told, sizeof(fresh.told));
  for (int peer = 0; peer < ctx.topo.world; ++peer) {
    if (!members.has(peer)) fresh.mask[peer] = static_cast<uint64_t>(Mask::removed);
  }
  old = fresh;
}

/// Repairs the buffer for `members`, of which this rank is one. False: those in `missing` did not come; try again. Cells are
/// cleared once: after the first meeting has ended for all, a member that is through the second may already write to them.
template <class Port>
bool reset(Port& port, const Context& ctx, const RankSet& members, RankSet& missing) {
  Ledger& ledger = *ctx.ledger;
  const uint64_t next = ledger.incarnation + 1;
  if (ledger.cleared != next) {
    if (!meet(port, ctx, members, 2 * next, missing)) return false;
    clear_cells(port.local(), ctx);
    ledger.cleared = next;
  }
  if (!meet(port, ctx, members, 2 * next + 1, missing)) return false;
  clear_ledger(ctx, members);
  return true;
}

}  // namespace heddle
