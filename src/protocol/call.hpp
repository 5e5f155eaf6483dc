// The part that dispatch and combine share: lanes, credits, headers, rounds (I2, I5-I7).
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

/// What a header says beyond what every header says. `count` rows for the peer in `rounds` rounds.
struct HeaderCounts {
  int32_t count = 0;
  int32_t slots = 0;
  int32_t rounds = 1;
  int32_t tokens = 0;
};

HEDDLE_HD inline Header make_header(const Call& call, const HeaderCounts& counts) {
  const Ledger& ledger = *call.ctx.ledger;
  Header header;
  header.seq = call.state->seq;
  header.incarnation = ledger.incarnation;
  header.hash = call.shape.hash();
  header.kind = static_cast<uint32_t>(call.shape.kind);
  header.lane = static_cast<uint32_t>(call.state->lane);
  header.count = counts.count;
  header.slots = counts.slots;
  header.rounds = counts.rounds;
  header.tokens = counts.tokens;
  header.offers = offers_rows(call.ctx, call.shape) && !call.refusal.is_set();
  header.refusal = call.refusal;
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) {
    if (!ledger.is_open(peer)) header.mask.add(peer);
  }
  return header;
}

/// Before a header is written, and before any row is sent: how many rounds there will be. By one lane a peer.
HEDDLE_HD inline void note_rounds(const Call& call, int peer, int32_t rounds) {
  if (!is_live(*call.state, peer)) return;
  call.state->rounds_to[peer] = rounds;
  call.ctx.ledger->rounds_sent[static_cast<int>(call.shape.kind)][call.state->lane][peer] += static_cast<uint64_t>(rounds);
}

/// Writes this rank's header and table to `peer` in one put. Done by one worker; `fill(table)` is called by all its lanes.
template <class Coop, class Port, class Fill>
HEDDLE_HD void put_header(const Coop& coop, Port& port, const Call& call, int peer, const HeaderCounts& counts,
                          Fill fill) {
  if (!is_live(*call.state, peer)) return;
  const Context& ctx = call.ctx;
  const Range range = range_of(call);
  const int64_t bytes = call.refusal.is_set() ? static_cast<int64_t>(sizeof(Header)) : range.slots;
  const Target target{.peer = peer, .offset = ctx.window.range(call.shape.kind, call.state->lane, ctx.topo.rank)};
  std::byte* at = port.stage(target, bytes);
  if (coop.lane() == 0) {
    *reinterpret_cast<Header*>(at) = make_header(call, counts);
  }
  if (!call.refusal.is_set()) fill(reinterpret_cast<uint32_t*>(at + range.table));
  const int64_t counter = counter_at(call, ctx.topo.rank, Awaited::header);
  coop.worker_sync();
  port.put(target, at, bytes, counter);
  port.flush(coop, peer, counter, 1);
}

HEDDLE_HD inline const Header& header_from(const std::byte* window, const Call& call, int source) {
  const int64_t at = call.ctx.window.range(call.shape.kind, call.state->lane, source);
  return *reinterpret_cast<const Header*>(window + at);
}

/// The table that came with a source's header.
HEDDLE_HD inline const uint32_t* table_from(const std::byte* window, const Call& call, int source) {
  const int64_t at = call.ctx.window.range(call.shape.kind, call.state->lane, source);
  return reinterpret_cast<const uint32_t*>(window + at + range_of(call).table);
}

HEDDLE_HD inline void claim_mismatch(const Call& call, int peer, const Header& theirs) {
  claim_fault(call.ctx, {.code = FaultCode::mismatch, .awaited = Awaited::header, .kind = call.shape.kind, .peer = peer,
                         .seq = call.state->seq, .wanted = call.state->seq, .seen = theirs.seq,
                         .hash = call.shape.hash(), .peer_kind = theirs.kind, .peer_hash = theirs.hash});
}

/// Takes what a source's header says into the call's state, or faults: it speaks of another call.
HEDDLE_HD inline void accept_header(const Call& call, int source, const Header& header) {
  CallState& state = *call.state;
  if (header.seq != state.seq || header.incarnation != call.ctx.ledger->incarnation) {
    return claim_mismatch(call, source, header);
  }
  const bool refused = header.refusal.is_set();
  if (!refused && !call.refusal.is_set() && header.hash != call.shape.hash()) {
    return claim_mismatch(call, source, header);
  }
  state.count[source] = header.count;
  state.slots[source] = header.slots;
  state.rounds[source] = header.rounds;
  state.tokens[source] = header.tokens;
  state.refused[source] = refused;
  state.offers[source] = header.offers != 0;
  state.words_from[source] = header.row_words != 0;
}

/// A source that is in another call than this rank has put its header of this seq into another cell (I2). Safe to read:
/// a header that this rank has not begun to expect stays until this rank credits it.
HEDDLE_HD inline bool finds_header_elsewhere(const std::byte* window, const Call& call, int source) {
  const Context& ctx = call.ctx;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (int lane = 0; lane < kLanes; ++lane) {
      if (kind == static_cast<int>(call.shape.kind) && lane == call.state->lane) continue;
      const auto& cells = *reinterpret_cast<const Cells*>(window + ctx.window.cells(source));
      if (load_acquire(&cells.headers[kind][lane]) <= ctx.ledger->lane_calls[kind][lane]) continue;
      const int64_t at = ctx.window.range(static_cast<Kind>(kind), lane, source);
      const Header& header = *reinterpret_cast<const Header*>(window + at);
      if (header.seq != call.state->seq) continue;
      claim_mismatch(call, source, header);
      return true;
    }
  }
  return false;
}

