// Which rows a round of a dispatch moves, and each of them from where to where. A pump (Dispatch's plain loops, or a
// fast twin) decides only who moves which row, and when it is announced:
//   out  every row of rows_to(peer, round), for each live peer; after the lane's credits, and offers if any
//   in   every row of rows_from(source, round), for each live source; after the headers, and once the row is announced
#pragma once

#include <cstdint>

#include "protocol/dispatch_layout.hpp"
#include "protocol/dispatch_rows.hpp"
#include "protocol/offer.hpp"
#include "protocol/pieces.hpp"

namespace heddle {

struct RowPlace {
  int peer;
  int round;
  int64_t place;  // in the round; a row's number for its pair is round * slots + place
};

HEDDLE_HD inline int64_t rows_to(const DispatchArgs& args, int peer, int round) {
  const CallState& state = *args.call.state;
  if (args.call.refusal.is_set() || !is_live(state, peer) || round >= state.rounds_to[peer]) return 0;
  const int64_t slots = range_of(args.call, state.direct_to[peer] != 0).count;
  const int64_t left = args.plan.sends(peer) - round * slots;
  return left < slots ? left : slots;
}

HEDDLE_HD inline int64_t rows_from(const Call& call, int source, int round) {
  const CallState& state = *call.state;
  if (round >= state.rounds[source]) return 0;
  const int64_t slots = state.slots[source];
  const int64_t left = state.count[source] - round * slots;
  return left < slots ? left : slots;
}

/// A direct pair has a tag for each row (may_offer() sees to it), others for each slot.
HEDDLE_HD inline Pieces pieces_to(const Call& call, int peer) {
  return dispatch_pieces(call, call.state->direct_to[peer] ? 0 : range_of(call).count);
}

/// How a call's slots lie in a range, staged or in place.
struct Carve {
  Range range;
  Slot slot;

  HEDDLE_HD static Carve of(const Call& call, bool direct) {
    return {.range = range_of(call, direct), .slot = Slot::of(call.shape, direct)};
  }
};

/// A row on its way out: slot `place` of the range that begins at `base` in the peer's window.
struct RowRoute {
  int peer;
  int64_t base;
  int64_t place;
  int64_t slot_number;  // of the pair
  int token;
  bool direct;
};

/// Stores a row at its receiver; nothing is announced.
template <class Coop, class Port>
HEDDLE_HD void store_row(const Coop& coop, Port& port, const DispatchArgs& args, const Carve& carve,
                         const RowRoute& row) {
  const Call& call = args.call;
  const Target target{.peer = row.peer, .offset = row.base + carve.range.slot(row.place)};
  std::byte* at = port.stage(target, carve.range.stride);
  std::byte* payload = at;
  Target row_target;
  if (row.direct) {
    row_target = direct_target(port, args, row.peer, row.slot_number, row.token);
    payload = port.stage(row_target, call.shape.payload_bytes);
  }
  const RowWriter writer{.args = args, .token = row.token, .slot = carve.slot};
  writer.write(coop, payload, at);
  coop.worker_sync();
  const int64_t counter = counter_of_puts(port, call);
  if (row.direct) port.put(row_target, payload, call.shape.payload_bytes, counter);
  port.put(target, at, carve.range.stride, counter);
}

template <class Coop, class Port>
HEDDLE_HD void send_row(const Coop& coop, Port& port, const DispatchArgs& args, const RowPlace& row) {
  const Call& call = args.call;
  const bool direct = call.state->direct_to[row.peer] != 0;
  const Carve carve = Carve::of(call, direct);
  const Range& range = carve.range;
  const int64_t slot_number = row.round * static_cast<int64_t>(range.count) + row.place;
  const int token = args.plan.send_tokens[args.plan.send_offset[row.peer] + slot_number];
  const int64_t base = call.ctx.window.range(Kind::dispatch, call.state->lane, call.ctx.topo.rank);
  store_row(coop, port, args, carve,
            {.peer = row.peer,
             .base = base,
             .place = row.place,
             .slot_number = slot_number,
             .token = token,
             .direct = direct});
}

/// A row that has arrived.
HEDDLE_HD inline ArrivedRow arrived_row(const std::byte* window, const DispatchArgs& args, const RowPlace& row) {
  const Call& call = args.call;
  const bool direct = call.state->direct_from[row.peer] != 0;
  const std::byte* base = window + call.ctx.window.range(Kind::dispatch, call.state->lane, row.peer);
  const Carve carve = Carve::of(call, direct);
  return ArrivedRow::in_slot(base + carve.range.slot(row.place), carve.slot, direct);
}

template <class Coop>
HEDDLE_HD void place_row(const Coop& coop, const DispatchArgs& args, const RowPlace& row, const ArrivedRow& arrived) {
  const RowReader reader{.args = args, .experts = LocalExperts::of(args.call.ctx.topo), .source = row.peer, .row = arrived};
  reader.place(coop,
               args.route.recv_offset[row.peer] + row.round * int64_t{args.call.state->slots[row.peer]} + row.place);
  if (!args.out.ready.is_set()) return;
  coop.worker_sync();
  reader.for_each_row(coop, [&](int expert) { add_ready(args.out.ready.words + expert, ready_pieces(args, expert)); });
}

}  // namespace heddle
