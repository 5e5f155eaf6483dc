// The host's loop of sum_rows over columns and terms; see rows_vector.hpp.
#pragma once

#include "device/rows_args.hpp"
#include "device/rows_vector.hpp"

namespace heddle {

template <class Isa>
struct RowsSum {
  using Vector = RowsVector<Isa>;
  using F = typename Vector::F;
  static constexpr int kWidth = Vector::kWidth;

  static void sum(const SumArgs& args, const Term* terms, int num_terms) {
    const Call call{args, terms, num_terms};
    switch (args.in_dtype) {
      case DType::f32: return all_columns<float>(call);
      case DType::bf16: return all_columns<bf16>(call);
      case DType::f16: return all_columns<f16>(call);
      default: return;  // host_sum_rows refuses it
    }
  }

 private:
  struct Call {
    const SumArgs& args;
    const Term* terms;
    int num_terms;
  };

  template <class In>
  static void all_columns(const Call& call) {
    const int64_t count = call.args.count;
    constexpr int kMany = Isa::kSumVectors;
    int64_t column = 0;
    for (; column + kMany * kWidth <= count; column += kMany * kWidth) columns<In, kMany>(call, column, kWidth);
    for (; column + kWidth <= count; column += kWidth) columns<In, 1>(call, column, kWidth);
    if (column < count) columns<In, 1>(call, column, count - column);
  }

  /// The accumulators stay in registers while the terms pass: every row is read once and nothing else moves.
  template <class In, int kVectors>
  HEDDLE_INLINE void columns(const Call& call, int64_t column, int64_t live) {
    F sums[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[v] = start(call.args, column + v * kWidth, live);
    for (const Term* term = call.terms; term != call.terms + call.num_terms; ++term) {
      const In* row = static_cast<const In*>(term->row) + column;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[v] = Isa::fma(term->weight, Vector::load(row + v * kWidth, live), sums[v]);
      }
    }
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) finish(call.args, column + v * kWidth, sums[v], live);
  }

  HEDDLE_INLINE F start(const SumArgs& args, int64_t column, int64_t live) {
    if (args.bias0 == nullptr) return F{};
    const F first = load_as(args.bias_dtype, args.bias0, column, live);
    if (args.bias1 == nullptr) return first;
    return first + load_as(args.bias_dtype, args.bias1, column, live);
  }

  HEDDLE_INLINE F load_as(DType dtype, const void* row, int64_t column, int64_t live) {
    switch (dtype) {
      case DType::f32: return Vector::load(static_cast<const float*>(row) + column, live);
      case DType::bf16: return Vector::load(static_cast<const bf16*>(row) + column, live);
      default: return Vector::load(static_cast<const f16*>(row) + column, live);
    }
  }

  HEDDLE_INLINE void finish(const SumArgs& args, int64_t column, F sum, int64_t live) {
    switch (args.out_dtype) {
      case DType::f32: return Vector::store(static_cast<float*>(args.out) + column, sum, live);
      case DType::bf16: return Vector::store(static_cast<bf16*>(args.out) + column, sum, live);
      default: return Vector::store(static_cast<f16*>(args.out) + column, sum, live);
    }
  }
};

}  // namespace heddle
