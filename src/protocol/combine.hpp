// Combine: every owner sends each token's result back to the token's source, which sums them over ranks ascending (I3, I8).
//   send     lane, header (with late weights in its table); results of round 0 unless they wait for late weights
//   headers  every owner's header
//   receive  for each round: send it to all, receive it from all
// A round is a window of the SOURCE's tokens, so that all ranks' results for a token are there in the same round and the sum
// needs no store in FP32 between rounds; a result lies at the token's place in the window.
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/combine_rows.hpp"

namespace heddle {

/// The first of `count` ascending tokens that is not below `token`.
HEDDLE_HD inline int64_t lower_bound(const int32_t* tokens, int64_t count, int64_t token) {
  int64_t low = 0;
  while (low < count) {
    const int64_t middle = (low + count) / 2;
    if (tokens[middle] < token) low = middle + 1;
    else count = middle;
  }
  return low;
}

/// Places of a window that one token takes.
HEDDLE_HD inline int places_of(const Shape& shape) {
  return shape.weights == Weights::at_source ? (shape.topk > 1 ? shape.topk : 1) : 1;
}

/// Tokens of one round.
HEDDLE_HD inline int window_tokens(const Call& call) { return range_of(call).count / places_of(call.shape); }

template <class Coop, class Port>
class Combine {
 public:
  HEDDLE_HD Combine(const Coop& coop, Port& port, const CombineArgs& args)
      : coop_(coop), port_(port), a_(args), call_(args.call), state_(*args.call.state), topo_(args.call.ctx.topo) {}

  HEDDLE_HD bool send() {
    if (!open_lane(coop_, port_, call_)) return false;
    deal(coop_, 0, topo_.world, [&](long peer) { send_header(static_cast<int>(peer)); });
    coop_.sync();
    return is_refused() || rows_wait_for_weights() ? true : send_round(0);
  }

  HEDDLE_HD bool headers() {
    if (!read_headers(coop_, port_, call_)) return false;
    if (is_refused()) return true;
    deal_lanes(coop_, 0, topo_.world, [&](long owner) { check_count(static_cast<int>(owner)); });
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
  HEDDLE_HD bool is_unreduced() const { return call_.shape.weights == Weights::at_source; }
  HEDDLE_HD bool rows_wait_for_weights() const { return call_.shape.weights == Weights::late && !is_refused(); }
  HEDDLE_HD int64_t tokens_per_round() const { return window_tokens(call_); }

  // --- as an owner ---

  HEDDLE_HD int64_t received_from(int source) const {
    return a_.route.recv_offset[source + 1] - a_.route.recv_offset[source];
  }

  HEDDLE_HD void send_header(int source) {
    HeaderCounts counts{.slots = static_cast<int32_t>(tokens_per_round())};
    if (!is_refused()) {
      counts.count = static_cast<int32_t>(results_in(source, 0, received_from(source)));
      counts.rounds = rounds_of(a_.route.source_tokens[source], tokens_per_round());
      counts.tokens = a_.plan.tokens;
    }
    put_header(coop_, port_, call_, source, counts, [&](uint32_t* table) {
      if (call_.shape.weights == Weights::late) fill_late_weights(source, reinterpret_cast<float*>(table));
    });
  }

  HEDDLE_HD void fill_late_weights(int owner, float* table) const {
    const int64_t topk = call_.shape.topk;
    const int32_t* tokens = a_.plan.send_tokens + a_.plan.send_offset[owner];
    for (int64_t i = coop_.lane(); i < a_.plan.sends(owner) * topk; i += coop_.lanes()) {
      table[i] = a_.out.weights_in[tokens[i / topk] * topk + i % topk];
    }
  }

  /// Rows on the wire for the source's received tokens [first, last), numbers within the source.
  HEDDLE_HD int64_t results_in(int source, int64_t first, int64_t last) const {
    if (!is_unreduced()) return last - first;
    const int64_t topk = call_.shape.topk;
    const int32_t* row_of = a_.route.row_of + a_.route.recv_offset[source] * topk;
    int64_t hits = 0;
    for (int64_t i = first * topk; i < last * topk; ++i) hits += row_of[i] != -1;
    return hits;
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
      const int64_t tokens = last_of(source, round) - first_of(source, round);
      most = tokens > most ? tokens : most;
    }
    deal(coop_, 0, ceil_div(most, kChunk) * topo_.world, [&](long item) {
      const int source = static_cast<int>((topo_.rank + 1 + item % topo_.world) % topo_.world);
      send_chunk(source, round, item / topo_.world * kChunk);
    });
    return true;
  }

  /// Received tokens of the source that belong to the round: numbers [first_of, last_of) within the source.
  HEDDLE_HD int64_t first_of(int source, int round) const {
    if (!is_live(state_, source) || round >= state_.rounds_to[source]) return 0;
    const int32_t* tokens = a_.route.recv_token + a_.route.recv_offset[source];
    return lower_bound(tokens, received_from(source), round * tokens_per_round());
  }
  HEDDLE_HD int64_t last_of(int source, int round) const {
    if (!is_live(state_, source) || round >= state_.rounds_to[source]) return 0;
    const int32_t* tokens = a_.route.recv_token + a_.route.recv_offset[source];
    return lower_bound(tokens, received_from(source), (round + 1) * tokens_per_round());
  }

