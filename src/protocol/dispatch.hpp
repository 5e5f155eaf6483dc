// Dispatch: every token goes once to each rank that owns one of its experts; the receiver expands it (I1-I6).
//   send     lane, header; rows of round 0 unless they wait for offers
//   headers  every source's header; from here on the receiver knows how many rows come and where each will lie
//   receive  offers if any; for each round: send it to all, receive it from all
// send and receive may lie apart; whoever needs exact sizes allocates between headers and receive.
#pragma once

#include <cstdint>

#include "layout/first_row.hpp"
#include "protocol/call.hpp"
#include "protocol/dispatch_args.hpp"
#include "protocol/dispatch_rows.hpp"
#include "protocol/offer.hpp"

namespace heddle {

template <class Coop, class Port>
class Dispatch {
 public:
  HEDDLE_HD Dispatch(const Coop& coop, Port& port, const DispatchArgs& args)
      : coop_(coop), port_(port), a_(args), call_(args.call), state_(*args.call.state), topo_(args.call.ctx.topo) {}

  HEDDLE_HD bool send() {
    if (!open_lane(coop_, port_, call_)) return false;
    deal(coop_, 0, topo_.world, [&](long peer) { send_header(static_cast<int>(peer)); });
    coop_.sync();
    return rows_wait_for_offers() ? true : send_round(0);
  }

  HEDDLE_HD bool headers() {
    if (!read_headers(coop_, port_, call_)) return false;
    if (is_refused()) return true;
    if (is_leader(coop_)) offset_sources();
    coop_.sync();
    if (is_grouped()) lay_out_groups();
    return true;
  }

  HEDDLE_HD bool receive() {
    if (rows_wait_for_offers() && !exchange_offers(coop_, port_, a_)) return false;
    if (is_refused()) {
      if (!discard_rows(coop_, port_, call_)) return false;
      close_call(coop_, call_);
      return true;
    }
    clear_tables();
    const int rounds = most_rounds(call_);
    for (int round = 0; round < rounds; ++round) {
      if ((round > 0 || rows_wait_for_offers()) && !send_round(round)) return false;
      if (!receive_round(round)) return false;
    }
    drop_masked_rows();
    leave_out_dropped();
    close_call(coop_, call_);
    return true;
  }

 private:
  HEDDLE_HD bool is_refused() const { return call_.refusal.is_set(); }
  HEDDLE_HD bool is_grouped() const { return call_.shape.layout != Layout::token_major; }
  HEDDLE_HD bool rows_wait_for_offers() const { return offers_rows(call_.ctx, call_.shape) && !is_refused(); }
  HEDDLE_HD int32_t sends(int peer) const { return is_refused() ? 0 : a_.plan.sends(peer); }
  HEDDLE_HD Range range_to(int peer) const { return range_of(call_, state_.direct_to[peer] != 0); }

  HEDDLE_HD void send_header(int peer) {
    const Range range = range_of(call_);
    const HeaderCounts counts{.count = sends(peer), .slots = range.count, .rounds = rounds_of(sends(peer), range.count),
                              .tokens = is_refused() ? 0 : a_.plan.tokens};
    put_header(coop_, port_, call_, peer, counts, [&](uint32_t* table) { fill_table(table); });
  }

  HEDDLE_HD void fill_table(uint32_t* table) const {
    const int ranks = is_grouped() ? 0 : topo_.world;
    const int32_t* by_expert = is_grouped() ? a_.plan.rows : a_.plan.pairs;
    for (int i = coop_.lane(); i < ranks + topo_.experts; i += coop_.lanes()) {
      const int rank = i < ranks ? i : topo_.owner_of(i - ranks);
      const bool live = is_live(state_, rank);  // a masked owner gets nothing, and everybody must know (I14)
      table[i] = !live ? 0 : static_cast<uint32_t>(i < ranks ? a_.plan.sends(rank) : by_expert[i - ranks]);
    }
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

  HEDDLE_HD int64_t rows_of_round(int peer, int round) const {
    if (!is_live(state_, peer) || round >= state_.rounds_to[peer]) return 0;
    const int64_t slots = range_to(peer).count;
    const int64_t left = sends(peer) - round * slots;
    return left < slots ? left : slots;
  }

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
    for (int64_t place = chunk * kChunk; place < end; ++place) send_row(peer, round, place);
    const int puts = state_.direct_to[peer] != 0 ? 2 : 1;
    port_.flush(coop_, peer, counter_at(call_, topo_.rank, Awaited::rows), (end - chunk * kChunk) * puts);
  }

