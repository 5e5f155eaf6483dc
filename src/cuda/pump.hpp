// What the pumps of dispatch and combine have in common: who sends and who receives, claimed work, waits for single
// pieces.
//
// In each block a few workers send, one publishes (device/board.hpp), all others receive, and so do senders that have
// nothing left to send. Nobody who sends waits for anybody who receives, so a round always ends. Work is claimed, not
// dealt: blocks are not equally fast; but each worker's first item is fixed.
#pragma once

#include <cstdint>

#include "cuda/claims.hpp"
#include "cuda/near_args.hpp"
#include "cuda/pump_state.hpp"
#include "device/board.hpp"
#include "device/prefetch.hpp"
#include "protocol/await.hpp"
#include "protocol/pieces.hpp"

namespace heddle {

/// What moves between this rank and one peer in a round.
struct PairRun {
  int64_t first = 0;
  int64_t base = -1;
  int64_t listed = 0;  // of a dispatch's rows out: where their tokens begin in PlanView::send_tokens
  int32_t count = 0;
  int32_t direct = 0;
};

/// A row of a pair's run.
struct PairPlace {
  int peer;  // -1: none
  uint32_t place;
};

/// Items that a worker claims at once, so that its lanes look up what they need together: a look takes as long as moving a
/// row.
inline constexpr int kMostOfRun = 4;

/// In the memory of a block. Most of it says what global memory says, too: there, each look costs what moving half a
/// row costs, as releases of the publisher empty the block's cache.
struct alignas(16) PumpBoard {
  Board board;
  PairRun out[kMaxRanks];
  PairRun in[kMaxRanks];
  uint64_t in_is_noted = 0;  // 1: a worker is at it, 2: it is done; atomic
  int64_t notes[kMostWorkers][kMostOfRun];
};

template <class Port>
HEDDLE_HD HEDDLE_APART Arrival await_tag(Port& port, const Call& call, const Wait& wait) {
  return await(port, call, wait);
}

/// By all lanes of the one worker that is_last_sender(). `rows(peer)` puts.
template <class Coop, class Port, class Rows>
HEDDLE_HD void add_rows(const Coop& coop, Port& port, const Call& call, const Rows& rows) {
  const int64_t counter = counter_at(call, call.ctx.topo.rank, Awaited::rows);
  for (int peer = coop.lane(); peer < call.ctx.topo.world; peer += coop.lanes()) {
    if (const int64_t n = rows(peer); n > 0) port.add(peer, counter, n);
  }
}

/// What the block that meets the peers is about to read, one place after the other.
template <class Own>
HEDDLE_HD void prefetch_call(const Own& own, const std::byte* window, const Call& call) {
  prefetch(own, call.ctx.ledger, sizeof(Ledger));
  prefetch(own, call.state, sizeof(CallState));
  prefetch(own, window, sizeof(Cells) * static_cast<size_t>(call.ctx.topo.world));
}

/// Fills a table of the block; run(peer) is worked out by one lane.
template <class Coop, class Run>
HEDDLE_HD void note_runs(const Coop& coop, int world, PairRun* runs, const Run& run) {
  for (int peer = coop.thread(); peer < world; peer += coop.threads()) runs[peer] = run(peer);
  coop.block_sync();
}

/// The base of both pumps. Its state has to stay in registers: what is not inlined (HEDDLE_APART) is no member
/// function, as a look at the stack costs as much as one at global memory wherever a publisher empties the cache.
template <class Coop, class Port>
class Pump {
 public:
  HEDDLE_HD Pump(const Coop& coop, Port& port, const Call& call, PumpState* state, SenderRule rule, int movers)
      : coop_(coop), port_(port), call_(call), state_(state), board_(reinterpret_cast<PumpBoard*>(coop.shared())),
        desk_(coop, port, &board_->board, 2 * call.ctx.timeout_ns), movers_(movers) {
    senders_ = desk_.has_publisher() ? rule.of(coop.blocks(), movers) : 1;
    if (state->senders > 0) senders_ = state->senders < movers ? state->senders : movers;
  }

  /// Before each round, by all workers of the block.
  HEDDLE_HD void open() {
    if (coop_.thread() == 0) board_->in_is_noted = 0;
    desk_.open();
  }

