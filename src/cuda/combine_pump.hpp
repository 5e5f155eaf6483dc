// A whole combine in one launch: the last block opens the lane and meets the peers by the steps of protocol/, all blocks move
// results by the contract of protocol/combine_rounds.hpp, in pieces, each summed as soon as all ranks' pieces are
// there. Leaves what Combine leaves.
#pragma once

#include <cstdint>

#include "cuda/pump.hpp"
#include "protocol/combine.hpp"

namespace heddle {

/// Whether the pump can do this call; else the plain steps do it. For the host.
HEDDLE_HD inline bool has_pump(const CombineArgs& args) {
  return !args.call.refusal.is_set() && !is_unreduced(args.call.shape) && combine_pieces(args.call).parts > 0;
}

template <class Own, class Port>
HEDDLE_HD HEDDLE_APART bool open_combine(const Own& own, Port& port, const CombineArgs& args) {
  prefetch_call(own, port.local(), args.call);
  return Combine<Own, Port>(own, port, args).open();
}

/// Sends and reads the headers, and tells all blocks.
template <class Own, class Port>
HEDDLE_HD HEDDLE_APART void meet_combine(const Own& own, Port& port, const CombineArgs& args, PumpState* state) {
  Combine<Own, Port> steps(own, port, args);
  steps.send_headers();
  const bool ok = steps.headers();
  own.sync();
  if (is_leader(own)) store_release(&state->stage, static_cast<uint64_t>(ok ? Stage::ready : Stage::broken));
}

/// first: the number of the round's first received token within the source; base: of all received ones.
template <class Coop>
HEDDLE_HD HEDDLE_APART void note_results_out(const Coop& coop, const CombineArgs& args, PairRun* runs, int round) {
  note_runs(coop, args.call.ctx.topo.world, runs, [&](int source) {
    const int64_t first = first_of(args, source, round);
    return PairRun{.first = first,
                   .base = args.route.recv_offset[source],
                   .count = static_cast<int32_t>(last_of(args, source, round) - first)};
  });
}

/// base: where the owner's results begin, or -1. By one worker.
template <class Coop>
HEDDLE_HD HEDDLE_APART void note_results_in(const Coop& coop, const std::byte* window, const CombineArgs& args,
                                            PairRun* runs) {
  for (int owner = coop.lane(); owner < args.call.ctx.topo.world; owner += coop.lanes()) {
    const std::byte* results = results_from(window, args.call, range_of(args.call), owner);
    runs[owner].base = results == nullptr ? -1 : results - window;
  }
  coop.worker_sync();
}

template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void add_combined(const Coop& coop, Port& port, const CombineArgs& args, int round) {
  add_rows(coop, port, args.call,
           [&](int source) { return last_of(args, source, round) - first_of(args, source, round); });
}

template <class Coop, class Port>
class CombinePump : Pump<Coop, Port> {
  using Base = Pump<Coop, Port>;
  using Base::call_, Base::coop_, Base::desk_, Base::port_, Base::state_;
  // Where hits are summed, each sender loads several rows for one that it stores.
  HEDDLE_HD static SenderRule senders(Layout layout) {
    return {.least = 3, .in_all = layout == Layout::token_major ? 190 : 1000};
  }

 public:
  HEDDLE_HD CombinePump(const Coop& coop, Port& port, const CombineArgs& args, PumpState* state, int movers)
      : Base(coop, port, args.call, state, senders(args.layout), movers), a_(args), topo_(args.call.ctx.topo),
        pieces_(combine_pieces(args.call)), range_(range_of(args.call)), tokens_(window_tokens(args.call)) {}

  HEDDLE_HD bool run() {
    const auto own = coop_.own_block();
    const bool meets_peers = this->meets_peers();
    this->note(Moment::start);
    Base::open();
    if (meets_peers) {
      const bool ok = open_combine(own, port_, a_);
      if (is_leader(own)) state_->start_call(topo_.world, ok);
    }
    coop_.sync();
    if (state_->opened == 0) return false;
    this->note(Moment::opened);
    this->note_call();
    if (meets_peers) meet_combine(own, port_, a_, state_);
    this->note(Moment::laid_out);
    for (int round = 0; round == 0 || round < most_rounds(call_); ++round) {
      if (round > 0 && !await_next_round(coop_, port_, call_, *state_, round)) return false;
      if (round > 0) Base::open();
      const bool ready = send_all(round);
      // Again, if a rank was masked while its results came: its part is absent from every token of this round.
      for (bool again = false;; again = true) {
        if (ready) receive(round, again);
        this->note(Moment::received);
        if (!meet_after_round(coop_, call_, round)) return false;
        if (again || !fold_late(coop_, call_, *state_)) break;
        if (is_leader(coop_)) state_->start_round();
        Base::open();
        coop_.sync();
      }
      if (meets_peers) give_credits(own, port_, call_, round);
    }
    this->note(Moment::met);
    if (!meets_peers) return true;
    deal_lanes(own, 0, topo_.world, [&](long owner) { a_.out.status[owner] = call_.state->status[owner]; });
    close_call(own, call_);
    this->note(Moment::closed);
    return true;
  }

