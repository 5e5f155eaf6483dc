// Which results a round of a combine moves, and each of them from where to where. A round is a window of the SOURCE's
// tokens, so that all ranks' results for a token are there in the same round and the sum needs no store in FP32 between
// rounds; a result lies at the token's place in the window. A pump (Combine's plain loops, or a fast twin) decides only
// who moves what, and when it is announced:
//   out  the results of received tokens [first_of, last_of) of each live source; after the lane's credits, and after
//        the headers where weights come with them
//   in   the sum of every token of this rank's window, once the results of all its live owners are announced
#pragma once

#include <cstdint>

#include "protocol/call.hpp"
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

HEDDLE_HD inline Columns all_columns(const CombineArgs& args) { return {0, args.hidden}; }

/// Columns of one part, of a row on the wire.
HEDDLE_HD inline Columns columns_of(const CombineArgs& args, const Pieces& pieces, int part) {
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

HEDDLE_HD inline ResultWriter writer_of(const std::byte* window, const CombineArgs& args, const ResultPlace& result,
                                        const Columns& columns) {
  const float* late = nullptr;
  if (args.call.shape.weights == Weights::late) {
    late = reinterpret_cast<const float*>(table_from(window, args.call, result.source)) +
           result.number * args.call.shape.topk;
  }
  return {.args = args, .i = result.row(args), .late = late, .columns = columns};
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

/// A token of this rank, at `in_window` of the round: the sum over all owners, or some of its columns. `from(owner)` is
/// results_from().
template <class Coop, class From>
HEDDLE_HD void sum_token(const Coop& coop, const CombineArgs& args, int64_t token, int64_t in_window,
                         const Columns& columns, const Range& range, const From& from) {
  const Call& call = args.call;
  const bool unreduced = is_unreduced(call.shape);
  const auto place_of = [&](int owner, int k) -> const std::byte* {
    const std::byte* results = from(owner);
    const int64_t place = in_window * places_of(call.shape) + (unreduced ? k : 0);
    return results == nullptr ? nullptr : results + place * range.stride;
  };
  const ResultReader reader{.args = args, .token = token, .columns = columns};
  if (unreduced) reader.sum_hits(coop, place_of);
  else reader.sum_ranks(coop, place_of);
  if (call.shape.row_weights && columns.first == 0) reader.gather_weights(coop, place_of);
}

}  // namespace heddle
