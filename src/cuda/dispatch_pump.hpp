// A whole dispatch in one launch: block 0 opens the lane and meets the peers by the steps of protocol/, all blocks move
// rows by the contract of protocol/dispatch_rounds.hpp, each row as soon as it may be. Leaves what Dispatch leaves.
#pragma once

#include <cstdint>

#include "cuda/pump.hpp"
#include "protocol/dispatch.hpp"

namespace heddle {

/// Whether the pump can do this call; else the plain steps do it. For the host.
HEDDLE_HD inline bool has_pump(const DispatchArgs& args) {
  return !args.call.refusal.is_set() && dispatch_pieces(args.call, range_of(args.call).count).parts > 0;
}

template <class Own, class Port>
HEDDLE_HD HEDDLE_APART bool open_dispatch(const Own& own, Port& port, const DispatchArgs& args) {
  prefetch_call(own, port.local(), args.call);
  return Dispatch<Own, Port>(own, port, args).open();
}

/// Sends and reads the headers, and tells all blocks. They could go before the first row, but the link would wait for
/// them.
template <class Own, class Port>
HEDDLE_HD HEDDLE_APART void meet_dispatch(const Own& own, Port& port, const DispatchArgs& args, PumpState* state) {
  const bool offers = offers_rows(args.call.ctx, args.call.shape);
  Dispatch<Own, Port> steps(own, port, args);
  steps.send_headers();
  const bool ok = steps.headers() && (!offers || exchange_offers(own, port, args));
  own.sync();
  if (is_leader(own)) store_release(&state->stage, static_cast<uint64_t>(ok ? Stage::ready : Stage::broken));
}

/// In the memory of a block; carves: staged, in place.
struct DispatchBoard {
  PumpBoard pump;
  Carve carves[2];
};

template <class Coop>
HEDDLE_HD HEDDLE_APART void note_rows_out(const Coop& coop, const DispatchArgs& args, DispatchBoard* board, int lane,
                                          int round) {
  if (coop.thread() == 0) {
    board->carves[0] = Carve::of(args.call, false);
    board->carves[1] = Carve::of(args.call, true);
  }
  PairRun* runs = board->pump.out;
  const int64_t base = args.call.ctx.window.range(Kind::dispatch, lane, args.call.ctx.topo.rank);
  note_runs(coop, args.call.ctx.topo.world, runs, [&](int peer) {
    const bool direct = args.call.state->direct_to[peer] != 0;
    return PairRun{.first = round * int64_t{range_of(args.call, direct).count},
                   .base = base,
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
template <class Coop>
HEDDLE_HD HEDDLE_APART void note_rows_in(const Coop& coop, const DispatchArgs& args, PairRun* runs, int lane,
                                         int round) {
  for (int source = coop.lane(); source < args.call.ctx.topo.world; source += coop.lanes()) {
    runs[source] = run_from(args, lane, source, round);
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
  if (is_leader(own)) leave_out_dropped(args);
  close_call(own, args.call);
}

template <class Coop, class Port>
class DispatchPump : Pump<Coop, Port> {
  using Base = Pump<Coop, Port>;
  using Base::call_, Base::coop_, Base::desk_, Base::port_, Base::state_;
  // H200, 4096 tokens: 3 of a block at 64 and 132 blocks, 2 where the receivers have the more to do.
  HEDDLE_HD static SenderRule senders(const Shape& shape) {
    return {.least = is_grouped(shape) ? 2 : 3, .in_all = 190};
  }

 public:
  HEDDLE_HD DispatchPump(const Coop& coop, Port& port, const DispatchArgs& args, PumpState* state)
      : Base(coop, port, args.call, state, senders(args.call.shape)), a_(args), topo_(args.call.ctx.topo),
        carves_(reinterpret_cast<DispatchBoard*>(coop.shared())->carves) {}

  HEDDLE_HD bool run() {
    const auto own = coop_.own_block();
    const bool meets_peers = coop_.block() == 0;
    this->note(Moment::start);
    Base::open();
    if (meets_peers) {
      const bool ok = open_dispatch(own, port_, a_);
      if (is_leader(own)) state_->start_call(topo_.world, ok);
    }
    coop_.sync();
    if (state_->opened == 0) return false;
    this->note(Moment::opened);
    this->note_call();
    if (meets_peers) meet_dispatch(own, port_, a_, state_);
    this->note(Moment::laid_out);
    for (int round = 0; round == 0 || round < most_rounds(call_); ++round) {
      if (round > 0 && !await_next_round(coop_, port_, call_, *state_, round)) return false;
      if (round > 0) Base::open();
      move(round);
      this->note(Moment::received);
      if (!meet_after_round(coop_, call_, round)) return false;
      fold_late(coop_, call_, *state_);
      if (meets_peers) give_credits(own, port_, call_, round);
    }
    this->note(Moment::met);
    drop_if_masked(coop_, port_.local(), a_);
    if (!meets_peers) return true;
    close_dispatch(own, a_);
    this->note(Moment::closed);
    return true;
  }

 private:
  HEDDLE_HD bool waits_for_offers() const { return offers_rows(call_.ctx, call_.shape); }

  /// Own rows go straight to the output; if they are cast on the way, through the window.
  HEDDLE_HD bool own_rows_are_sent() const {
    return call_.shape.quantise != Quantise::none || call_.state->direct_to[topo_.rank] != 0;
  }

  HEDDLE_HD void move(int round) {
    const bool may_send = !waits_for_offers() || this->await_ready();
    note_rows_out(coop_, a_, reinterpret_cast<DispatchBoard*>(coop_.shared()), this->lane_, round);
    if (desk_.is_publisher()) {
      desk_.publish();
    } else {
      if (may_send) send(round);
      desk_.leave();
    }
    if (may_send && (desk_.is_publisher() || !desk_.has_publisher()) && this->is_last_sender()) {
      add_dispatched(coop_, port_, a_, round);
    }
    this->note(Moment::sent);
    const bool ready = this->await_ready();
    if (ready && round == 0) clear_gaps_apart(coop_, a_);
    if (ready) receive(round);
  }

  // --- rows out ---

  /// First to others, by the senders; then to this rank itself, by all.
  HEDDLE_HD void send(int round) {
    const auto others = static_cast<uint32_t>(topo_.world - 1);
    const PairRun* out = this->board_->out;
    for (int turn = this->is_sender() ? 0 : 1; turn < 2; ++turn) {
      const bool own = turn == 1;
      if (own && !own_rows_are_sent()) return;
      const int64_t count = own ? out[topo_.rank].count : this->most_of_others(out) * others;
      this->work(own ? Queue::own : Queue::send, count, [&](int64_t item) {
        const auto number = static_cast<uint32_t>(item);
        if (own) send_one(topo_.rank, round, number);
        else send_one(this->other_of(number, others), round, number / others);
        return true;
      });
    }
  }

  HEDDLE_HD void send_one(int peer, int round, uint32_t place) {
    const PairRun run = this->board_->out[peer];
    if (place >= static_cast<uint32_t>(run.count)) return;
    const int64_t slot_number = run.first + place;
    const int token = a_.plan.send_tokens[a_.plan.send_offset[peer] + slot_number];
    store_row(coop_, port_, a_, carves_[run.direct],
              {.peer = peer,
               .base = run.base,
               .place = place,
               .slot_number = slot_number,
               .token = token,
               .direct = run.direct != 0});
    this->post(peer, round, place);
  }

  // --- rows in ---

  /// This rank's own rows first: the others' are on their way.
  HEDDLE_HD void receive(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    const auto others = static_cast<uint32_t>(topo_.world - 1);
    const bool through_window = own_rows_are_sent();
    this->note_in([&](PairRun* in) { note_rows_in(coop_, a_, in, this->lane_, round); });
    const auto own = static_cast<uint32_t>(this->board_->in[topo_.rank].count);
    const int64_t most = this->most_of_others(this->board_->in);
    this->work(Queue::receive, own + most * others, [&](int64_t item) {
      const auto number = static_cast<uint32_t>(item);
      if (number < own) return receive_one(topo_.rank, round, number, !through_window, deadline);
      const uint32_t other = number - own;
      return receive_one(this->other_of(other, others), round, other / others, false, deadline);
    });
  }

  HEDDLE_HD bool receive_one(int source, int round, uint32_t place, bool from_batch, uint64_t deadline) {
    const PairRun run = this->board_->in[source];
    if (place >= static_cast<uint32_t>(run.count)) return true;
    auto arrival = Arrival::here;
    ArrivedRow row;
    if (from_batch) {
      row = ArrivedRow::in_batch(
          a_, a_.plan.send_tokens[a_.plan.send_offset[source] + this->board_->out[source].first + place]);
    } else {
      if (coop_.lane() == 0) arrival = this->await_piece(source, round, place, deadline);
      arrival = static_cast<Arrival>(desk_.tell(static_cast<uint64_t>(arrival)));
      const Carve& carve = carves_[run.direct];
      row = ArrivedRow::in_slot(port_.local() + run.base + carve.range.slot(place), carve.slot, run.direct != 0);
    }
    if (arrival == Arrival::here) RowReader{.args = a_, .source = source, .row = row}.place(coop_, run.first + place);
    return arrival != Arrival::fault;
  }

  const DispatchArgs& a_;
  Topology topo_;
  const Carve* carves_;
};

template <class Coop, class Port>
HEDDLE_HD bool dispatch_whole(const Coop& coop, Port& port, const DispatchArgs& args, PumpState* state) {
  return DispatchPump<Coop, Port>(coop, port, args, state).run();
}

}  // namespace heddle