  HEDDLE_HD void send_row(int peer, int round, int64_t place) {
    const Range range = range_to(peer);
    const int64_t slot_number = round * static_cast<int64_t>(range.count) + place;
    const int token = a_.plan.send_tokens[a_.plan.send_offset[peer] + slot_number];
    const int64_t base = call_.ctx.window.range(Kind::dispatch, state_.lane, topo_.rank);
    const Target target{.peer = peer, .offset = base + range.slot(place)};
    const bool direct = state_.direct_to[peer] != 0;
    const Slot slot = Slot::of(call_.shape, direct);
    std::byte* at = port_.stage(target, range.stride);
    std::byte* payload = at;
    Target row_target;
    if (direct) {
      row_target = direct_target(port_, a_, peer, slot_number, token);
      payload = port_.stage(row_target, call_.shape.payload_bytes);
    }
    const RowWriter writer{.args = a_, .token = token, .slot = slot};
    writer.write(coop_, payload, at);
    coop_.worker_sync();
    const int64_t counter = counter_at(call_, topo_.rank, Awaited::rows);
    if (direct) port_.put(row_target, payload, call_.shape.payload_bytes, counter);
    port_.put(target, at, range.stride, counter);
  }

  // --- where rows will lie ---

  HEDDLE_HD uint32_t table_count(int source, int column) const {
    if (!state_.counted[source]) return 0;
    return table_from(port_.local(), call_, source)[column];
  }

  HEDDLE_HD void offset_sources() const {
    const RouteView& route = a_.route;
    route.recv_offset[0] = 0;
    for (int source = 0; source < topo_.world; ++source) {
      const bool counted = state_.counted[source] != 0;
      route.recv_offset[source + 1] = route.recv_offset[source] + (counted ? state_.count[source] : 0);
      route.source_tokens[source] = counted ? state_.tokens[source] : 0;
    }
    if (is_grouped()) return;
    for (int expert = 0; expert < topo_.num_local(topo_.rank); ++expert) {
      int32_t pairs = 0;
      for (int source = 0; source < topo_.world; ++source) {
        pairs += static_cast<int32_t>(table_count(source, topo_.world + topo_.first_expert(topo_.rank) + expert));
      }
      a_.out.counts[expert] = pairs;
    }
  }

  HEDDLE_HD void lay_out_groups() const {
    const int first = topo_.first_expert(topo_.rank);
    const int local = topo_.num_local(topo_.rank);
    const auto count = [&](int source, int expert) { return static_cast<int64_t>(table_count(source, expert)); };
    deal_lanes(coop_, 0, local, [&](long expert) {
      a_.out.counts[expert] =
          static_cast<int32_t>(group_rows(count, topo_.world, first + static_cast<int>(expert)));
    });
    coop_.sync();
    if (is_leader(coop_)) offset_groups(local);
    coop_.sync();
    deal_lanes(coop_, 0, int64_t{local} * topo_.world, [&](long item) {
      const int expert = static_cast<int>(item / topo_.world);
      const int source = static_cast<int>(item % topo_.world);
      const int64_t before = first_row(count, first + expert, source);
      a_.route.expert_row[item] = static_cast<int32_t>(a_.out.expert_offsets[expert] + before);
      if (a_.out.layout_range == nullptr) return;
      a_.out.layout_range[item] = before << 32 | count(source, first + expert);
    });
    coop_.sync();
  }

  HEDDLE_HD void offset_groups(int local) const {
    const Groups groups = groups_of(call_);
    a_.out.expert_offsets[0] = 0;
    for (int expert = 0; expert < local; ++expert) {
      a_.out.expert_offsets[expert + 1] = groups.next(a_.out.expert_offsets[expert], a_.out.counts[expert]);
    }
  }

  // --- rows in ---

  /// What must not be old memory where no row will lie.
  HEDDLE_HD void clear_tables() const {
    const OutputView& out = a_.out;
    const int64_t topk = call_.shape.topk;
    const int64_t filled = is_grouped() ? 0 : a_.route.recv_offset[topo_.world];
    const int64_t first = filled < out.rows ? filled : out.rows;
    deal_lanes(coop_, first, out.rows, [&](long row) {
      for (int64_t k = 0; k < topk && out.ids != nullptr; ++k) out.ids[row * topk + k] = -1;
      for (int64_t k = 0; k < topk && out.weights != nullptr; ++k) out.weights[row * topk + k] = 0.0f;
      if (out.row_weights != nullptr) out.row_weights[row] = 0.0f;
      if (out.row_source != nullptr) out.row_source[row] = -1;
      if (out.row_token != nullptr) out.row_token[row] = -1;
    });
    if (out.zero_padding) {
      coop_.sync();  // rows are dealt in another way there, and two members must not write one
      zero_gaps(first);
    }
    if (is_leader(coop_) && out.num_dropped != nullptr) *out.num_dropped = num_dropped();
    coop_.sync();
  }

  HEDDLE_HD void zero_gaps(int64_t filled) const {
    const int groups = is_grouped() ? topo_.num_local(topo_.rank) : 0;
    deal(coop_, filled, a_.out.rows, [&](long row) {
      bool gap = true;
      for (int expert = 0; gap && expert < groups; ++expert) {
        const int64_t start = a_.out.expert_offsets[expert];
        gap = row < start || row >= start + a_.out.counts[expert];
      }
      if (!gap) return;
      clear_row(coop_, a_, row);
    });
  }

