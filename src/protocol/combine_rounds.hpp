// Which results a round of a combine moves, and each of them from where to where. A round is a window of the SOURCE's
// tokens, so that all ranks' results for a token are there in the same round and the sum needs no store in FP32 between
// rounds; a result lies at the token's place in the window. A pump (Combine's plain loops, or a fast twin) decides only
// who moves what, and when it is announced:
//   out  the results of received tokens [first_of, last_of) of each live source; after the lane's credits, and after
//        the headers where weights come with them
//   in   the sum of every token of this rank's window, once the results of all its live owners are announced
#pragma once

#include <cstdint>

#include "device/told.hpp"
#include "protocol/call.hpp"
#include "protocol/call_header.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/combine_rows.hpp"
#include "protocol/pieces.hpp"

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

HEDDLE_HD inline bool is_unreduced(const Shape& shape) { return shape.weights == Weights::at_source; }

/// Places of a window that one token takes.
HEDDLE_HD inline int places_of(const Shape& shape) {
  return is_unreduced(shape) ? (shape.topk > 1 ? shape.topk : 1) : 1;
}

/// Tokens of one round.
HEDDLE_HD inline int window_tokens(const Call& call) { return range_of(call).count / places_of(call.shape); }

/// Pieces of a combine: halves, of at least 2 KiB, of all that a token's owner has for it. A packed row is whole.
HEDDLE_HD inline Pieces combine_pieces(const Call& call) {
  const int64_t parts = is_packed(call.shape.result_wire) ? 1 : call.shape.payload_bytes / 2048;
  const int wanted = static_cast<int>(parts < 1 ? 1 : parts > 2 ? 2 : parts);
  return Pieces::of(call, window_tokens(call), wanted);
}

HEDDLE_HD inline int64_t received_from(const CombineArgs& args, int source) {
  return args.route.recv_offset[source + 1] - args.route.recv_offset[source];
}

/// Received tokens of the source that belong to the round: numbers [first_of, last_of) within the source.
HEDDLE_HD inline int64_t first_of(const CombineArgs& args, int source, int round) {
  if (!is_live(*args.call.state, source) || round >= args.call.state->rounds_to[source]) return 0;
  const int32_t* tokens = args.route.recv_token + args.route.recv_offset[source];
  return lower_bound(tokens, received_from(args, source), int64_t{round} * window_tokens(args.call));
}
HEDDLE_HD inline int64_t last_of(const CombineArgs& args, int source, int round) {
  if (!is_live(*args.call.state, source) || round >= args.call.state->rounds_to[source]) return 0;
  const int32_t* tokens = args.route.recv_token + args.route.recv_offset[source];
  return lower_bound(tokens, received_from(args, source), (round + int64_t{1}) * window_tokens(args.call));
}

/// Rows on the wire for the source's received tokens [first, last), numbers within the source. By the lanes of one worker.
template <class Coop>
HEDDLE_HD int64_t results_in(const Coop& coop, const CombineArgs& args, int source, int64_t first, int64_t last) {
  if (!is_unreduced(args.call.shape)) return last - first;
  const int64_t topk = args.call.shape.topk;
  const int32_t* row_of = args.route.row_of + (args.route.recv_offset[source] + first) * topk;
  return sum_by_lanes(coop, (last - first) * topk, [&](int64_t i) { return row_of[i] != -1; });
}

/// Results that the owner will have sent once rounds [0, round] are over. By the lanes of one worker.
template <class Coop>
HEDDLE_HD int64_t results_until(const Coop& coop, const CombineArgs& args, int owner, int round) {
  const PlanView& plan = args.plan;
  const Topology& topo = args.call.ctx.topo;
  const int64_t end = (round + int64_t{1}) * window_tokens(args.call);
  if (!is_unreduced(args.call.shape)) return lower_bound(plan.send_tokens + plan.send_offset[owner], plan.sends(owner), end);
  if (end >= plan.tokens) {
    const int32_t* rows = plan.rows + topo.first_expert(owner);
    return sum_by_lanes(coop, topo.num_local(owner), [&](int64_t i) { return rows[i]; });
  }
  return sum_by_lanes(coop, end * args.call.shape.topk, [&](int64_t i) {
    return plan.ordinals[i] >= 0 && topo.owner_of(plan.ids[i]) == owner;
  });
}