  /// Workers come to receiving one by one; the first of a block fills in what all will look at.
  template <class Fill>
  HEDDLE_HD void note_in(const Fill& fill) const {
    uint64_t* noted = &board_->in_is_noted;
    if (desk_.tell(coop_.lane() == 0 && claim_block(noted)) == 0) {
      Patience patience(2 * call_.ctx.timeout_ns);  // the first waits for nobody
      bool is_done = false;
      for (int attempt = 0; coop_.lane() == 0 && !is_done; ++attempt) {
        is_done = load_block(noted) == 2;
        if (!is_done && patience.is_over(attempt, [&] { return port_.now(); })) break;
        if (!is_done) port_.relax(attempt);
      }
      if (desk_.tell(is_done) != 0) return;
    }
    fill();  // all fill in the same
    coop_.worker_sync();
    if (coop_.lane() == 0) store_block(noted, 2);
    coop_.worker_sync();
  }

 protected:
  HEDDLE_HD bool is_sender() const { return desk_.worker() < senders_; }
  /// Others of the block only meet the rest.
  HEDDLE_HD bool moves() const { return desk_.worker() < movers_; }

  /// The block that opens the lane and meets the peers. The last one has the least to do with a plan.
  HEDDLE_HD bool meets_peers() const { return coop_.block() == coop_.blocks() - 1; }

  /// Claims runs of items below count; calls item(i, look(i)) for each until one returns false, and at the end, if none did,
  /// item(kNoItem, 0). Lanes do the looks of a run together. Senders' queue: each sender has a first run; the other queues:
  /// each mover that is no sender.
  template <class Look, class Item>
  HEDDLE_HD void work(Queue queue, int64_t count, const Look& look, const Item& item) {
    const bool sends = queue == Queue::send;
    const int first_worker = sends ? 0 : senders_;
    const int workers = sends ? senders_ : movers_ - senders_;
    const int rank = desk_.worker() - first_worker;
    const bool fixed = rank >= 0 && rank < workers;
    const int64_t first = fixed ? int64_t{rank} * coop_.blocks() + coop_.block() : -1;
    const int64_t length = run_length(count, int64_t{sends ? senders_ : movers_} * coop_.blocks());
    Claims<Coop, Port> claims(coop_, desk_, &state_->next[static_cast<int>(queue)], first,
                              int64_t{workers} * coop_.blocks());
    for (bool any = true; any;) {
      const int64_t i = claims.take() * length;
      any = i < count;
      const auto left = static_cast<int>(!any ? 1 : count - i < length ? count - i : length);
      int64_t* notes = board_->notes[desk_.worker()];
      for (int k = coop_.lane(); any && k < left; k += coop_.lanes()) notes[k] = look(i + k);
      coop_.worker_sync();
      HEDDLE_ROLLED
      for (int k = 0; k < left; ++k) {
        if (!item(any ? i + k : kNoItem, any ? notes[k] : 0)) return;
      }
    }
  }
  static constexpr int64_t kNoItem = -1;

  /// Short where there are few items for each: the last run of one worker keeps all others waiting.
  HEDDLE_HD static int64_t run_length(int64_t count, int64_t workers) {
    constexpr int kRunsEach = 6;
    const int64_t length = count / (workers * kRunsEach);
    return length < 1 ? 1 : length > kMostOfRun ? kMostOfRun : length;
  }

  /// Until the last block has read the headers. False: the call has ended in a fault.
  HEDDLE_HD bool await_ready() const {
    uint64_t stage = 0;
    if (coop_.lane() == 0) {
      const uint64_t deadline = port_.now() + 3 * call_.ctx.timeout_ns;  // the last block waits for credits, headers, offers
      for (int attempt = 0; (stage = load_acquire(&state_->stage)) == 0 && port_.now() < deadline; ++attempt) {
        port_.relax(attempt);
      }
    }
    return desk_.tell(stage) == static_cast<uint64_t>(Stage::ready);
  }

  /// After all have met: what does not change in the call.
  HEDDLE_HD void note_call() {
    lane_ = call_.state->lane;
    seq_ = call_.state->seq;
  }
  HEDDLE_HD int64_t tag_of(int source, int64_t tag) const {
    return call_.ctx.window.tags(call_.shape.kind, lane_, source) + tag * int64_t{sizeof(uint64_t)};
  }
  /// `is_sound`: if not, the peer is left to wait.
  HEDDLE_HD void post(int peer, int round, int64_t tag, bool is_sound) {
    desk_.post(peer, tag_of(call_.ctx.topo.rank, tag), tag_value(seq_, round), is_sound);
  }

