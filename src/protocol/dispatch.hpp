// Dispatch: every token goes once to each rank that owns one of its experts; the receiver expands it (I1-I6).
//   send     lane, header; rows of round 0 unless they wait for offers
//   headers  every source's header; from here on the receiver knows how many rows come and where each will lie
//   receive  offers if any; for each round: send it to all, receive it from all
// send and receive may lie apart; whoever needs exact sizes allocates between headers and receive.
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
#include "protocol/call_header.hpp"
#include "protocol/call_rows.hpp"
#include "protocol/dispatch_args.hpp"
#include "protocol/dispatch_gaps.hpp"
#include "protocol/dispatch_layout.hpp"
#include "protocol/dispatch_rounds.hpp"
#include "protocol/offer.hpp"

namespace heddle {

template <class Coop, class Port>
class Dispatch {
 public:
  HEDDLE_HD Dispatch(const Coop& coop, Port& port, const DispatchArgs& args)
      : coop_(coop), port_(port), a_(args), call_(args.call), state_(*args.call.state), topo_(args.call.ctx.topo) {}

  HEDDLE_HD bool send() {
    if (!open()) return false;
    send_headers();
    return rows_wait_for_offers() ? true : send_round(0);
  }

  /// Afterwards it is known which rows a round sends.
  HEDDLE_HD bool open() {
    if (!open_lane(coop_, port_, call_)) return false;
    note_all_rounds();
    return true;
  }

  HEDDLE_HD void note_all_rounds() {
    deal_lanes(coop_, 0, topo_.world, [&](long peer) {
      note_rounds(call_, static_cast<int>(peer), counts_for(static_cast<int>(peer)).rounds);
    });
    coop_.sync();
  }

  HEDDLE_HD void send_headers() {
    deal(coop_, 0, topo_.world, [&](long peer) { send_header(static_cast<int>(peer)); });
    coop_.sync();
  }

  HEDDLE_HD bool headers() {
    if (!read_headers(coop_, port_, call_)) return false;
    if (is_refused()) return true;
    DispatchLayout<Coop>(coop_, port_.local(), a_).run();
    return true;
  }

  HEDDLE_HD bool receive() {
    if (rows_wait_for_offers() && !exchange_offers(coop_, port_, a_)) return false;
    if (is_refused()) {
      if (!discard_rows(coop_, port_, call_)) return false;
      close_call(coop_, call_);
      return true;
    }
    clear_gaps(coop_, a_);
    const int rounds = most_rounds(call_);
    for (int round = 0; round < rounds; ++round) {
      if ((round > 0 || rows_wait_for_offers()) && !send_round(round)) return false;
      if (!receive_round(round)) return false;
    }
    drop_masked_rows(coop_, port_.local(), a_);
    coop_.sync();
    const bool held = a_.out.ready.is_set() && holds_tables(a_);
    if (a_.out.ready.is_set()) coop_.sync();  // all have looked
    leave_out_dropped(coop_, a_);
    if (a_.out.ready.is_set()) finish_ready(held);
    close_call(coop_, call_);
    return true;
  }

 private:
  HEDDLE_HD bool is_refused() const { return call_.refusal.is_set(); }
  HEDDLE_HD bool rows_wait_for_offers() const { return offers_rows(call_.ctx, call_.shape) && !is_refused(); }
  HEDDLE_HD int32_t sends(int peer) const { return is_refused() ? 0 : a_.plan.sends(peer); }

  HEDDLE_HD HeaderCounts counts_for(int peer) const {
    const int32_t slots = range_of(call_).count;
    return {.count = sends(peer), .slots = slots, .rounds = rounds_of(sends(peer), slots),
            .tokens = is_refused() ? 0 : a_.plan.tokens};
  }

  HEDDLE_HD void send_header(int peer) {
    put_header(coop_, port_, call_, peer, counts_for(peer), [&](uint32_t* table) { fill_table(table); });
  }

  HEDDLE_HD void fill_table(uint32_t* table) const {
    const bool grouped = is_grouped(call_.shape);
    const int ranks = grouped ? 0 : topo_.world;
    const int32_t* by_expert = grouped ? a_.plan.rows : a_.plan.pairs;
    const auto load = [&](int64_t i) -> uint32_t {
      const int rank = static_cast<int>(i < ranks ? i : topo_.owner_of(static_cast<int>(i) - ranks));
      const int32_t* count = i < ranks ? a_.plan.per_rank + i : by_expert + (i - ranks);  // no branch: loads go side by side
      const auto sent = static_cast<uint32_t>(*count);
      return is_live(state_, rank) ? sent : 0;  // a masked owner gets nothing, and everybody must know (I14)
    };
    const HeldWords<uint32_t, 10> words(coop_, ranks + topo_.experts, load);  // a chain of waits for each word takes 12 us
    words.store(coop_, ranks + topo_.experts, load, [&](int64_t i, uint32_t word) { table[i] = word; });
  }

  // --- rows out ---

  HEDDLE_HD bool send_round(int round) {
    if (round > 0) {
      const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
      deal_lanes(coop_, 0, topo_.world, [&](long peer) {
        const int to = static_cast<int>(peer);
        if (round < state_.rounds_to[to]) await_credits(port_, call_, to, round, deadline);
      });
      if (!settle(coop_, call_.ctx)) return false;
    }
    // Chunks go round the peers, so that a token's row is still in the cache when the next peer needs it, and no peer
    // is stormed by all ranks at once.
    const int64_t chunks = ceil_div(most_rows_of(round), kChunk);
    deal(coop_, 0, chunks * topo_.world, [&](long item) {
      const int peer = static_cast<int>((topo_.rank + 1 + item % topo_.world) % topo_.world);
      send_chunk(peer, round, item / topo_.world);
    });
    return true;
  }