 private:
  /// False: the call has ended in a fault.
  HEDDLE_HD bool send_all(int round) {
    const bool may_send = call_.shape.weights != Weights::late || this->await_ready();
    note_results_out(coop_, a_, this->board_->out, round);
    if (desk_.is_publisher()) {
      desk_.publish();
    } else {
      if (may_send) send(round);
      desk_.leave();
    }
    if (may_send && (desk_.is_publisher() || !desk_.has_publisher()) && this->is_last_sender()) {
      add_combined(coop_, port_, a_, round);
    }
    this->note(Moment::sent);
    return this->await_ready();
  }

  // --- as an owner ---

  /// First to others, by the senders; then to this rank itself, by all.
  HEDDLE_HD void send(int round) {
    const auto others = static_cast<uint32_t>(topo_.world - 1);
    const PairRun* out = this->board_->out;
    const auto no_look = [](int64_t) { return int64_t{0}; };
    for (int turn = this->is_sender() ? 0 : 1; turn < 2; ++turn) {
      const bool own = turn == 1;
      const int64_t count = (own ? out[topo_.rank].count : this->most_of_others(out) * others) * pieces_.parts;
      this->work(own ? Queue::own : Queue::send, count, no_look, [&](int64_t item, int64_t) {
        const auto number = static_cast<uint32_t>(item);
        if (own) send_piece(topo_.rank, round, number);
        else send_piece(this->other_of(number, others), round, number / others);
        return true;
      });
    }
  }

  HEDDLE_HD void send_piece(int source, int round, uint32_t piece) {
    const PairRun run = this->board_->out[source];
    const auto parts = static_cast<uint32_t>(pieces_.parts);
    const uint32_t number = piece / parts;
    if (number >= static_cast<uint32_t>(run.count)) return;
    const auto part = static_cast<int>(piece % parts);
    const ResultPlace result{source, round, run.first + number};
    const int64_t row = run.base + result.number;
    const int64_t place = a_.route.recv_token[row] - round * tokens_;
    const float* late = nullptr;
    if (call_.shape.weights == Weights::late) {
      late =
          reinterpret_cast<const float*>(table_from(port_.local(), call_, source)) + result.number * call_.shape.topk;
    }
    const ResultWriter writer{.args = a_, .i = row, .late = late, .columns = columns_of(a_, pieces_, part)};
    const int64_t base = call_.ctx.window.range(Kind::combine, this->lane_, topo_.rank);
    put_result(coop_, port_, writer, {.peer = source, .offset = base + range_.slot(place)}, range_.stride,
               [&](std::byte* at) { writer.write_sum(coop_, at); });
    this->post(source, round, place * parts + part);
  }

  // --- as the tokens' source ---

  HEDDLE_HD void receive(int round, bool is_all_there) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    const int64_t first = round * tokens_;
    const int64_t end = first + tokens_ < a_.plan.tokens ? first + tokens_ : a_.plan.tokens;
    const auto parts = static_cast<uint32_t>(pieces_.parts);
    this->note_in([&] { note_results_in(coop_, port_.local(), a_, this->board_->in); });
    const auto from = [&](int owner) -> const std::byte* {
      const int64_t base = this->board_->in[owner].base;
      return base < 0 ? nullptr : port_.local() + base;
    };
    const auto no_look = [](int64_t) { return int64_t{0}; };
    this->work(Queue::receive, (end - first) * parts, no_look, [&](int64_t item, int64_t) {
      const auto number = static_cast<uint32_t>(item);
      const auto part = static_cast<int>(number % parts);
      const int64_t place = number / parts;
      auto arrival = Arrival::here;
      if (!is_all_there) arrival = await_owners(first + place, round, number, deadline);
      if (arrival == Arrival::here) {
        sum_token(coop_, a_, first + place, place, columns_of(a_, pieces_, part), range_, from);
      }
      return arrival != Arrival::fault;
    });
  }

  /// All lanes; each waits for some owners.
  HEDDLE_HD Arrival await_owners(int64_t token, int round, int64_t tag, uint64_t deadline) {
    const uint8_t* in_rank = a_.plan.in_rank + token * topo_.world;
    auto worst = Arrival::here;
    for (int owner = coop_.lane(); owner < topo_.world; owner += coop_.lanes()) {
      if (in_rank[owner] == 0 || this->board_->in[owner].base < 0) continue;
      const Arrival arrival = this->await_piece(owner, round, tag, deadline);
      if (arrival > worst) worst = arrival;
    }
    return static_cast<Arrival>(desk_.worst(static_cast<uint64_t>(worst)));
  }

  const CombineArgs& a_;
  Topology topo_;
  Pieces pieces_;
  Range range_;
  int64_t tokens_;  // of a round
};

template <class Coop, class Port>
HEDDLE_HD bool combine_whole(const Coop& coop, Port& port, const CombineArgs& args, PumpState* state, int movers) {
  return CombinePump<Coop, Port>(coop, port, args, state, movers).run();
}

}  // namespace heddle
