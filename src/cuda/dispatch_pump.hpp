// A whole dispatch in one launch: the last block opens the lane and meets the peers by the steps of protocol/, all blocks move
// rows by the contract of protocol/dispatch_rounds.hpp, each row as soon as it may be. Leaves what Dispatch leaves.
#pragma once

#include <cstdint>

#include "cuda/dispatch_movers.hpp"
#include "cuda/dispatch_steps.hpp"
#include "cuda/plan_blocks.hpp"
#include "cuda/pump.hpp"
#include "protocol/dispatch.hpp"

namespace heddle {

/// Whether the pump can do this call; else the plain steps do it, as where somebody waits for single experts: a mover of the
/// pump waits for one row, whosever others are there. For the host.
HEDDLE_HD inline bool has_pump(const DispatchArgs& args) {
  if (args.call.refusal.is_set() || args.out.ready.is_set()) return false;
  return dispatch_pieces(args.call, range_of(args.call).count).parts > 0;
}

/// Mover: DispatchLanes, DispatchBelt or CastBelt.
template <template <class, class> class Mover, class Coop, class Port>
class DispatchPump : Pump<Coop, Port> {
  using Base = Pump<Coop, Port>;
  using Base::call_, Base::coop_, Base::desk_, Base::port_, Base::state_;
  // H200, 4096 tokens: 2 of a block at 132 blocks, 4 at 64 or less; receivers have the more to do.
  static constexpr SenderRule kSenders{.least = 2, .in_all = 250};

 public:
  /// `movers`: workers of a block that move rows.
  HEDDLE_HD DispatchPump(const Coop& coop, Port& port, const DispatchArgs& args, PumpState* state, int movers)
      : Base(coop, port, args.call, state, kSenders, movers), a_(args), topo_(args.call.ctx.topo),
        dispatch_board_(reinterpret_cast<DispatchBoard<Port>*>(coop.shared())), carves_(dispatch_board_->carves),
        mover_(coop, port, args, dispatch_board_, desk_.worker(), movers) {}

  HEDDLE_HD bool run() {
    const auto own = coop_.own_block();
    const bool meets_peers = this->meets_peers();
    this->note(Moment::start);
    if (!open(own, meets_peers)) return false;
    this->note(Moment::opened);
    this->note_call();
    if (meets_peers) meet_dispatch(own, near_port(), near_args(), state_);
    this->note(Moment::laid_out);
    for (int round = 0;; ++round) {
      if (round > 0 && !await_next_round(coop_, port_, call_, *state_, round)) return false;
      if (round > 0) Base::open();
      move(round);
      this->note(Moment::received);
      if (!meet_after_round(coop_, call_)) return false;
      fold_late(coop_, call_, *state_);
      if (meets_peers) give_credits(own, port_, call_, round);
      if (!has_next_round(coop_, call_, round)) break;
    }
    this->note(Moment::met);
    drop_if_masked(coop_, port_.local(), near_args());
    if (!meets_peers) return true;
    close_dispatch(own, near_args());
    this->note(Moment::closed);
    return true;
  }

 private:
  /// The plan if it is to be made, and the lane. Afterwards rows may leave. False: fault, and the plan is made.
  template <class Own>
  HEDDLE_HD bool open(const Own& own, bool meets_peers) {
    dispatch_board_->near.copy(coop_, a_, port_);
    const BlockPlanner<Coop> planner(coop_, topo_, a_.plan, reinterpret_cast<std::byte*>(dispatch_board_ + 1));
    if (a_.makes_plan) planner.count();
    if (meets_peers) {
      const bool ok = open_dispatch(own, near_port(), near_args());
      if (is_leader(own)) state_->start_call(topo_.world, ok);
    }
    if (a_.makes_plan) {
      coop_.sync();
      planner.assign_all();
    }
    if (meets_peers) {
      own.sync();
      if (state_->opened != 0) announce_dispatch(own, near_port(), near_args());
    }
    if (this->moves()) mover_.open();
    Base::open();
    coop_.sync();
    return state_->opened != 0;
  }

  HEDDLE_HD Port& near_port() { return dispatch_board_->near.port(); }
  HEDDLE_HD const DispatchArgs& near_args() const { return dispatch_board_->near.args(); }

  HEDDLE_HD bool waits_for_offers() const { return offers_rows(call_.ctx, call_.shape); }

  /// Own rows go straight to the output, unless only slots hold them as they shall be there.
  HEDDLE_HD bool own_rows_are_sent() const {
    const bool are_cast = call_.shape.quantise != Quantise::none && !decltype(mover_)::kCastsOwn;
    return are_cast || call_.state->direct_to[topo_.rank] != 0;
  }

  HEDDLE_HD void move(int round) {
    const bool may_send = !waits_for_offers() || this->await_ready();
    note_rows_out(coop_, near_args(), dispatch_board_, this->lane_, round);
    if (desk_.is_publisher()) {
      desk_.publish();
    } else {
      if (may_send && this->moves()) send(round);
      desk_.leave();
    }
    if (may_send && (desk_.is_publisher() || !desk_.has_publisher()) && this->is_last_sender()) {
      add_dispatched(coop_, near_port(), near_args(), round);
    }
    this->note(Moment::sent);
    const bool ready = this->await_ready();
    if (ready && round == 0) clear_gaps_apart(coop_, near_args());
    if (ready && this->moves()) receive(round);
  }

  /// -1: there is no such row.
  HEDDLE_HD int32_t sent_token(const PairPlace& row) const {
    const PairRun& run = this->board_->out[row.peer];
    if (row.place >= static_cast<uint32_t>(run.count)) return -1;
    return a_.plan.send_tokens[run.listed + row.place];
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
      send_queue(own ? Queue::own : Queue::send, count, round, [&](uint32_t item) {
        return own ? PairPlace{topo_.rank, item} : this->of_others(item, others);
      });
    }
  }

