// One row of a combine: what an owner makes of a token's hits, and what the token's source makes of the owners' rows (I8).
// By the lanes of one worker.
#pragma once

#include <cstdint>

#include "device/copy.hpp"
#include "device/rows.hpp"
#include "device/term_list.hpp"
#include "layout/slot.hpp"
#include "protocol/combine_args.hpp"
#include "protocol/dispatch_rows.hpp"

namespace heddle {

/// weights[k] plus those of later columns with the same id (duplicates rule).
HEDDLE_HD inline float summed_weight(const int32_t* ids, const float* weights, int k, int topk) {
  float sum = weights[k];
  for (int later = k + 1; later < topk; ++later) {
    if (ids[later] == ids[k]) sum += weights[later];
  }
  return sum;
}

HEDDLE_HD inline int first_column_of(const int32_t* ids, int k) {
  for (int earlier = 0; earlier < k; ++earlier) {
    if (ids[earlier] == ids[k]) return earlier;
  }
  return k;
}

/// Columns of a row.
struct Columns {
  int64_t first = 0;
  int64_t count = 0;
};

inline constexpr int kMostTerms = kMaxTopk > kMaxRanks ? kMaxTopk : kMaxRanks;

/// For a token's hits, or one row of each rank; for both where so many fit.
template <class Coop>
using TermMemory = OwnTermList<Coop, kMostTerms>;

/// At the owner: the i-th received row, of a source whose late weights for it are `late` (or null).
struct ResultWriter {
  const CombineArgs& args;
  int64_t i;
  const float* late;
  Columns columns;

  HEDDLE_HD int topk() const { return args.call.shape.topk; }
  HEDDLE_HD int32_t row_of(int k) const { return args.route.row_of[i * topk() + k]; }

  /// The sum of the token's hits here, rounded to the wire's dtype.
  template <class Coop>
  HEDDLE_HD void write_sum(const Coop& coop, std::byte* at) const {
    if (args.layout == Layout::token_major) return write_token(coop, at);
    TermMemory<Coop> memory(coop);
    TermList<Coop> terms(coop, memory.terms());
    terms.gather(topk(), [&](int k) { return term(k); });
    terms.sum(sum_args(at));
  }

  /// The hit of column k; none where it is not local, not the first of its expert, or dropped.
  HEDDLE_HD Term term(int k) const {
    const int32_t row = row_of(k);
    if (row < 0) return {};
    return {.row = args.experts.x + row * args.experts.x_stride + first_byte(args.experts.dtype), .weight = weight_of(k)};
  }

  /// A hit alone, as it is: row_of() of its column.
  template <class Coop>
  HEDDLE_HD void write_hit(const Coop& coop, std::byte* at, int32_t row) const {
    write_row(coop, at, row < 0 ? nullptr : args.experts.x + row * args.experts.x_stride);
  }

  /// For the weights' gradient: each column's value, 0 where it is not local.
  template <class Coop>
  HEDDLE_HD void write_weights(const Coop& coop, float* at) const {
    const int32_t* ids = args.route.recv_ids + i * topk();
    for (int k = coop.lane(); k < topk(); k += coop.lanes()) at[k] = ids[k] < 0 ? 0.0f : row_weight(ids, k);
  }

 private:
  HEDDLE_HD int64_t first_byte(DType dtype) const { return columns.first * static_cast<int64_t>(size_of(dtype)); }

  HEDDLE_HD float row_weight(const int32_t* ids, int k) const {
    if (args.layout == Layout::token_major) return i < args.experts.rows ? args.experts.row_weights[i * topk() + k] : 0.0f;
    const int32_t row = row_of(first_column_of(ids, k));
    return row < 0 ? 0.0f : args.experts.row_weights[row];
  }

  HEDDLE_HD float weight_of(int k) const {
    const int32_t* ids = args.route.recv_ids + i * topk();
    switch (args.call.shape.weights) {
      case Weights::at_owner: return summed_weight(ids, args.route.recv_weights + i * topk(), k, topk());
      case Weights::late: return summed_weight(ids, late, k, topk());
      default: return 1.0f;
    }
  }

  HEDDLE_HD SumArgs sum_args(std::byte* at) const {
    return {.out = at + first_byte(args.call.shape.wire), .out_dtype = args.call.shape.wire,
            .in_dtype = args.experts.dtype, .bias0 = nullptr, .bias1 = nullptr, .bias_dtype = args.experts.dtype,
            .count = columns.count, .out_wire = args.call.shape.result_wire};
  }

  template <class Coop>
  HEDDLE_HD void write_token(const Coop& coop, std::byte* at) const {
    write_row(coop, at, i < args.experts.rows ? args.experts.x + i * args.experts.x_stride : nullptr);
  }

