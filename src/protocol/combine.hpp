// Combine: every owner sends each token's result back to the token's source, which sums them over ranks ascending (I3, I8).
//   send     lane, header (with late weights in its table); results of round 0 unless they wait for late weights
//   headers  every owner's header
//   receive  for each round: send it to all, receive it from all
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
#include "protocol/call_header.hpp"
#include "protocol/call_rows.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/combine_rounds.hpp"

namespace heddle {

template <class Coop, class Port>
class Combine {
 public:
  HEDDLE_HD Combine(const Coop& coop, Port& port, const CombineArgs& args)
      : coop_(coop), port_(port), a_(args), call_(args.call), state_(*args.call.state), topo_(args.call.ctx.topo) {}

  HEDDLE_HD bool send() {
    if (!open()) return false;
    send_headers();
    return is_refused() || rows_wait_for_weights() ? true : send_round(0);
  }

  /// Afterwards it is known which results a round sends.
  HEDDLE_HD bool open() {
    if (!open_lane(coop_, port_, call_)) return false;
    deal_lanes(coop_, 0, topo_.world, [&](long peer) {
      const int source = static_cast<int>(peer);
      note_rounds(call_, source, is_refused() ? 1 : rounds_of(a_.route.source_tokens[source], tokens_per_round()));
    });
    coop_.sync();
    return true;
  }

  /// `has_tables`: late weights lie where the headers' tables go already.
  HEDDLE_HD void send_headers(bool has_tables = false) {
    deal(coop_, 0, topo_.world, [&](long peer) { send_header(static_cast<int>(peer), has_tables); });
    coop_.sync();
  }

  HEDDLE_HD bool headers() {
    if (!read_headers(coop_, port_, call_)) return false;
    if (is_refused()) return true;
    deal(coop_, 0, topo_.world, [&](long owner) { check_count(static_cast<int>(owner)); });
    return settle(coop_, call_.ctx);
  }

  HEDDLE_HD bool receive() {
    if (is_refused()) {
      if (!discard_rows(coop_, port_, call_)) return false;
      close_call(coop_, call_);
      return true;
    }
    const int rounds = most_rounds(call_);
    for (int round = 0; round < rounds; ++round) {
      if ((round > 0 || rows_wait_for_weights()) && !send_round(round)) return false;
      if (!receive_round(round)) return false;
    }
    if (is_leader(coop_)) {
      for (int owner = 0; owner < topo_.world; ++owner) a_.out.status[owner] = state_.status[owner];
    }
    close_call(coop_, call_);
    return true;
  }

 private:
  HEDDLE_HD bool is_refused() const { return call_.refusal.is_set(); }
  HEDDLE_HD bool rows_wait_for_weights() const { return call_.shape.weights == Weights::late && !is_refused(); }
  HEDDLE_HD int64_t tokens_per_round() const { return window_tokens(call_); }

  // --- as an owner ---

  HEDDLE_HD void send_header(int source, bool has_tables) {
    HeaderCounts counts{.slots = static_cast<int32_t>(tokens_per_round())};
    if (!is_refused()) {
      counts.count = static_cast<int32_t>(results_in(coop_, a_, source, 0, received_from(a_, source)));
      counts.rounds = state_.rounds_to[source];
      counts.tokens = a_.plan.tokens;
    }
    put_header(coop_, port_, call_, source, counts, [&](uint32_t* table) {
      if (call_.shape.weights != Weights::late || has_tables) return;
      fill_late_weights(a_, source, reinterpret_cast<float*>(table), coop_.lane(), coop_.lanes());
    });
  }

  HEDDLE_HD bool send_round(int round) {
    if (round > 0) {
      const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
      deal_lanes(coop_, 0, topo_.world, [&](long peer) {
        const int to = static_cast<int>(peer);
        if (round < state_.rounds_to[to]) await_credits(port_, call_, to, round, deadline);
      });
      if (!settle(coop_, call_.ctx)) return false;
    }
    int64_t most = 0;
    for (int source = 0; source < topo_.world; ++source) {
      const int64_t tokens = last_of(a_, source, round) - first_of(a_, source, round);
      most = tokens > most ? tokens : most;
    }
    deal(coop_, 0, ceil_div(most, kChunk) * topo_.world, [&](long item) {
      const int source = static_cast<int>((topo_.rank + 1 + item % topo_.world) % topo_.world);
      send_chunk(source, round, item / topo_.world * kChunk);
    });
    return true;
  }

