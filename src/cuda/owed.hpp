// Credits that a decode pump left to this rank's next step (decode.hpp).
#pragma once

#include "cuda/decode.hpp"
#include "protocol/context.hpp"
#include "protocol/port.hpp"

namespace heddle {

/// By `lanes` threads of one block, before they or others of this rank wait for anybody. What the credits stand for was done
/// by an earlier launch, whose end has released it: another release would take microseconds.
__device__ inline void pay_owed(const DirectPort& port, const Context& ctx, DecodeState* state, int lane, int lanes) {
  if (state == nullptr) return;
  const OwedCredits owed = state->owed;
  if (owed.peers == 0) return;
  const int64_t cell = ctx.window.cells(ctx.topo.rank) + static_cast<int64_t>(offsetof(Cells, credits)) +
                       (int64_t{owed.kind} * kLanes + owed.lane) * int64_t{sizeof(uint64_t)};
  HEDDLE_ROLLED
  for (int peer = lane; peer < ctx.topo.world; peer += lanes) {
    const bool is_open = load_relaxed(&ctx.ledger->mask[peer]) == static_cast<uint64_t>(Mask::open);
    if ((owed.peers >> peer & 1) == 0 || !is_open) continue;
    // The total, as nobody else writes the cell: an atomic add takes some 5 us to come back from a peer.
    store_relaxed(port.word_at(peer, cell), ++ctx.ledger->credits_given[owed.kind][owed.lane][peer]);
  }
  if (lanes > 1) __syncwarp();
  if (lane == 0) state->owed.peers = 0;
}

}  // namespace heddle
