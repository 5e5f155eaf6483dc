// A whole combine in one launch: the last block opens the lane and meets the peers by the steps of protocol/, all blocks move
// results by the contract of protocol/combine_rounds.hpp, in pieces, each summed as soon as all ranks' pieces are
// there. Leaves what Combine leaves.
#pragma once

#include <cstdint>

#include "cuda/combine_movers.hpp"
#include "cuda/pump.hpp"
#include "protocol/combine.hpp"

namespace heddle {

/// Whether the pump can do this call; else the plain steps do it. For the host.
HEDDLE_HD inline bool has_pump(const CombineArgs& args) {
  return !args.call.refusal.is_set() && combine_pieces(args.call).parts > 0;
}

template <class Own, class Port>
HEDDLE_HD HEDDLE_APART bool open_combine(const Own& own, Port& port, const CombineArgs& args) {
  prefetch_call(own, port.local(), args.call);
  return Combine<Own, Port>(own, port, args).open();
}

/// Late weights to where the headers' tables go, by all members: one worker an owner takes longer than its results do.
template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void send_late_weights(const Coop& coop, Port& port, const CombineArgs& args) {
  const Call& call = args.call;
  const int64_t table = call.ctx.window.range(Kind::combine, call.state->lane, call.ctx.topo.rank) + range_of(call).table;
  for (int owner = 0; owner < call.ctx.topo.world; ++owner) {
    if (!is_live(*call.state, owner)) continue;
    std::byte* at = port.stage({.peer = owner, .offset = table}, table_bytes(call.shape, call.ctx.topo.world));
    fill_late_weights(args, owner, reinterpret_cast<float*>(at), int64_t{coop.index()} * coop.lanes() + coop.lane(),
                      int64_t{coop.size()} * coop.lanes());
  }
  coop.sync();
}

/// Sends and reads the headers, and tells all blocks.
template <class Own, class Port>
HEDDLE_HD HEDDLE_APART void meet_combine(const Own& own, Port& port, const CombineArgs& args, PumpState* state) {
  Combine<Own, Port> steps(own, port, args);
  steps.send_headers(args.call.shape.weights == Weights::late);
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
HEDDLE_HD HEDDLE_APART void add_combined(const Coop& coop, Port& port, const CombineArgs& args, const PumpState& state, int round) {
  add_rows(coop, port, args.call, [&](int source) -> int64_t {
    if (is_unreduced(args.call.shape)) return static_cast<int64_t>(load_relaxed(&state.hits[source]));
    return last_of(args, source, round) - first_of(args, source, round);
  });
}

/// Mover: CombineLanes or CombineBelt.
template <template <class, class> class Mover, class Coop, class Port>
class CombinePump : Pump<Coop, Port> {
  using Base = Pump<Coop, Port>;
  using Base::call_, Base::coop_, Base::desk_, Base::port_, Base::state_;
  // Where hits are summed, each sender loads several rows for one that it stores.
  HEDDLE_HD static SenderRule senders(Layout layout) {
    return {.least = 4, .in_all = layout == Layout::token_major ? 260 : 1000};
  }

 public:
  HEDDLE_HD CombinePump(const Coop& coop, Port& port, const CombineArgs& args, PumpState* state, int movers)
      : Base(coop, port, args.call, state, senders(args.layout), movers), a_(args), topo_(args.call.ctx.topo),
        combine_board_(reinterpret_cast<CombineBoard<Port>*>(coop.shared())),
        mover_(coop, port, args, combine_board_, state, desk_.worker(), movers), own_stays_(mover_.own_stay(args)) {}

  HEDDLE_HD bool run() {
    const auto own = coop_.own_block();
    const bool meets_peers = this->meets_peers();
    this->note(Moment::start);
    if (coop_.thread() == 0) combine_board_->note(call_);
    combine_board_->near.copy(coop_, a_, port_);
    Port& port = combine_board_->near.port();
    const CombineArgs& args = combine_board_->near.args();
    if (this->moves()) mover_.open();
    Base::open();
    if (meets_peers) {
      const bool ok = open_combine(own, port, args);
      if (is_leader(own)) state_->start_call(topo_.world, ok);
    }
    coop_.sync();
    if (state_->opened == 0) return false;
    this->note(Moment::opened);
    this->note_call();
    if (call_.shape.weights == Weights::late) send_late_weights(coop_, port, args);
    if (meets_peers) meet_combine(own, port, args, state_);
    this->note(Moment::laid_out);
    for (int round = 0;; ++round) {
      if (round > 0 && !await_next_round(coop_, port_, call_, *state_, round)) return false;
      if (round > 0) Base::open();
      const bool ready = send_all(round);
      // Again, if a rank was masked while its results came: its part is absent from every token of this round.
      for (bool again = false;; again = true) {
        if (ready && this->moves()) receive(round, again);
        this->note(Moment::received);
        if (!meet_after_round(coop_, call_)) return false;
        if (again || !fold_late(coop_, call_, *state_)) break;
        if (is_leader(coop_)) state_->start_round(topo_.world);
        Base::open();
        coop_.sync();
      }
      if (meets_peers) give_credits(own, port_, call_, round);
      if (!has_next_round(coop_, call_, round)) break;
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
    Port& port = combine_board_->near.port();
    const CombineArgs& args = combine_board_->near.args();
    note_results_out(coop_, args, this->board_->out, round);
    if (desk_.is_publisher()) {
      desk_.publish();
    } else {
      if (may_send && this->moves()) send(round);
      desk_.leave();
    }
    if (may_send && (desk_.is_publisher() || !desk_.has_publisher()) && this->is_last_sender()) {
      add_combined(coop_, port, args, *state_, round);
    }
    this->note(Moment::sent);
    return this->await_ready();
  }

  // --- as an owner ---

  /// First to others, by the senders; then to this rank itself, by all, unless those results stay where they are.
  HEDDLE_HD void send(int round) {
    const auto others = static_cast<uint32_t>(topo_.world - 1);
    const auto each = static_cast<uint32_t>(mover_.items_of_row(combine_board_->pieces));
    const PairRun* out = this->board_->out;
    const auto post = poster(round);
    for (int turn = this->is_sender() ? 0 : 1; turn < 2; ++turn) {
      const bool own = turn == 1;
      if (own && own_stays_) return;
      const int64_t count = (own ? out[topo_.rank].count : this->most_of_others(out) * others) * each;
      const auto at = [&](int64_t item) {
        return own ? PairPlace{topo_.rank, static_cast<uint32_t>(item)} : this->of_others(static_cast<uint32_t>(item), others);
      };
      // The token of the result, -1 if there is none.
      const auto look = [&](int64_t item) -> int64_t {
        const PairPlace piece = at(item);
        const PairRun& run = out[piece.peer];
        const uint32_t number = piece.place / each;
        return number < static_cast<uint32_t>(run.count) ? a_.route.recv_token[run.base + run.first + number] : -1;
      };
      const int64_t base = call_.ctx.window.range(Kind::combine, this->lane_, topo_.rank);
      this->work(own ? Queue::own : Queue::send, count, look, [&](int64_t item, int64_t token) {
        const bool any = item != this->kNoItem;
        if (any && token < 0) return true;
        if (any) {
          const PairPlace piece = at(item);
          const PairRun& run = out[piece.peer];
          const int64_t number = run.first + piece.place / each;
          mover_.note_out({.source = piece.peer, .number = number, .row = run.base + number,
                           .place = token - round * combine_board_->tokens, .part = static_cast<int>(piece.place % each)},
                          base);
        }
        mover_.advance(any, post);
        return true;
      });
    }
  }

  HEDDLE_HD auto poster(int round) {
    return [this, round](int peer, int64_t tag) { this->post(peer, round, tag, mover_.is_sound()); };
  }

  // --- as the tokens' source ---

  HEDDLE_HD void receive(int round, bool is_all_there) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    const int64_t first = round * combine_board_->tokens;
    const int64_t end = first + combine_board_->tokens < a_.plan.tokens ? first + combine_board_->tokens : a_.plan.tokens;
    const auto each = static_cast<uint32_t>(mover_.items_of_row(combine_board_->pieces));
    const auto post = poster(round);
    this->note_in([&] { note_results_in(coop_, port_.local(), a_, this->board_->in); });
    const auto from = [&](int owner) -> const std::byte* {
      const int64_t base = this->board_->in[owner].base;
      return base < 0 || (own_stays_ && owner == topo_.rank) ? nullptr : port_.local() + base;
    };
    // One more than the number of the token's own row, 0 for none, and in the lowest bit whether all others' pieces are here.
    const auto look = [&](int64_t item) -> int64_t {
      const int64_t token = first + static_cast<uint32_t>(item) / each;
      const int64_t own = own_stays_ ? own_number(a_, token) + 1 : 0;
      return own << 1 | (is_all_there || has_pieces(token, round, item, each));
    };
    this->work(Queue::receive, (end - first) * each, look, [&](int64_t item, int64_t seen) {
      const bool any = item != this->kNoItem;
      const auto number = static_cast<uint32_t>(item);
      const int64_t place = number / each;
      // What is not here yet is waited for when the sum before it is done.
      HEDDLE_ROLLED
      for (bool is_here = any && (seen & 1) != 0;; is_here = true) {
        if (is_here) {
          mover_.note_in({.token = first + place, .place = place, .part = static_cast<int>(number % each),
                          .own = (seen >> 1) - 1},
                         from);
        }
        mover_.advance(is_here, post);
        if (is_here || !any) return true;
        const Arrival arrival = await_owners(first + place, round, number, each, deadline);
        if (arrival != Arrival::here) return arrival != Arrival::fault;
      }
    });
  }

  /// Whether this owner's piece of a token comes through the window.
  HEDDLE_HD bool brings_piece(const uint8_t* in_rank, int owner) const {
    return in_rank[owner] != 0 && this->board_->in[owner].base >= 0 && !(own_stays_ && owner == topo_.rank);
  }

  /// Tags [first, end) of an item.
  struct Tags {
    int64_t first;
    int64_t end;
  };
  HEDDLE_HD Tags tags_of(int64_t item, uint32_t each) const {
    const int64_t tags = static_cast<uint32_t>(combine_board_->pieces.parts) / each;
    return {item * tags, (item + 1) * tags};
  }

  /// By one lane.
  HEDDLE_HD bool has_pieces(int64_t token, int round, int64_t item, uint32_t each) const {
    const uint8_t* in_rank = a_.plan.in_rank + token * topo_.world;
    const Tags tags = tags_of(item, each);
    bool here = true;
    for (int owner = 0; owner < topo_.world && here; ++owner) {
      if (!brings_piece(in_rank, owner)) continue;
      for (int64_t tag = tags.first; tag < tags.end; ++tag) here = here && this->has_piece(owner, round, tag);
    }
    return here;
  }

  /// All lanes; each waits for some owners.
  HEDDLE_HD Arrival await_owners(int64_t token, int round, int64_t item, uint32_t each, uint64_t deadline) {
    const uint8_t* in_rank = a_.plan.in_rank + token * topo_.world;
    const Tags tags = tags_of(item, each);
    auto worst = Arrival::here;
    for (int owner = coop_.lane(); owner < topo_.world; owner += coop_.lanes()) {
      if (!brings_piece(in_rank, owner)) continue;
      for (int64_t tag = tags.first; tag < tags.end; ++tag) {
        const Arrival arrival = this->await_piece(owner, round, tag, deadline);
        if (arrival > worst) worst = arrival;
      }
    }
    return static_cast<Arrival>(desk_.worst(static_cast<uint64_t>(worst)));
  }

  const CombineArgs& a_;
  Topology topo_;
  CombineBoard<Port>* combine_board_;
  Mover<Coop, Port> mover_;
  bool own_stays_;
};

/// `movers`: workers of a block that move results, for which there is block memory; at most all but one.
template <template <class, class> class Mover, class Coop, class Port>
HEDDLE_HD bool combine_whole(const Coop& coop, Port& port, const CombineArgs& args, PumpState* state, int movers) {
  return CombinePump<Mover, Coop, Port>(coop, port, args, state, movers).run();
}

}  // namespace heddle