  HEDDLE_HD int64_t rows_of_round(int peer, int round) const { return rows_to(a_, peer, round); }

  HEDDLE_HD int64_t most_rows_of(int round) const {
    int64_t most = 0;
    for (int peer = 0; peer < topo_.world; ++peer) {
      const int64_t rows = rows_of_round(peer, round);
      most = rows > most ? rows : most;
    }
    return most;
  }

  HEDDLE_HD void send_chunk(int peer, int round, int64_t chunk) {
    const int64_t rows = rows_of_round(peer, round);
    const int64_t end = (chunk + 1) * kChunk < rows ? (chunk + 1) * kChunk : rows;
    if (chunk * kChunk >= end) return;
    for (int64_t place = chunk * kChunk; place < end; ++place) send_row(coop_, port_, a_, {peer, round, place});
    const int puts = state_.direct_to[peer] != 0 ? 2 : 1;
    port_.flush(coop_, peer, counter_at(call_, topo_.rank, Awaited::rows), (end - chunk * kChunk) * puts);
    if (pieces_to(call_, peer).parts > 0) {
      mark_pieces(coop_, port_, call_, peer, round, chunk * kChunk, end - chunk * kChunk);
    }
  }

  // --- rows in ---

  /// Row puts of the source until the end of the round.
  HEDDLE_HD int64_t puts_until(int source, int round) const {
    const int64_t slots = state_.slots[source];
    const int64_t rows = (round + 1) * slots < state_.count[source] ? (round + 1) * slots : state_.count[source];
    return rows * (state_.direct_from[source] != 0 ? 2 : 1);
  }

  HEDDLE_HD bool receive_round(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    if (a_.out.ready.is_set()) return receive_as_they_come(round, deadline);
    deal_lanes(coop_, 0, topo_.world, [&](long peer) {
      const int source = static_cast<int>(peer);
      if (round >= state_.rounds[source]) return;
      await_rows(port_, call_, source, puts_until(source, round), deadline);
    });
    if (!settle(coop_, call_.ctx)) return false;
    for (int source = 0; source < topo_.world; ++source) place_round(source, round);
    coop_.sync();  // a credit says that all members have read
    deal_lanes(coop_, 0, topo_.world, [&](long source) {
      if (round < state_.rounds[source]) give_credit(port_, call_, static_cast<int>(source));
    });
    coop_.sync();
    return true;
  }

  /// Nobody's rows wait for another's, so that an expert is ready as soon as its own are there.
  HEDDLE_HD bool receive_as_they_come(int round, uint64_t deadline) {
    RankSet placed;
    int left = 0;
    for (int source = 0; source < topo_.world; ++source) left += round < state_.rounds[source];
    for (; left > 0; --left) {
      if (is_leader(coop_)) state_.taken = await_any(round, placed, deadline);
      if (!settle(coop_, call_.ctx)) return false;
      const int source = state_.taken;
      place_round(source, round);
      coop_.sync();  // a credit says that all members have read
      if (is_leader(coop_)) give_credit(port_, call_, source);
      placed.add(source);
    }
    coop_.sync();
    return true;
  }

  /// By one lane: a source whose rows of the round are there, or will not come.
  HEDDLE_HD int await_any(int round, const RankSet& placed, uint64_t deadline) {
    for (int attempt = 0;; ++attempt) {
      for (int source = 0; source < topo_.world; ++source) {
        if (round >= state_.rounds[source] || placed.has(source)) continue;
        if (look_for_rows(port_, call_, source, puts_until(source, round), deadline)) return source;
      }
      port_.relax(attempt);
    }
  }

  HEDDLE_HD void finish_ready(bool held) const {
    coop_.sync();
    complete_ready(coop_, a_.out.ready, topo_.num_local(topo_.rank), held);
  }

  HEDDLE_HD void place_round(int source, int round) const {
    if (!is_live(state_, source) || round >= state_.rounds[source]) return;
    deal(coop_, 0, rows_from(call_, source, round), [&](long place) {
      const RowPlace row{source, round, place};
      place_row(coop_, a_, row, arrived_row(port_.local(), a_, row));
    });
  }

  static constexpr int64_t kChunk = 16;

  const Coop& coop_;
  Port& port_;
  const DispatchArgs& a_;
  const Call& call_;
  CallState& state_;
  Topology topo_;
};

template <class Coop, class Port>
HEDDLE_HD bool dispatch_send(const Coop& coop, Port& port, const DispatchArgs& args) {
  return Dispatch<Coop, Port>(coop, port, args).send();
}

template <class Coop, class Port>
HEDDLE_HD bool dispatch_headers(const Coop& coop, Port& port, const DispatchArgs& args) {
  return Dispatch<Coop, Port>(coop, port, args).headers();
}

template <class Coop, class Port>
HEDDLE_HD bool dispatch_receive(const Coop& coop, Port& port, const DispatchArgs& args) {
  return Dispatch<Coop, Port>(coop, port, args).receive();
}

}  // namespace heddle