  HEDDLE_HD int64_t most_of_others(const PairRun* runs) const {
    int64_t most = 0;
    for (int peer = 0; peer < call_.ctx.topo.world; ++peer) {
      if (peer != call_.ctx.topo.rank && runs[peer].count > most) most = runs[peer].count;
    }
    return most;
  }
  /// Items go round the others.
  HEDDLE_HD PairPlace of_others(uint32_t item, uint32_t others) const {
    const uint32_t place = others == 1 ? item : item / others;
    const uint32_t peer = static_cast<uint32_t>(call_.ctx.topo.rank) + 1 + item - place * others;
    return {static_cast<int>(peer < others + 1 ? peer : peer - others - 1), place};
  }

  /// By one lane.
  HEDDLE_HD bool has_piece(int source, int round, int64_t tag) const {
    return load_acquire(reinterpret_cast<const uint64_t*>(port_.local() + tag_of(source, tag))) >=
           tag_value(seq_, round);
  }

  /// By one lane.
  HEDDLE_HD Arrival await_piece(int source, int round, int64_t tag, uint64_t deadline) const {
    if (has_piece(source, round, tag)) return Arrival::here;
    const Arrival arrival = await_tag(port_, call_, {.peer = source, .awaited = Awaited::rows,
                                                     .wanted = tag_value(seq_, round), .deadline = deadline,
                                                     .at = tag_of(source, tag)});
    if (arrival == Arrival::masked) store_relaxed(&state_->late[source], 1);
    return arrival;
  }

  /// When all posts of this block are out: true for the worker of the last block, whose lanes then add the round's rows
  /// to the peers' counters; for none if the call has ended in a fault here.
  HEDDLE_HD bool is_last_sender() const {
    coop_.worker_sync();
    bool is_last = false;
    if (coop_.lane() == 0) {
      is_last = add_in_turn(&state_->blocks_sent, 1) + 1 == static_cast<uint64_t>(coop_.blocks());
      is_last = is_last && !call_.ctx.ledger->is_faulted();
    }
    return desk_.tell(is_last) != 0;
  }

  HEDDLE_HD void note(Moment moment) const {
    if (meets_peers() && coop_.thread() == 0) state_->moments[static_cast<int>(moment)] = cycles();
  }

  const Coop& coop_;
  Port& port_;
  const Call& call_;
  PumpState* state_;
  PumpBoard* board_;
  Desk<Coop, Port> desk_;
  int movers_;
  int senders_;
  int lane_ = 0;
  uint64_t seq_ = 0;
};

/// Takes over who was masked while rows came; true if somebody was. All members call it after they met, and see the
/// same.
template <class Coop>
HEDDLE_HD bool fold_late(const Coop& coop, const Call& call, const PumpState& state) {
  bool any = false;
  for (int source = 0; source < call.ctx.topo.world; ++source) any |= load_relaxed(&state.late[source]) != 0;
  if (!any) return false;
  if (is_leader(coop)) {
    for (int source = 0; source < call.ctx.topo.world; ++source) {
      if (load_relaxed(&state.late[source]) != 0)
        call.state->status[source] = static_cast<uint8_t>(SourceStatus::masked);
    }
  }
  coop.sync();
  return true;
}

/// The credits of a later round, for all rounds but the first of open_lane(). All members; false: fault.
template <class Coop, class Port>
HEDDLE_HD bool await_next_round(const Coop& coop, Port& port, const Call& call, PumpState& state, int round) {
  if (is_leader(coop)) state.start_round(call.ctx.topo.world);
  const uint64_t deadline = port.now() + call.ctx.timeout_ns;
  deal_lanes(coop, 0, call.ctx.topo.world, [&](long peer) {
    const int to = static_cast<int>(peer);
    if (round < call.state->rounds_to[to]) await_credits(port, call, to, round, deadline);
  });
  return settle(coop, call.ctx);
}

/// All members have done their part of a round. False: fault.
template <class Coop>
HEDDLE_HD bool meet_after_round(const Coop& coop, const Call& call) {
  coop.sync();
  return !call.ctx.ledger->is_faulted();
}

/// All members, after they met. Nobody goes on to what may fault, or mask a peer, before all have looked.
template <class Coop>
HEDDLE_HD bool has_next_round(const Coop& coop, const Call& call, int round) {
  const bool more = round + 1 < most_rounds(call);
  if (more) coop.sync();
  return more;
}

/// By the block that meets the peers.
template <class Own, class Port>
HEDDLE_HD void give_credits(const Own& own, Port& port, const Call& call, int round) {
  deal_lanes(own, 0, call.ctx.topo.world, [&](long source) {
    if (round < call.state->rounds[source]) give_credit(port, call, static_cast<int>(source));
  });
}

}  // namespace heddle