/// By one lane of `step` together: its share of the weights of the tokens that were sent to an owner. `table` is the header's.
HEDDLE_HD inline void fill_late_weights(const CombineArgs& args, int owner, float* table, int64_t first, int64_t step) {
  constexpr int kAhead = 8;  // loads that are waited for together
  const auto topk = static_cast<uint32_t>(args.call.shape.topk);
  const int32_t* tokens = args.plan.send_tokens + args.plan.send_offset[owner];
  const int64_t end = args.plan.sends(owner) * int64_t{topk};
  for (int64_t at = first; at < end; at += kAhead * step) {
    float weights[kAhead];
    for (int i = 0; i < kAhead; ++i) {
      const auto pair = static_cast<uint32_t>(at + i * step < end ? at + i * step : at);
      weights[i] = args.out.weights_in[int64_t{tokens[pair / topk]} * topk + pair % topk];
    }
    for (int i = 0; i < kAhead; ++i) {
      if (at + i * step < end) table[at + i * step] = weights[i];
    }
  }
}

HEDDLE_HD inline Columns all_columns(const CombineArgs& args) { return {0, args.hidden}; }

/// Columns of one part, of a row on the wire.
HEDDLE_HD inline Columns columns_of(const CombineArgs& args, const Pieces& pieces, int part) {
  if (is_packed(args.call.shape.result_wire)) return all_columns(args);
  const int64_t size = static_cast<int64_t>(size_of(args.call.shape.wire));
  const int64_t first = part * pieces.part_bytes / size;
  const int64_t left = args.hidden - first;
  const int64_t whole = pieces.part_bytes / size;
  return {first, left < whole ? left : whole};
}

/// A result on its way: of the `number`-th token received from `source`, at `place` of the round.
struct ResultPlace {
  int source;
  int round;
  int64_t number;

  HEDDLE_HD int64_t row(const CombineArgs& args) const { return args.route.recv_offset[source] + number; }
  HEDDLE_HD int64_t place(const CombineArgs& args) const {
    return args.route.recv_token[row(args)] - int64_t{round} * window_tokens(args.call);
  }
};

/// The source's late weights for its `number`-th token here; null if there are none.
HEDDLE_HD inline const float* late_weights(const std::byte* window, const Call& call, int source, int64_t number) {
  if (call.shape.weights != Weights::late) return nullptr;
  return reinterpret_cast<const float*>(table_from(window, call, source)) + number * call.shape.topk;
}

HEDDLE_HD inline ResultWriter writer_of(const std::byte* window, const CombineArgs& args, const ResultPlace& result,
                                        const Columns& columns) {
  return {.args = args, .i = result.row(args), .late = late_weights(window, args.call, result.source, result.number),
          .columns = columns};
}

/// Builds one row at an offset of the source's window; nothing is announced.
template <class Coop, class Port, class Write>
HEDDLE_HD void put_result(const Coop& coop, Port& port, const ResultWriter& writer, const Target& target,
                          int64_t stride, const Write& write) {
  const Call& call = writer.args.call;
  std::byte* at = port.stage(target, stride);
  write(at);
  if (call.shape.row_weights && writer.columns.first == 0) {
    writer.write_weights(coop, reinterpret_cast<float*>(at + Slot::of(call.shape).weights));
  }
  coop.worker_sync();
  port.put(target, at, stride, counter_of_puts(port, call));
}

/// Each of the result's hits alone, k columns behind the first one's place: how many there were.
template <class Coop, class Port>
HEDDLE_HD int put_hits(const Coop& coop, Port& port, const ResultWriter& writer, const Target& first, int64_t stride) {
  const auto rows = told_by_lanes<int32_t, kMaxTopk>(coop, writer.topk(), [&](int k) { return writer.row_of(k); });
  int count = 0;
  for (int k = 0; k < writer.topk(); ++k) {
    const int32_t row = rows[k];
    if (row == -1) continue;
    ++count;
    const Target target{.peer = first.peer, .segment = first.segment, .offset = first.offset + k * stride};
    put_result(coop, port, writer, target, stride, [&](std::byte* at) { writer.write_hit(coop, at, row); });
  }
  return count;
}

/// Where this rank's result for a place of the round lies at the source.
HEDDLE_HD inline Target target_of(const Call& call, const Range& range, int source, int64_t place) {
  const int64_t base = call.ctx.window.range(Kind::combine, call.state->lane, call.ctx.topo.rank);
  return {.peer = source, .offset = base + range.slot(place)};
}

/// The result's sum over this rank's hits, or some of its columns.
template <class Coop, class Port>
HEDDLE_HD void send_sum(const Coop& coop, Port& port, const CombineArgs& args, const ResultPlace& result,
                        const Columns& columns) {
  const ResultWriter writer = writer_of(port.local(), args, result, columns);
  const Range range = range_of(args.call);
  put_result(coop, port, writer, target_of(args.call, range, result.source, result.place(args)), range.stride,
             [&](std::byte* at) { writer.write_sum(coop, at); });
}

