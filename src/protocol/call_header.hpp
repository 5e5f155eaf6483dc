// What ranks tell one another before the rows of a call: headers and the tables behind them (I2, I6, I7).
#pragma once

#include <cstdint>

#include "layout/window.hpp"
#include "protocol/await.hpp"
#include "protocol/call.hpp"
#include "protocol/context.hpp"

namespace heddle {

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

}  // namespace heddle