  HEDDLE_HD void send_chunk(int source, int round, int64_t first) {
    const int64_t start = first_of(a_, source, round) + first;
    const int64_t end = last_of(a_, source, round);
    const int64_t last = start + kChunk < end ? start + kChunk : end;
    if (start >= last) return;
    for (int64_t i = start; i < last; ++i) send_results({source, round, i});
    const int64_t counter = counter_at(call_, topo_.rank, Awaited::rows);
    port_.flush(coop_, source, counter, results_in(coop_, a_, source, start, last));
    const int parts = combine_pieces(call_).parts;
    if (parts == 0) return;
    for (int64_t i = start; i < last; ++i) {
      const ResultPlace result{source, round, i};
      mark_pieces(coop_, port_, call_, source, round, result.place(a_) * parts, parts);
    }
  }

  HEDDLE_HD void send_results(const ResultPlace& result) {
    if (!is_unreduced(call_.shape)) return send_sum(coop_, port_, a_, result, all_columns(a_));
    const Range range = range_of(call_);
    put_hits(coop_, port_, writer_of(port_.local(), a_, result, all_columns(a_)),
             target_of(call_, range, result.source, result.place(a_) * places_of(call_.shape)), range.stride);
  }

  // --- as the tokens' source ---

  /// A handle of another batch would leave this rank waiting, or summing what is not there. By one worker.
  HEDDLE_HD void check_count(int owner) const {
    if (!is_live(state_, owner) || state_.refused[owner]) return;
    const int last = rounds_of(a_.plan.tokens, tokens_per_round()) - 1;
    const int64_t wanted = results_until(coop_, a_, owner, last);
    if (state_.count[owner] == wanted && state_.rounds[owner] == last + 1) return;
    if (coop_.lane() == 0) claim_mismatch(call_, owner, header_from(port_.local(), call_, owner));
  }

  HEDDLE_HD bool receive_round(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    deal(coop_, 0, topo_.world, [&](long peer) {
      const int owner = static_cast<int>(peer);
      if (round >= state_.rounds[owner] || state_.refused[owner]) return;
      const int64_t rows = results_until(coop_, a_, owner, round);
      if (coop_.lane() == 0) await_rows(port_, call_, owner, rows, deadline);
    });
    if (!settle(coop_, call_.ctx)) return false;
    const Range range = range_of(call_);
    const int64_t first = round * tokens_per_round();
    const int64_t end = first + tokens_per_round();
    deal(coop_, first, end < a_.plan.tokens ? end : a_.plan.tokens, [&](long token) {
      sum_token(coop_, a_, token, token - first, all_columns(a_), range,
                [&](int owner) { return results_from(port_.local(), call_, range, owner); });
    });
    coop_.sync();  // a credit says that all members have read
    deal_lanes(coop_, 0, topo_.world, [&](long owner) {
      if (round < state_.rounds[owner]) give_credit(port_, call_, static_cast<int>(owner));
    });
    coop_.sync();
    return true;
  }

  static constexpr int64_t kChunk = 16;

  const Coop& coop_;
  Port& port_;
  const CombineArgs& a_;
  const Call& call_;
  CallState& state_;
  Topology topo_;
};

template <class Coop, class Port>
HEDDLE_HD bool combine_send(const Coop& coop, Port& port, const CombineArgs& args) {
  return Combine<Coop, Port>(coop, port, args).send();
}

template <class Coop, class Port>
HEDDLE_HD bool combine_headers(const Coop& coop, Port& port, const CombineArgs& args) {
  return Combine<Coop, Port>(coop, port, args).headers();
}

template <class Coop, class Port>
HEDDLE_HD bool combine_receive(const Coop& coop, Port& port, const CombineArgs& args) {
  return Combine<Coop, Port>(coop, port, args).receive();
}

}  // namespace heddle