/// Where an owner's results begin in this rank's window; null if it has none.
HEDDLE_HD inline const std::byte* results_from(const std::byte* window, const Call& call, const Range& range,
                                               int owner) {
  if (!is_live(*call.state, owner) || call.state->refused[owner]) return nullptr;
  return window + call.ctx.window.range(Kind::combine, call.state->lane, owner) + range.slots;
}

/// Whether this rank's results for its own tokens are summed where the experts left them, so that no window need hold them:
/// token-major rows, which are copied as they are. Not where one is dropped and counts as zeros.
HEDDLE_HD inline bool own_results_stay(const CombineArgs& args) {
  return args.layout == Layout::token_major && !args.call.shape.row_weights && !is_unreduced(args.call.shape) &&
         args.experts.dtype == args.call.shape.wire && args.route.recv_offset[args.call.ctx.topo.world] <= args.experts.rows;
}

/// The same of packed results, which any pump's lanes can sum beside the experts' rows.
HEDDLE_HD inline bool own_hits_stay(const CombineArgs& args) {
  const Shape& shape = args.call.shape;
  const Topology& topo = args.call.ctx.topo;
  return is_packed(shape.result_wire) && !shape.row_weights && !is_unreduced(shape) && topo.world + shape.topk <= kMostTerms &&
         (args.layout != Layout::token_major || args.route.recv_offset[topo.world] <= args.experts.rows);
}

/// The number of one of this rank's tokens among those that its own dispatch brought it; -1: none of its experts is here.
HEDDLE_HD inline int64_t own_number(const CombineArgs& args, int64_t token) {
  const Topology& topo = args.call.ctx.topo;
  if (args.plan.in_rank[token * topo.world + topo.rank] == 0) return -1;
  const int32_t* tokens = args.route.recv_token + args.route.recv_offset[topo.rank];
  const int64_t count = received_from(args, topo.rank);
  const int64_t missing = args.plan.tokens - count;  // so many at most are left out before it
  const int64_t first = token > missing ? token - missing : 0;
  const int64_t end = token < count ? token + 1 : count;
  const int64_t number = first + lower_bound(tokens + first, end - first, token);
  return number < count && tokens[number] == token ? number : -1;
}

/// A token of this rank, at `in_window` of the round: the sum over all owners, or some of its columns. `from(owner)` is
/// results_from(); `own` this rank's own row for it, if that lies in no window.
template <class Coop, class From>
HEDDLE_HD void sum_token(const Coop& coop, const CombineArgs& args, int64_t token, int64_t in_window,
                         const Columns& columns, const Range& range, const From& from, const std::byte* own = nullptr) {
  const Call& call = args.call;
  const bool unreduced = is_unreduced(call.shape);
  const auto place_of = [&](int owner, int k) -> const std::byte* {
    if (own != nullptr && owner == call.ctx.topo.rank) return own;
    const std::byte* results = from(owner);
    const int64_t place = in_window * places_of(call.shape) + (unreduced ? k : 0);
    return results == nullptr ? nullptr : results + place * range.stride;
  };
  const ResultReader reader{.args = args, .token = token, .columns = columns};
  if (unreduced) reader.sum_hits(coop, place_of);
  else reader.sum_ranks(coop, place_of);
  if (call.shape.row_weights && columns.first == 0) reader.gather_weights(coop, place_of);
}

/// The same where own_hits_stay(): `own` is the token's number among those that this rank's dispatch brought it.
template <class Coop, class From>
HEDDLE_HD void sum_token_beside_own(const Coop& coop, const std::byte* window, const CombineArgs& args, int64_t token,
                                    int64_t in_window, const Range& range, const From& from, int64_t own) {
  const int rank = args.call.ctx.topo.rank;
  const ResultPlace result{.source = rank, .round = 0, .number = own};
  const ResultWriter writer = writer_of(window, args, result, all_columns(args));
  const bool is_row = args.layout == Layout::token_major;
  const ResultReader reader{.args = args, .token = token, .columns = all_columns(args)};
  const auto place_of = [&](int owner, int) -> const std::byte* {
    const std::byte* results = from(owner);
    return results == nullptr ? nullptr : results + in_window * range.stride;
  };
  reader.sum_beside_own(coop, place_of, is_row ? 1 : args.call.shape.topk, [&](int k) -> Term {
    return is_row ? Term{.row = args.experts.x + writer.i * args.experts.x_stride, .weight = 1.0f} : writer.term(k);
  });
}

}  // namespace heddle
