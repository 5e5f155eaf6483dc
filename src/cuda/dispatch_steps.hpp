// What a whole dispatch does beside moving rows, each step apart: it keeps its registers to itself, and is given the arguments
// near by.
#pragma once

#include <cstdint>

#include "cuda/dispatch_movers.hpp"
#include "cuda/pump.hpp"
#include "protocol/dispatch.hpp"

namespace heddle {

template <class Own, class Port>
HEDDLE_HD HEDDLE_APART bool open_dispatch(const Own& own, Port& port, const DispatchArgs& args) {
  prefetch_call(own, port.local(), args.call);
  return open_lane(own, port, args.call);
}

/// The counts of the plan are made: headers, before rows are on the link that they would wait behind.
template <class Own, class Port>
HEDDLE_HD HEDDLE_APART void announce_dispatch(const Own& own, Port& port, const DispatchArgs& args) {
  Dispatch<Own, Port> steps(own, port, args);
  steps.note_all_rounds();
  steps.send_headers();
}

/// Reads the headers, and tells all blocks.
template <class Own, class Port>
HEDDLE_HD HEDDLE_APART void meet_dispatch(const Own& own, Port& port, const DispatchArgs& args, PumpState* state) {
  const bool offers = offers_rows(args.call.ctx, args.call.shape);
  Dispatch<Own, Port> steps(own, port, args);
  const bool ok = steps.headers() && (!offers || exchange_offers(own, port, args));
  own.sync();
  if (is_leader(own)) store_release(&state->stage, static_cast<uint64_t>(ok ? Stage::ready : Stage::broken));
}

template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void note_rows_out(const Coop& coop, const DispatchArgs& args, DispatchBoard<Port>* board, int lane,
                                          int round) {
  if (coop.thread() == 0) {
    board->carves[0] = Carve::of(args.call, false);
    board->carves[1] = Carve::of(args.call, true);
  }
  PairRun* runs = board->pump.out;
  const int64_t base = args.call.ctx.window.range(Kind::dispatch, lane, args.call.ctx.topo.rank);
  note_runs(coop, args.call.ctx.topo.world, runs, [&](int peer) {
    const bool direct = args.call.state->direct_to[peer] != 0;
    const int64_t first = round * int64_t{range_of(args.call, direct).count};
    return PairRun{.first = first,
                   .base = base,
                   .listed = args.plan.send_offset[peer] + first,
                   .count = static_cast<int32_t>(rows_to(args, peer, round)),
                   .direct = direct};
  });
}

HEDDLE_HD inline PairRun run_from(const DispatchArgs& args, int lane, int source, int round) {
  const CallState& state = *args.call.state;
  if (!is_live(state, source)) return {};
  return {.first = args.route.recv_offset[source] + round * int64_t{state.slots[source]},
          .base = args.call.ctx.window.range(Kind::dispatch, lane, source),
          .count = static_cast<int32_t>(rows_from(args.call, source, round)),
          .direct = state.direct_from[source]};
}

/// By one worker.
template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void note_rows_in(const Coop& coop, const DispatchArgs& args, DispatchBoard<Port>* board, int lane,
                                         int round) {
  for (int source = coop.lane(); source < args.call.ctx.topo.world; source += coop.lanes()) {
    board->pump.in[source] = run_from(args, lane, source, round);
  }
  for (int row = coop.lane(); row < DispatchBoard<Port>::num_near_rows(args); row += coop.lanes()) {
    board->expert_row[row] = args.route.expert_row[row];
  }
  coop.worker_sync();
}

template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void add_dispatched(const Coop& coop, Port& port, const DispatchArgs& args, int round) {
  add_rows(coop, port, args.call,
           [&](int peer) { return rows_to(args, peer, round) * (args.call.state->direct_to[peer] != 0 ? 2 : 1); });
}

template <class Coop>
HEDDLE_HD HEDDLE_APART void clear_gaps_apart(const Coop& coop, const DispatchArgs& args) {
  clear_gaps(coop, args);
}

/// All members; by the leader where nothing was masked.
template <class Coop>
HEDDLE_HD HEDDLE_APART void drop_if_masked(const Coop& coop, const std::byte* window, const DispatchArgs& args) {
  const CallState& state = *args.call.state;
  bool any = false;
  for (int source = 0; source < args.call.ctx.topo.world; ++source) {
    any |= state.counted[source] != 0 && !is_live(state, source);
    if (is_leader(coop)) args.route.status[source] = state.status[source];
  }
  if (!any) return;
  drop_masked_rows(coop, window, args);
  coop.sync();
}

template <class Own>
HEDDLE_HD HEDDLE_APART void close_dispatch(const Own& own, const DispatchArgs& args) {
  leave_out_dropped(own, args);
  close_call(own, args.call);
}

}  // namespace heddle