  /// row_of(item): receiver and place.
  template <class RowOf>
  HEDDLE_HD void send_queue(Queue queue, int64_t count, int round, const RowOf& row_of) {
    Ride begun;
    handed_.peer = -1;
    begun.peer = -1;
    const auto look = [&](int64_t item) { return sent_token(row_of(static_cast<uint32_t>(item))); };
    this->work(queue, count, look, [&](int64_t item, int64_t token) {
      if (token < 0) return true;
      Ride ride;
      ride.peer = -1;
      if (item != this->kNoItem) {
        const PairPlace row = row_of(static_cast<uint32_t>(item));
        const PairRun& run = this->board_->out[row.peer];
        ride.peer = row.peer;
        ride.place = row.place;
        ride.number = run.first + row.place;
        ride.token = static_cast<int32_t>(token);
        ride.direct = run.direct != 0;
        mover_.begin_batch_row(ride);
      }
      if (begun.peer >= 0) hand_out(begun, round, ride.peer >= 0);
      begun = ride;
      return true;
    });
    mover_.finish();
    post(handed_, round);
  }

  HEDDLE_HD void post(const PairPlace& row, int round) {
    if (row.peer >= 0) Base::post(row.peer, round, row.place, mover_.is_sound());
  }

  HEDDLE_HD void hand_out(const Ride& ride, int round, bool others) {
    const PairRun& run = this->board_->out[ride.peer];
    mover_.hand_out(ride, carves_[run.direct], run.base, others);
    const PairPlace row{ride.peer, ride.place};
    if (!decltype(mover_)::kPostsLate) return post(row, round);
    post(handed_, round);
    handed_ = row;
  }

  // --- rows in ---

  /// This rank's own rows first: the others' are on their way.
  HEDDLE_HD void receive(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    const auto others = static_cast<uint32_t>(topo_.world - 1);
    const bool through_window = own_rows_are_sent();
    this->note_in([&] { note_rows_in(coop_, near_args(), dispatch_board_, this->lane_, round); });
    const auto own = static_cast<uint32_t>(this->board_->in[topo_.rank].count);
    const int64_t most = this->most_of_others(this->board_->in);
    const auto row_of = [&](int64_t item) {
      const auto number = static_cast<uint32_t>(item);
      if (number < own) return PairPlace{topo_.rank, number};
      return this->of_others(number - own, others);
    };
    const auto is_from_batch = [&](int64_t item) { return item < own && !through_window; };
    // A token of the batch, or whether the row has arrived.
    const auto look = [&](int64_t item) -> int64_t {
      const PairPlace row = row_of(item);
      if (row.place >= static_cast<uint32_t>(this->board_->in[row.peer].count)) return kNoRow;
      return is_from_batch(item) ? sent_token(row) : this->has_piece(row.peer, round, row.place);
    };
    Ride begun;
    begun.peer = -1;
    this->work(Queue::receive, own + most * others, look, [&](int64_t item, int64_t seen) {
      if (seen == kNoRow) return true;
      Ride ride;
      ride.peer = -1;
      bool begins = false, awaited = false;
      if (item != this->kNoItem) {
        const PairPlace row = row_of(item);
        const PairRun& run = this->board_->in[row.peer];
        ride.peer = row.peer;
        ride.place = row.place;
        ride.number = run.first + ride.place;
        ride.direct = run.direct != 0;
        const bool from_batch = is_from_batch(item);
        if (from_batch) ride.token = static_cast<int32_t>(seen);
        awaited = !from_batch && seen == 0;
        begins = !awaited;
        if (from_batch) mover_.begin_batch_row(ride);
        else if (begins) begin_slot(ride);
      }
      if (begun.peer >= 0) hand_in(begun, begins);
      begun = ride;
      if (!awaited) return true;
      const Arrival arrival = await_row(ride, round, deadline);
      if (arrival == Arrival::here) begin_slot(begun);
      else begun.peer = -1;
      return arrival != Arrival::fault;
    });
    mover_.finish();
  }

  HEDDLE_HD Arrival await_row(const Ride& ride, int round, uint64_t deadline) {
    auto arrival = Arrival::here;
    if (coop_.lane() == 0) arrival = this->await_piece(ride.peer, round, ride.place, deadline);
    return static_cast<Arrival>(desk_.tell(static_cast<uint64_t>(arrival)));
  }

  HEDDLE_HD void begin_slot(Ride& ride) { mover_.begin_slot(ride, slot_of(ride), carves_[ride.direct]); }

  HEDDLE_HD const std::byte* slot_of(const Ride& ride) const {
    return port_.local() + this->board_->in[ride.peer].base + carves_[ride.direct].range.slot(ride.place);
  }

  HEDDLE_HD void hand_in(const Ride& ride, bool others) {
    mover_.hand_in(ride, slot_of(ride), carves_[ride.direct], others);
  }

  static constexpr int64_t kNoRow = -1;

  const DispatchArgs& a_;
  Topology topo_;
  DispatchBoard<Port>* dispatch_board_;
  const Carve* carves_;
  Mover<Coop, Port> mover_;
  PairPlace handed_{-1, 0};  // handed out, not announced
};

/// `movers`: workers of a block that move rows, for which there is block memory; at most all but one.
template <template <class, class> class Mover, class Coop, class Port>
HEDDLE_HD bool dispatch_whole(const Coop& coop, Port& port, const DispatchArgs& args, PumpState* state, int movers) {
  return DispatchPump<Mover, Coop, Port>(coop, port, args, state, movers).run();
}

}  // namespace heddle
