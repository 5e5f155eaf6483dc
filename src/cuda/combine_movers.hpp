// How a worker of the combine pump makes a sum: an owner's result, out to the token's source, or a token's result here. It notes
// one, then advances: whatever is left of the sum before, and of this one what need not wait. `post(peer, tag)` announces a
// piece. Two ways:
//   CombineLanes  the lanes load the rows when they sum them; for any row, piece by piece
//   CombineBelt   bulk copies bring parts of all rows of a sum to block memory, while the lanes sum those of the one before;
//                 for aligned rows of bf16
#pragma once

#include <cstdint>

#include "cuda/pump.hpp"
#include "cuda/row_belt.hpp"
#include "cuda/sum_ride.hpp"
#include "protocol/combine.hpp"

namespace heddle {

/// In the memory of a block. Beside the pump's, what would take many registers. A belt's lists and stages lie behind it.
template <class Port>
struct alignas(kBeltAlign) CombineBoard {
  PumpBoard pump;
  NearArgs<CombineArgs, Port> near;
  Pieces pieces;
  Range range;
  int64_t tokens;  // of a round

  HEDDLE_HD void note(const Call& call) {
    pieces = combine_pieces(call);
    range = range_of(call);
    tokens = window_tokens(call);
  }
};

/// A result on its way out.
struct OutResult {
  int source;
  int64_t number;  // of the tokens received from it
  int64_t row;     // of all received tokens
  int64_t place;   // in the round
  int part;
};

/// A token's result here.
struct InResult {
  int64_t token;
  int64_t place;  // in the round
  int part;
  int64_t own;  // the number of this rank's own row or rows for it, where they stay with the experts; -1: none
};

/// A part of each of a result's hits. Apart: it needs other registers than a sum. Arguments by value, as they then need not lie in
/// memory.
template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void put_hits_apart(const Coop& coop, Port& port, ResultWriter writer, Target first,
                                           int64_t stride, PumpState* state) {
  const int count = put_hits(coop, port, writer, first, stride);
  if (coop.lane() == 0 && writer.columns.first == 0) take_number(&state->hits[first.peer], static_cast<uint64_t>(count));
}

/// Apart, as packed results are rare; from the block's board only, as a pump whose address is told would lie in memory.
template <class Coop, class Port>
HEDDLE_HD HEDDLE_APART void sum_beside_own_apart(const Coop& coop, CombineBoard<Port>* board, InResult result) {
  const std::byte* window = board->near.port().local();
  const auto from = [&](int owner) -> const std::byte* {
    const int64_t base = board->pump.in[owner].base;
    return base < 0 ? nullptr : window + base;
  };
  sum_token_beside_own(coop, window, board->near.args(), result.token, result.place, board->range, from, result.own);
}

template <class Coop, class Port>
class CombineLanes {
 public:
  HEDDLE_HD CombineLanes(const Coop& coop, Port& port, const CombineArgs& args, CombineBoard<Port>* board,
                         PumpState* state, int, int)
      : coop_(coop), port_(port), a_(args), board_(board), state_(state) {}

  HEDDLE_HD static int items_of_row(const Pieces& pieces) { return pieces.parts; }
  HEDDLE_HD static bool own_stay(const CombineArgs& args) { return own_results_stay(args) || own_hits_stay(args); }

  HEDDLE_HD void open() {}
  HEDDLE_HD bool is_sound() const { return true; }

  HEDDLE_HD void note_out(const OutResult& result, int64_t base) {
    peer_ = result.source;
    tag_ = result.place * board_->pieces.parts + result.part;
    const int64_t stride = board_->range.stride;
    const int64_t place = result.place * places_of(a_.call.shape);
    const Target target{.peer = result.source, .offset = base + board_->range.slot(place)};
    if (is_unreduced(a_.call.shape)) {
      const CombineArgs& args = board_->near.args();
      const ResultWriter writer{.args = args, .i = result.row, .late = nullptr, .columns = columns_of(args, board_->pieces, result.part)};
      return put_hits_apart(coop_, board_->near.port(), writer, target, stride, state_);
    }
    const ResultWriter writer{.args = a_,
                              .i = result.row,
                              .late = late_weights(port_.local(), a_.call, result.source, result.number),
                              .columns = columns_of(a_, board_->pieces, result.part)};
    put_result(coop_, port_, writer, target, stride, [&](std::byte* at) { writer.write_sum(coop_, at); });
  }

  /// `from(owner)`: where its results begin, or null.
  template <class From>
  HEDDLE_HD void note_in(const InResult& result, const From& from) {
    if (result.own >= 0 && is_packed(a_.call.shape.result_wire)) {
      return sum_beside_own_apart(coop_, board_, result);
    }
    const std::byte* own =
        result.own < 0 ? nullptr
                       : a_.experts.x + (board_->pump.out[a_.call.ctx.topo.rank].base + result.own) * a_.experts.x_stride;
    sum_token(coop_, a_, result.token, result.place, columns_of(a_, board_->pieces, result.part), board_->range, from, own);
  }

  template <class Post>
  HEDDLE_HD void advance(bool, const Post& post) {
    if (peer_ >= 0) post(peer_, tag_);
    peer_ = -1;
  }

