// The part that dispatch and combine share: lanes, credits, ends (I2, I4, I5).
#pragma once

#include <cstdint>

#include "device/coop.hpp"
#include "layout/topology.hpp"
#include "layout/window.hpp"
#include "protocol/await.hpp"
#include "protocol/context.hpp"
#include "protocol/port.hpp"

namespace heddle {

/// The table behind a header.
///   dispatch, token-major   rows for each rank [R], then (token, column) pairs of each expert [E]
///   dispatch, other layouts distinct rows of each expert [E]
///   combine, late weights   weights of the tokens sent to the peer, by slot [M][K] f32
HEDDLE_HD inline int64_t table_bytes(const Shape& shape, int ranks) {
  if (shape.kind == Kind::combine) {
    return shape.weights == Weights::late ? int64_t{4} * shape.max_tokens * shape.topk : 0;
  }
  const int ranks_too = shape.layout == Layout::token_major ? ranks : 0;
  return int64_t{4} * (ranks_too + shape.experts);
}

/// How this call carves a range. Unreduced results take K places a token.
HEDDLE_HD inline Range range_of(const Call& call, bool in_place = false) {
  const int64_t stride = Slot::of(call.shape, in_place).stride;
  return Range::of(call.ctx.window.range_bytes(), table_bytes(call.shape, call.ctx.topo.world), stride);
}

/// Ends a phase: all members see all its effects, and all take the same branch.
template <class Coop>
HEDDLE_HD bool settle(const Coop& coop, const Context& ctx) {
  coop.sync();
  const bool ok = !ctx.ledger->is_faulted();
  coop.sync();  // no member may start the next phase, and fault in it, before all have looked
  return ok;
}

/// By one lane: seq and lane.
HEDDLE_HD inline void take_lane(const Call& call) {
  Ledger& ledger = *call.ctx.ledger;
  CallState& state = *call.state;
  const int kind = static_cast<int>(call.shape.kind);
  const uint64_t lane_calls[kLanes] = {ledger.lane_calls[kind][0], ledger.lane_calls[kind][1]};  // one wait for all
  const uint64_t unreceived[kLanes] = {ledger.unreceived[kind][0], ledger.unreceived[kind][1]};
  state.seq = ++ledger.seq;
  const int lane = static_cast<int>(ledger.calls[kind]++ % kLanes);
  state.lane = lane;
  state.refused_by = -1;
  state.headers_wanted = ledger.lane_calls[kind][lane] = lane_calls[lane] + 1;
  if (unreceived[lane] != 0) {
    claim_fault(call.ctx, {.code = FaultCode::unreceived, .awaited = Awaited::credit, .kind = call.shape.kind,
                           .peer = call.ctx.topo.rank, .seq = state.seq, .seen = unreceived[lane],
                           .hash = call.shape.hash()});
  }
  ledger.unreceived[kind][lane] = state.seq;
}

/// By one lane a peer, after take_lane().
HEDDLE_HD inline void begin_with(const Call& call, int peer) {
  const Ledger& ledger = *call.ctx.ledger;
  CallState& state = *call.state;
  const int kind = static_cast<int>(call.shape.kind);
  const int lane = state.lane;
  state.credits_before[peer] = ledger.rounds_sent[kind][lane][peer];
  state.rows_before[peer] = ledger.rows_seen[kind][lane][peer];
  state.count[peer] = state.tokens[peer] = 0;
  state.rounds[peer] = state.rounds_to[peer] = 0;
  state.refused[peer] = state.counted[peer] = state.offers[peer] = state.direct_from[peer] = state.direct_to[peer] = 0;
  state.words_from[peer] = 0;
  const bool open = ledger.is_open(peer);
  state.status[peer] = static_cast<uint8_t>(open ? SourceStatus::arrived : SourceStatus::masked);
}

HEDDLE_HD inline bool is_live(const CallState& state, int peer) {
  return state.status[peer] == static_cast<uint8_t>(SourceStatus::arrived);
}

/// The lane may hold nothing of an earlier call that a peer has still to read (I5): wait for its credits.
/// `rounds` more than those sent before this call.
template <class Port>
HEDDLE_HD void await_credits(Port& port, const Call& call, int peer, int rounds, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, peer)) return;
  const Wait wait{.peer = peer, .awaited = Awaited::credit, .wanted = state.credits_before[peer] + rounds,
                  .deadline = deadline};
  if (await(port, call, wait) == Arrival::masked) state.status[peer] = static_cast<uint8_t>(SourceStatus::masked);
}

/// Takes the next seq and lane, and waits until every peer has read what this rank sent in the lane before.
template <class Coop, class Port>
HEDDLE_HD bool open_lane(const Coop& coop, Port& port, const Call& call) {
  if (is_leader(coop)) take_lane(call);
  if (!settle(coop, call.ctx)) return false;
  const uint64_t deadline = port.now() + call.ctx.timeout_ns;
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    begin_with(call, static_cast<int>(peer));
    await_credits(port, call, static_cast<int>(peer), 0, deadline);
  });
  return settle(coop, call.ctx);
}

/// Gives the credit of one round: its slots and, in the last round, the header may be overwritten now.
template <class Port>
HEDDLE_HD void give_credit(Port& port, const Call& call, int source) {
  if (!is_live(*call.state, source)) return;
  ++call.ctx.ledger->credits_given[static_cast<int>(call.shape.kind)][call.state->lane][source];
  port.add(source, counter_at(call, call.ctx.topo.rank, Awaited::credit), 1);
}

HEDDLE_HD inline int most_rounds(const Call& call) {
  const CallState& state = *call.state;
  int most = 1;
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) {
    if (!is_live(state, peer)) continue;
    most = state.rounds[peer] > most ? state.rounds[peer] : most;
    most = state.rounds_to[peer] > most ? state.rounds_to[peer] : most;
  }
  return most;
}

/// After the last round: the lane is free for the next send, and the totals include this call.
template <class Coop>
HEDDLE_HD void close_call(const Coop& coop, const Call& call) {
  coop.sync();
  if (!is_leader(coop)) return;
  CallState& state = *call.state;
  Ledger& ledger = *call.ctx.ledger;
  const int kind = static_cast<int>(call.shape.kind);
  ledger.unreceived[kind][state.lane] = 0;
  for (int source = 0; source < call.ctx.topo.world; ++source) {
    const int puts_a_row = state.words_from[source] ? 0 : state.direct_from[source] ? 2 : 1;
    const uint64_t puts = static_cast<uint64_t>(state.count[source]) * static_cast<uint64_t>(puts_a_row);
    ledger.rows_seen[kind][state.lane][source] = state.rows_before[source] + puts;
  }
}

}  // namespace heddle