  HEDDLE_HD int64_t num_dropped() const {
    const int64_t rows = a_.out.rows;
    if (!is_grouped()) {
      const int64_t received = a_.route.recv_offset[topo_.world];
      return received > rows ? received - rows : 0;
    }
    int64_t dropped = 0;
    for (int expert = 0; expert < topo_.num_local(topo_.rank); ++expert) {
      const int64_t start = a_.out.expert_offsets[expert];
      const int64_t end = start + a_.out.counts[expert];
      const int64_t kept_until = start > rows ? start : end < rows ? end : rows;
      dropped += end - kept_until;
    }
    return dropped;
  }

  HEDDLE_HD bool receive_round(int round) {
    const uint64_t deadline = port_.now() + call_.ctx.timeout_ns;
    deal_lanes(coop_, 0, topo_.world, [&](long peer) {
      const int source = static_cast<int>(peer);
      if (round >= state_.rounds[source]) return;
      const int64_t slots = state_.slots[source];
      const int64_t rows = (round + 1) * slots < state_.count[source] ? (round + 1) * slots : state_.count[source];
      await_rows(port_, call_, source, rows * (state_.direct_from[source] != 0 ? 2 : 1), deadline);
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

  HEDDLE_HD void place_round(int source, int round) const {
    if (!is_live(state_, source) || round >= state_.rounds[source]) return;
    const bool direct = state_.direct_from[source] != 0;
    const Range range = range_of(call_, direct);
    const std::byte* base = port_.local() + call_.ctx.window.range(Kind::dispatch, state_.lane, source);
    const int64_t first = round * static_cast<int64_t>(state_.slots[source]);
    const int64_t left = state_.count[source] - first;
    const int64_t rows = left < state_.slots[source] ? left : state_.slots[source];
    deal(coop_, 0, rows, [&](long place) {
      const RowReader reader{.args = a_, .source = source, .at = base + range.slot(place),
                             .slot = Slot::of(call_.shape, direct), .direct = direct};
      reader.place(coop_, a_.route.recv_offset[source] + first + place);
    });
  }

  /// A source that was masked after its header came: its rows are not there, whatever was placed of them.
  HEDDLE_HD void drop_masked_rows() const {
    for (int source = 0; source < topo_.world; ++source) {
      if (is_leader(coop_)) a_.route.status[source] = state_.status[source];
      if (is_live(state_, source) || !state_.counted[source]) continue;
      const int64_t first = a_.route.recv_offset[source];
      deal(coop_, 0, state_.count[source], [&](long i) { drop_row(coop_, a_, first + i); });
      if (is_grouped()) clear_group_rows(source);
      else if (is_leader(coop_)) uncount_pairs(source);
    }
  }

  /// Its places in the groups stay, empty.
  HEDDLE_HD void clear_group_rows(int source) const {
    for (int expert = 0; expert < topo_.num_local(topo_.rank); ++expert) {
      const int64_t start = a_.route.expert_row[expert * topo_.world + source];
      const int64_t end = start + table_count(source, topo_.first_expert(topo_.rank) + expert);
      deal(coop_, start, end < a_.out.rows ? end : a_.out.rows, [&](long row) { clear_row(coop_, a_, row); });
    }
  }

  HEDDLE_HD void uncount_pairs(int source) const {
    for (int expert = 0; expert < topo_.num_local(topo_.rank); ++expert) {
      a_.out.counts[expert] -=
          static_cast<int32_t>(table_count(source, topo_.world + topo_.first_expert(topo_.rank) + expert));
    }
  }

  /// Counts and groups speak of the rows that are there: whoever reads the output by them stays inside it.
  HEDDLE_HD void leave_out_dropped() const {
    coop_.sync();
    if (!is_leader(coop_) || num_dropped() == 0) return;
    const int64_t topk = call_.shape.topk;
    const int64_t known = is_grouped() ? 0 : a_.route.recv_offset[topo_.world];
    const int64_t received = known < a_.route.capacity ? known : a_.route.capacity;
    for (int64_t i = a_.out.rows * topk; i < received * topk; ++i) {
      if (a_.route.recv_ids[i] >= 0) --a_.out.counts[a_.route.recv_ids[i]];
    }
    if (!is_grouped()) return;
    for (int expert = topo_.num_local(topo_.rank); expert >= 0; --expert) {
      int64_t& start = a_.out.expert_offsets[expert];
      const int64_t left = a_.out.rows > start ? a_.out.rows - start : 0;
      if (expert < topo_.num_local(topo_.rank) && a_.out.counts[expert] > left) {
        a_.out.counts[expert] = static_cast<int32_t>(left);
      }
      if (start > a_.out.rows) start = a_.out.rows;
    }
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