  HEDDLE_HD void send_chunk(int source, int round, int64_t first) {
    const int64_t start = first_of(source, round) + first;
    const int64_t end = last_of(source, round);
    const int64_t last = start + kChunk < end ? start + kChunk : end;
    if (start >= last) return;
    for (int64_t i = start; i < last; ++i) send_results(source, round, i);
    const int64_t counter = counter_at(call_, topo_.rank, Awaited::rows);
    port_.flush(coop_, source, counter, results_in(source, start, last));
  }

  HEDDLE_HD void send_results(int source, int round, int64_t number) {
    const int64_t i = a_.route.recv_offset[source] + number;
    const int64_t place = a_.route.recv_token[i] - round * tokens_per_round();
    const float* late = nullptr;
    if (call_.shape.weights == Weights::late) {
      late = reinterpret_cast<const float*>(table_from(port_.local(), call_, source)) + number * call_.shape.topk;
    }
    const ResultWriter writer{.args = a_, .i = i, .late = late};
    if (!is_unreduced()) {
      put_result(source, place, [&](std::byte* at) { writer.write_sum(coop_, at); }, writer);
      return;
    }
    for (int k = 0; k < call_.shape.topk; ++k) {
      if (writer.row_of(k) == -1) continue;
      put_result(source, place * call_.shape.topk + k, [&](std::byte* at) { writer.write_hit(coop_, at, k); }, writer);
    }
  }

  template <class Write>
  HEDDLE_HD void put_result(int source, int64_t place, const Write& write, const ResultWriter& writer) {
    const Range range = range_of(call_);
    const int64_t base = call_.ctx.window.range(Kind::combine, state_.lane, topo_.rank);
    const Target target{.peer = source, .offset = base + range.slot(place)};
    std::byte* at = port_.stage(target, range.stride);
    write(at);
    if (call_.shape.row_weights) {
      writer.write_weights(coop_, reinterpret_cast<float*>(at + Slot::of(call_.shape).weights));
    }
    coop_.worker_sync();
    port_.put(target, at, range.stride, counter_at(call_, topo_.rank, Awaited::rows));
  }

  // --- as the tokens' source ---

  /// Results that the owner will have sent once rounds [0, round] are over.
  HEDDLE_HD int64_t results_until(int owner, int round) const {
    const int64_t end = (round + 1) * tokens_per_round();
    const int32_t* tokens = a_.plan.send_tokens + a_.plan.send_offset[owner];
    if (!is_unreduced()) return lower_bound(tokens, a_.plan.sends(owner), end);
    const int64_t topk = call_.shape.topk;
    const int64_t pairs = (end < a_.plan.tokens ? end : a_.plan.tokens) * topk;
    int64_t hits = 0;
    for (int64_t i = 0; i < pairs; ++i) {
      hits += a_.plan.ordinals[i] >= 0 && topo_.owner_of(a_.plan.ids[i]) == owner;
    }
    return hits;
  }

  /// A handle of another batch would leave this rank waiting, or summing what is not there.
  HEDDLE_HD void check_count(int owner) const {
    if (!is_live(state_, owner) || state_.refused[owner]) return;
    const int last = rounds_of(a_.plan.tokens, tokens_per_round()) - 1;
    if (state_.count[owner] == results_until(owner, last) && state_.rounds[owner] == last + 1) return;
    claim_mismatch(call_, owner, header_from(port_.local(), call_, owner));
  }

  HEDDLE_HD bool receive_round(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    deal_lanes(coop_, 0, topo_.world, [&](long peer) {
      const int owner = static_cast<int>(peer);
      if (round >= state_.rounds[owner] || state_.refused[owner]) return;
      await_rows(port_, call_, owner, results_until(owner, round), deadline);
    });
    if (!settle(coop_, call_.ctx)) return false;
    const int64_t first = round * tokens_per_round();
    const int64_t end = first + tokens_per_round();
    deal(coop_, first, end < a_.plan.tokens ? end : a_.plan.tokens, [&](long token) { sum_token(token, round); });
    coop_.sync();  // a credit says that all members have read
    deal_lanes(coop_, 0, topo_.world, [&](long owner) {
      if (round < state_.rounds[owner]) give_credit(port_, call_, static_cast<int>(owner));
    });
    coop_.sync();
    return true;
  }

  HEDDLE_HD void sum_token(int64_t token, int round) const {
    const Range range = range_of(call_);
    const int64_t in_window = token - round * tokens_per_round();
    const auto place_of = [&](int owner, int k) -> const std::byte* {
      if (!is_live(state_, owner) || state_.refused[owner]) return nullptr;
      const int64_t place = in_window * places_of(call_.shape) + (is_unreduced() ? k : 0);
      return port_.local() + call_.ctx.window.range(Kind::combine, state_.lane, owner) + range.slot(place);
    };
    const ResultReader reader{.args = a_, .token = token};
    if (is_unreduced()) reader.sum_hits(coop_, place_of);
    else reader.sum_ranks(coop_, place_of);
    if (call_.shape.row_weights) reader.gather_weights(coop_, place_of);
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