  /// A dropped row counts as zero.
  template <class Coop>
  HEDDLE_HD void write_row(const Coop& coop, std::byte* at, const std::byte* row) const {
    const Shape& shape = args.call.shape;
    const size_t bytes = is_packed(shape.result_wire) ? static_cast<size_t>(shape.payload_bytes)
                                                      : static_cast<size_t>(columns.count) * size_of(shape.wire);
    std::byte* to = at + first_byte(shape.wire);
    const std::byte* from = row == nullptr ? nullptr : row + first_byte(args.experts.dtype);
    if (row == nullptr) zero_bytes(coop, to, bytes);
    else if (args.experts.dtype == shape.wire) copy_bytes(coop, to, from, bytes);
    else cast_row(coop, {.out = to, .out_dtype = shape.wire, .in = from, .in_dtype = args.experts.dtype,
                         .count = columns.count, .out_wire = shape.result_wire});
  }
};

/// At the source: one token of this rank's batch. `place_of(owner, k)` is where the owner's row for it lies, null if the
/// owner is masked; k matters only where hits travel alone.
struct ResultReader {
  const CombineArgs& args;
  int64_t token;
  Columns columns;

  HEDDLE_HD int topk() const { return args.call.shape.topk; }
  HEDDLE_HD const int32_t* ids() const { return args.plan.ids + token * topk(); }

  template <class Coop, class PlaceOf>
  HEDDLE_HD void sum_ranks(const Coop& coop, const PlaceOf& place_of) const {
    const int world = args.call.ctx.topo.world;
    const uint8_t* in_rank = args.plan.in_rank + token * world;
    TermMemory<Coop> memory(coop);
    TermList<Coop> terms(coop, memory.terms());
    terms.gather(world, [&](int owner) { return term(in_rank[owner] == 0 ? nullptr : place_of(owner, 0), 1.0f); });
    terms.sum(sum_args());
  }

  /// The same where this rank's own hits have stayed with the experts, though others' rows are packed: own(k), of so many.
  template <class Coop, class PlaceOf, class Own>
  HEDDLE_HD void sum_beside_own(const Coop& coop, const PlaceOf& place_of, int count, const Own& own) const {
    const Topology& topo = args.call.ctx.topo;
    const uint8_t* in_rank = args.plan.in_rank + token * topo.world;
    TermMemory<Coop> memory(coop);
    TermList<Coop> terms(coop, memory.terms());
    const auto gather = [&](int first, int end) {
      terms.gather(end - first, [&](int i) { return term(in_rank[first + i] == 0 ? nullptr : place_of(first + i, 0), 1.0f); });
    };
    SumArgs sum = sum_args();
    gather(0, topo.rank);
    sum.own = {.first = terms.count(), .end = 0, .dtype = args.experts.dtype, .is_row = args.layout == Layout::token_major};
    terms.gather(count, own);
    sum.own.end = terms.count();
    gather(topo.rank + 1, topo.world);
    terms.sum(sum);
  }

  template <class Coop, class PlaceOf>
  HEDDLE_HD void sum_hits(const Coop& coop, const PlaceOf& place_of) const {
    const float* weights = args.out.weights_in + token * topk();
    TermMemory<Coop> memory(coop);
    TermList<Coop> terms(coop, memory.terms());
    terms.gather(topk(), [&](int k) -> Term {
      if (args.plan.ordinals[token * topk() + k] < 0) return {};
      return term(place_of(args.call.ctx.topo.owner_of(ids()[k]), k), summed_weight(ids(), weights, k, topk()));
    });
    terms.sum(sum_args());
  }

  template <class Coop, class PlaceOf>
  HEDDLE_HD void gather_weights(const Coop& coop, const PlaceOf& place_of) const {
    const Slot slot = Slot::of(args.call.shape);
    for (int k = coop.lane(); k < topk(); k += coop.lanes()) {
      const std::byte* row =
          ids()[k] < 0 ? nullptr : place_of(args.call.ctx.topo.owner_of(ids()[k]), first_column_of(ids(), k));
      args.out.weights[token * topk() + k] =
          row == nullptr ? 0.0f : reinterpret_cast<const float*>(row + slot.weights)[k];
    }
  }

 private:
  HEDDLE_HD Term term(const std::byte* row, float weight) const {
    if (row == nullptr) return {};
    return {.row = row + columns.first * static_cast<int64_t>(size_of(args.call.shape.wire)), .weight = weight};
  }

  HEDDLE_HD SumArgs sum_args() const {
    const auto size = static_cast<int64_t>(size_of(args.call.shape.dtype));
    const int64_t bias_at = (token * args.hidden + columns.first) * size;
    const auto bias = [&](int i) { return args.out.bias[i] == nullptr ? nullptr : args.out.bias[i] + bias_at; };
    return {.out = args.out.x + token * args.out.x_stride + columns.first * size, .out_dtype = args.call.shape.dtype,
            .in_dtype = args.call.shape.wire, .bias0 = bias(0), .bias1 = bias(1),
            .bias_dtype = args.call.shape.dtype, .count = columns.count, .in_wire = args.call.shape.result_wire};
  }
};

}  // namespace heddle