template <class Port>
HEDDLE_HD void await_header(Port& port, const Call& call, int source, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, source)) return;
  const std::byte* window = port.local();
  const Wait wait{.peer = source, .awaited = Awaited::header, .wanted = state.headers_wanted, .deadline = deadline};
  const WaitClock clock(port, call, source);
  const Arrival arrival = await(port, call, wait, [&] { return finds_header_elsewhere(window, call, source); });
  clock.stop();
  if (arrival == Arrival::here && !header_from(window, call, source).mask.has(call.ctx.topo.rank)) {
    accept_header(call, source, header_from(window, call, source));
    state.counted[source] = !state.refused[source];
    return;
  }
  if (arrival == Arrival::here) close_pair(port, call.ctx, source);
  if (arrival != Arrival::fault) state.status[source] = static_cast<uint8_t>(SourceStatus::masked);
}

/// The lowest rank that refused is the one every rank names.
HEDDLE_HD inline void note_refusal(const std::byte* window, const Call& call) {
  CallState& state = *call.state;
  for (int source = 0; source < call.ctx.topo.world; ++source) {
    if (!state.refused[source] || !is_live(state, source)) continue;
    state.refused_by = source;
    state.refusal = header_from(window, call, source).refusal;
    return;
  }
}

/// Waits for every peer's header of this call and checks that it is this call.
template <class Coop, class Port>
HEDDLE_HD bool read_headers(const Coop& coop, Port& port, const Call& call) {
  const uint64_t deadline = port.now() + call.ctx.timeout_ns;
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long source) {
    await_header(port, call, static_cast<int>(source), deadline);
  });
  if (!settle(coop, call.ctx)) return false;
  if (is_leader(coop)) note_refusal(port.local(), call);
  coop.sync();
  return true;
}

HEDDLE_HD inline Wait wait_for_rows(const Call& call, int source, int64_t rows, uint64_t deadline) {
  return {.peer = source, .awaited = Awaited::rows,
          .wanted = call.state->rows_before[source] + static_cast<uint64_t>(rows), .deadline = deadline};
}

/// Waits until `rows` more rows of the source are there than before this call.
template <class Port>
HEDDLE_HD void await_rows(Port& port, const Call& call, int source, int64_t rows, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, source)) return;
  const Arrival arrival = await(port, call, wait_for_rows(call, source, rows, deadline));
  if (arrival == Arrival::masked) state.status[source] = static_cast<uint8_t>(SourceStatus::masked);
}

/// The same, one look. True: nothing is left to wait for, or the call has ended in a fault.
template <class Port>
HEDDLE_HD bool look_for_rows(Port& port, const Call& call, int source, int64_t rows, uint64_t deadline) {
  CallState& state = *call.state;
  if (!is_live(state, source)) return true;
  Wait wait = wait_for_rows(call, source, rows, deadline);
  wait.is_one_of_many = true;
  const Arrival arrival = look_for(port, call, wait, NoProbe());
  if (arrival == Arrival::masked) state.status[source] = static_cast<uint8_t>(SourceStatus::masked);
  return arrival != Arrival::pending;
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

/// Every word that was sent is read and cleared, also by a rank that has no use for it. All members.
template <class Coop, class Port>
HEDDLE_HD void discard_words(const Coop& coop, Port& port, const Call& call, uint64_t deadline) {
  for (int source = 0; source < call.ctx.topo.world; ++source) {
    if (!is_live(*call.state, source) || !call.state->words_from[source]) continue;
    const int64_t at = call.ctx.window.words(call.shape.kind, call.state->lane, source);
    const Header& header = header_from(port.local(), call, source);
    const int64_t first = at + int64_t{header.slots} * kWordBytes;
    const Wait note{.peer = source, .awaited = Awaited::rows, .wanted = tagged(0, call.state->seq), .deadline = deadline, .at = at};
    if (await(port, call, note) != Arrival::here) continue;
    const auto count = static_cast<int64_t>(load_relaxed(reinterpret_cast<const uint64_t*>(port.local() + at)) & 0xFFFF);
    deal_lanes(coop, 0, count * header.row_words * 2, [&](long half) {
      const int64_t word = first + half * int64_t{sizeof(uint64_t)};
      const Wait wait{.peer = source, .awaited = Awaited::rows, .wanted = 1, .deadline = deadline, .at = word};
      if (await(port, call, wait) == Arrival::here) store_relaxed(reinterpret_cast<uint64_t*>(port.local() + word), 0);
    });
  }
  coop.sync();
}

/// This rank refused the call: it reads nothing of it, but lets every peer finish. A credit for a round not yet landed is
/// harmless (nobody reads it), but the last one frees the lane, so it waits for all rows. All peers get the others first: one
/// peer's rows may wait for what another sends once it has its credits.
template <class Coop, class Port>
HEDDLE_HD bool discard_rows(const Coop& coop, Port& port, const Call& call) {
  const uint64_t deadline = port.now() + call.ctx.timeout_ns;
  discard_words(coop, port, call, deadline);
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    const int source = static_cast<int>(peer);
    for (int round = 1; round < call.state->rounds[source]; ++round) give_credit(port, call, source);
  });
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    const int source = static_cast<int>(peer);
    if (!call.state->words_from[source]) await_rows(port, call, source, call.state->count[source], deadline);
    give_credit(port, call, source);
  });
  return settle(coop, call.ctx);
}

}  // namespace heddle
