// Rows in place (I14): the receiver offers memory for its output to each source, tagged with the call; both ends take the
// mode of the pair from the offer. What surrounds a payload (scales, ids, weights) still goes through slots.
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
#include "protocol/call_header.hpp"
#include "protocol/dispatch_layout.hpp"

namespace heddle {

/// Nobody is masked, here or in any header, but ranks that reset() removed: all tables agree on every base.
HEDDLE_HD inline bool all_agree_on_members(const std::byte* window, const Call& call) {
  const Ledger& ledger = *call.ctx.ledger;
  for (int peer = 0; peer < call.ctx.topo.world; ++peer) {
    const bool removed = load_acquire(&ledger.mask[peer]) == static_cast<uint64_t>(Mask::removed);
    if (removed) continue;
    if (!is_live(*call.state, peer) || call.state->refused[peer]) return false;
    for (int other = 0; other < call.ctx.topo.world; ++other) {
      const bool other_removed = load_acquire(&ledger.mask[other]) == static_cast<uint64_t>(Mask::removed);
      if (header_from(window, call, peer).mask.has(other) && !other_removed) return false;
    }
  }
  return true;
}

HEDDLE_HD inline bool may_offer(const std::byte* window, const DispatchArgs& args, int source) {
  constexpr int64_t kAlign = 16;  // whatever the sender stores by
  if (!args.offer.is_set || args.offer.offset % kAlign != 0 || !all_agree_on_members(window, args.call)) return false;
  const int world = args.call.ctx.topo.world;
  const int64_t needed = args.call.shape.layout == Layout::token_major
                             ? args.route.recv_offset[world]
                             : args.out.expert_offsets[args.call.ctx.topo.num_local(args.call.ctx.topo.rank)];
  if (args.call.ctx.tags && args.call.state->count[source] > args.call.ctx.window.num_tags()) return false;
  const bool fits = needed <= args.out.rows && args.call.state->count[source] <= range_of(args.call, true).count;
  return fits;
}

template <class Port>
HEDDLE_HD void put_offer(Port& port, const DispatchArgs& args, int source) {
  const Call& call = args.call;
  CallState& state = *call.state;
  if (!is_live(state, source) || !state.offers[source]) return;
  const bool direct = may_offer(port.local(), args, source);
  const int64_t at = call.ctx.window.cells(call.ctx.topo.rank) + static_cast<int64_t>(offsetof(Cells, offer)) +
                     state.lane * static_cast<int64_t>(sizeof(Offer));
  const Target target{.peer = source, .offset = at};
  std::byte* cell = port.stage(target, sizeof(Offer));
  *reinterpret_cast<Offer*>(cell) = {.seq = state.seq, .incarnation = call.ctx.ledger->incarnation,
                                     .hash = call.shape.hash(), .direct = direct,
                                     .segment = static_cast<uint64_t>(args.offer.segment),
                                     .offset = static_cast<uint64_t>(args.offer.offset),
                                     .stride = static_cast<uint64_t>(call.shape.payload_bytes)};
  const int64_t counter = counter_at(call, call.ctx.topo.rank, Awaited::offer);
  port.put(target, cell, sizeof(Offer), counter);
  port.flush(Solo{}, source, counter, 1);
  state.direct_from[source] = direct;
  if (direct) state.rounds[source] = 1;
  if (direct) state.slots[source] = range_of(call, true).count;
}

template <class Port>
HEDDLE_HD void take_offer(Port& port, const DispatchArgs& args, int receiver, uint64_t deadline) {
  const Call& call = args.call;
  CallState& state = *call.state;
  if (!is_live(state, receiver) || !state.offers[receiver]) return;
  uint64_t& seen = call.ctx.ledger->offers_seen[state.lane][receiver];
  const Wait wait{.peer = receiver, .awaited = Awaited::offer, .wanted = seen + 1, .deadline = deadline};
  const Arrival arrival = await(port, call, wait);
  if (arrival == Arrival::masked) state.status[receiver] = static_cast<uint8_t>(SourceStatus::masked);
  if (arrival != Arrival::here) return;
  ++seen;
  const Offer& offer = cells_of(port.local(), call.ctx, receiver).offer[state.lane];
  const bool agrees = offer.seq == state.seq && offer.incarnation == call.ctx.ledger->incarnation &&
                      offer.hash == call.shape.hash();
  if (!agrees) return claim_mismatch(call, receiver, header_from(port.local(), call, receiver));
  if (offer.direct == 0) return;
  state.direct_to[receiver] = 1;
  const uint64_t rounds_less = static_cast<uint64_t>(state.rounds_to[receiver] - 1);
  call.ctx.ledger->rounds_sent[static_cast<int>(Kind::dispatch)][state.lane][receiver] -= rounds_less;
  state.rounds_to[receiver] = 1;
}

/// Every receiver offers before it waits for offers. Afterwards each pair's mode is known at both ends.
template <class Coop, class Port>
HEDDLE_HD bool exchange_offers(const Coop& coop, Port& port, const DispatchArgs& args) {
  const int world = args.call.ctx.topo.world;
  const uint64_t deadline = port.now() + args.call.ctx.timeout_ns;
  deal_lanes(coop, 0, world, [&](long source) { put_offer(port, args, static_cast<int>(source)); });
  coop.sync();  // an offer rests on who has arrived; what follows may mask peers
  deal_lanes(coop, 0, world, [&](long peer) { take_offer(port, args, static_cast<int>(peer), deadline); });
  if (!settle(coop, args.call.ctx)) return false;
  find_send_rows(coop, port.local(), args);
  return true;
}

/// This rank's first row at every receiver, or at every expert.
template <class Coop>
HEDDLE_HD void find_send_rows(const Coop& coop, const std::byte* window, const DispatchArgs& args) {
  const Topology& topo = args.call.ctx.topo;
  const CallState& state = *args.call.state;
  const auto count = [&](int source, int column) -> int64_t { return table_count(window, args.call, source, column); };
  const bool grouped = is_grouped(args.call.shape);
  deal_lanes(coop, 0, grouped ? topo.experts : topo.world, [&](long column) {
    const int owner = grouped ? topo.owner_of(static_cast<int>(column)) : static_cast<int>(column);
    if (state.direct_to[owner] == 0) return;
    int64_t start = 0;
    for (int expert = topo.first_expert(owner); grouped && expert < column; ++expert) {
      start = groups_of(args.call).next(start, group_rows(count, topo.world, expert));
    }
    args.route.send_row[column] = static_cast<int32_t>(start + first_row(count, static_cast<int>(column), topo.rank));
  });
  coop.sync();
}

/// The row of the receiver's output that takes this token's payload: its own, or that of its first local hit.
HEDDLE_HD inline int64_t direct_row(const DispatchArgs& args, int receiver, int64_t slot_number, int token) {
  const Topology& topo = args.call.ctx.topo;
  if (args.call.shape.layout == Layout::token_major) return args.route.send_row[receiver] + slot_number;
  const int64_t first = int64_t{token} * args.call.shape.topk;
  for (int k = 0; k < args.call.shape.topk; ++k) {
    const int32_t id = args.plan.ids[first + k];
    if (id >= 0 && topo.owner_of(id) == receiver) return int64_t{args.route.send_row[id]} + args.plan.ordinals[first + k];
  }
  return -1;
}

template <class Port>
HEDDLE_HD Target direct_target(const Port& port, const DispatchArgs& args, int receiver, int64_t slot_number, int token) {
  const Offer& offer = cells_of(port.local(), args.call.ctx, receiver).offer[args.call.state->lane];
  const int64_t row = direct_row(args, receiver, slot_number, token);
  return {.peer = receiver, .segment = static_cast<int>(offer.segment),
          .offset = static_cast<int64_t>(offer.offset) + row * static_cast<int64_t>(offer.stride)};
}

}  // namespace heddle