 private:
  const Coop& coop_;
  Port& port_;
  const CombineArgs& a_;
  CombineBoard<Port>* board_;
  PumpState* state_;
  int peer_ = -1;  // whose piece is to be announced
  int64_t tag_ = 0;
};

/// Whether all rows and results may go by belts. For the host.
HEDDLE_HD inline bool can_ride(const CombineArgs& args) {
  const Shape& shape = args.call.shape;
  const bool is_bf16 = shape.wire == DType::bf16 && shape.dtype == DType::bf16 && args.experts.dtype == DType::bf16;
  const int own = args.layout == Layout::token_major ? 1 : shape.topk;
  return is_bf16 && !shape.row_weights && !is_unreduced(shape) && args.hidden > 0 && args.hidden % 8 == 0 &&
         kMostBiases + args.call.ctx.topo.world + own <= kMostStagedRows && shape.topk <= kMostStagedRows &&
         is_bulk(args.experts.x_stride) && is_bulk(args.experts.x) && is_bulk(args.out.x_stride) && is_bulk(args.out.x) &&
         is_bulk(args.out.bias[0]) && is_bulk(args.out.bias[1]);
}

template <class Coop, class Port>
class CombineBelt {
 public:
  HEDDLE_HD CombineBelt(const Coop& coop, Port& port, const CombineArgs& args, CombineBoard<Port>* board, PumpState*,
                        int worker, int workers)
      : coop_(coop), port_(port), a_(args), board_(board),
        belt_(coop, port, args.call, reinterpret_cast<std::byte*>(board + 1), int64_t{2} * args.hidden, worker, workers) {}

  HEDDLE_HD static int items_of_row(const Pieces&) { return 1; }
  /// Grouped rows are summed as they would be for another rank.
  HEDDLE_HD static bool own_stay(const CombineArgs& args) {
    return args.layout != Layout::token_major || own_results_stay(args);
  }

  HEDDLE_HD void open() {
    belt_.open();
    bulk::fence_device();  // a kernel that still runs may have stored rows and signalled them
  }
  HEDDLE_HD bool is_sound() const { return belt_.is_sound(); }

  HEDDLE_HD void note_out(const OutResult& result, int64_t base) {
    TermList<Coop> rows(coop_, belt_.next_rows());
    gather_hits(rows, result.source, result.number, result.row);
    const Target target{.peer = result.source, .offset = base + board_->range.slot(result.place)};
    belt_.note({.out = port_.stage(target, board_->range.stride),
                .tag = result.place * board_->pieces.parts,
                .peer = result.source,
                .rows = rows.count(),
                .come = rows.count(),
                .biases = a_.layout == Layout::token_major ? rows.count() : 0});  // the row as it is
  }

  template <class From>
  HEDDLE_HD void note_in(const InResult& result, const From& from) {
    TermList<Coop> rows(coop_, belt_.next_rows());
    SumRide ride{.out = a_.out.x + result.token * a_.out.x_stride};
    for (const std::byte* bias : a_.out.bias) {
      if (bias != nullptr) rows.add({.row = bias + result.token * row_bytes(), .weight = 1.0f});
    }
    ride.biases = rows.count();
    int zeros = 0;
    const int rank = a_.call.ctx.topo.rank;
    gather_ranks(rows, result, from, 0, result.own < 0 ? rank + 1 : rank);
    if (result.own >= 0) {
      const int first = rows.count();
      gather_hits(rows, rank, result.own, board_->pump.out[rank].base + result.own);
      zeros = rows.count() == first ? 1 : 0;  // all were dropped
      if (zeros > 0) rows.add({});
      if (a_.layout != Layout::token_major) {
        ride.own = first;
        ride.own_end = rows.count();
      }
    }
    gather_ranks(rows, result, from, rank + 1, a_.call.ctx.topo.world);
    ride.rows = rows.count();
    ride.come = rows.count() - zeros;
    bulk::fence_device();  // some were stored by peers
    belt_.note(ride);
  }

  template <class Post>
  HEDDLE_HD void advance(bool has_next, const Post& post) {
    belt_.advance(has_next, board_->pieces, post);
  }

 private:
  HEDDLE_HD int64_t row_bytes() const { return int64_t{2} * a_.hidden; }

  /// The number-th token from `source`, the row-th of all received.
  HEDDLE_HD void gather_hits(TermList<Coop>& terms, int source, int64_t number, int64_t row) const {
    if (a_.layout == Layout::token_major) {
      if (row < a_.experts.rows) terms.add({.row = a_.experts.x + row * a_.experts.x_stride, .weight = 1.0f});
      return;
    }
    const ResultWriter writer{.args = a_, .i = row, .late = late_weights(port_.local(), a_.call, source, number),
                              .columns = all_columns(a_)};
    terms.gather(writer.topk(), [&](int k) { return writer.term(k); });
  }

  /// Those of owners [first, end) that came through the window.
  template <class From>
  HEDDLE_HD void gather_ranks(TermList<Coop>& terms, const InResult& result, const From& from, int first, int end) const {
    const uint8_t* in_rank = a_.plan.in_rank + result.token * a_.call.ctx.topo.world;
    terms.gather(end - first, [&](int k) -> Term {
      const std::byte* results = in_rank[first + k] == 0 ? nullptr : from(first + k);
      if (results == nullptr) return {};
      return {.row = results + result.place * board_->range.stride, .weight = 1.0f};
    });
  }

  const Coop& coop_;
  Port& port_;
  const CombineArgs& a_;
  CombineBoard<Port>* board_;
  SumBelt<Coop, Port> belt_;
};

}  // namespace heddle
