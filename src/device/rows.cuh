// The GPU's side of rows.hpp.
#pragma once

#include "base/dtype.hpp"
#include "device/copy.cuh"
#include "device/rows_args.hpp"
#include "device/rows_lane.cuh"

namespace heddle {

/// One column by one thread, for columns that no aligned vector covers.
__device__ inline float load_column(DType dtype, const void* row, int64_t column) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(row)[column];
    case DType::bf16: return to_float(static_cast<const bf16*>(row)[column]);
    default: return to_float(static_cast<const f16*>(row)[column]);
  }
}

__device__ inline float column_start(const SumArgs& args, int64_t column) {
  const float first = args.bias0 == nullptr ? 0.0f : load_column(args.bias_dtype, args.bias0, column);
  if (args.bias0 == nullptr || args.bias1 == nullptr) return first;
  return first + load_column(args.bias_dtype, args.bias1, column);
}
__device__ inline float column_sum(const SumArgs& args, const Term* terms, int num_terms, int64_t column) {
  float sum = column_start(args, column);
  for (int t = 0; t < num_terms; ++t) {
    sum = __fmaf_rn(terms[t].weight, load_column(args.in_dtype, terms[t].row, column), sum);
  }
  return sum;
}
__device__ inline void store_column(const SumArgs& args, int64_t column, float sum) {
  switch (args.out_dtype) {
    case DType::f32: static_cast<float*>(args.out)[column] = round_to<float>(sum); break;
    case DType::bf16: static_cast<bf16*>(args.out)[column] = to_bf16(sum); break;
    default: static_cast<f16*>(args.out)[column] = to_f16(sum);
  }
}

__device__ inline void load_columns(DType dtype, const void* row, int64_t column, float (&values)[kLaneColumns]) {
  switch (dtype) {
    case DType::f32: return LaneColumns<float>::load(static_cast<const float*>(row) + column).widen(values);
    case DType::bf16: return LaneColumns<bf16>::load(static_cast<const bf16*>(row) + column).widen(values);
    default: return LaneColumns<f16>::load(static_cast<const f16*>(row) + column).widen(values);
  }
}

__device__ inline void start_columns(const SumArgs& args, int64_t column, float (&sums)[kLaneColumns]) {
  if (args.bias0 == nullptr) {
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    return;
  }
  load_columns(args.bias_dtype, args.bias0, column, sums);
  if (args.bias1 == nullptr) return;
  float more[kLaneColumns];
  load_columns(args.bias_dtype, args.bias1, column, more);
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) sums[i] += more[i];
}

__device__ inline void finish_columns(const SumArgs& args, int64_t column, const float (&sums)[kLaneColumns]) {
  switch (args.out_dtype) {
    case DType::f32: return store_columns(static_cast<float*>(args.out) + column, sums);
    case DType::bf16: return store_columns(static_cast<bf16*>(args.out) + column, sums);
    default: return store_columns(static_cast<f16*>(args.out) + column, sums);
  }
}

/// Up to kGroups times eight columns of one thread, a stride apart, so that many loads are in flight. ptxas only keeps them so
/// where it has some 96 registers a thread: a kernel needs __launch_bounds__ of at most 512 (without, 24 blocks of 16 warps
/// took 220 instead of 88 us for 4096 sums of two bf16 rows of 7168, H200). Those at or past `end` are left out.
template <class In, int kGroups>
struct ColumnGroups {
  static constexpr int kStride = 32 * kLaneColumns;
  int64_t first;
  int64_t end;
  float sums[kGroups][kLaneColumns];

  __device__ int64_t column(int group) const { return first + group * kStride; }

  /// Adds kTerms rows in order, all loaded before the first is used.
  template <int kTerms>
  __device__ void add(const Term* terms) {
    LaneColumns<In> rows[kTerms][kGroups];
    float weights[kTerms];
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
      const In* row = static_cast<const In*>(terms[t].row) + first;
      weights[t] = terms[t].weight;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (column(group) < end) rows[t][group] = LaneColumns<In>::load(row + group * kStride);
      }
    }
#pragma unroll
    for (int t = 0; t < kTerms; ++t) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        float row[kLaneColumns];
        rows[t][group].widen(row);
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sums[group][i] = __fmaf_rn(weights[t], row[i], sums[group][i]);
      }
    }
  }

  __device__ void run(const SumArgs& args, const Term* terms, int num_terms) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (column(group) < end) start_columns(args, column(group), sums[group]);
    }
    int t = 0;
    for (; t + 2 <= num_terms; t += 2) add<2>(terms + t);
    if (t < num_terms) add<1>(terms + t);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      if (column(group) < end) finish_columns(args, column(group), sums[group]);
    }
  }
};

__device__ inline bool all_aligned(const SumArgs& args, const Term* terms, int num_terms) {
  auto low_bits = reinterpret_cast<uintptr_t>(args.out) | reinterpret_cast<uintptr_t>(args.bias0) |
                  reinterpret_cast<uintptr_t>(args.bias1);
  for (int t = 0; t < num_terms; ++t) low_bits |= reinterpret_cast<uintptr_t>(terms[t].row);
  return low_bits % sizeof(uint4) == 0;
}

template <class In>
__device__ void lanes_sum_aligned(Lanes lanes, const SumArgs& args, const Term* terms, int num_terms, int64_t whole) {
  constexpr int kGroups = 8 / sizeof(In);
  constexpr int kStride = ColumnGroups<In, kGroups>::kStride;
  for (int64_t column = lanes.lane * kLaneColumns; column < whole; column += kGroups * kStride) {
    ColumnGroups<In, kGroups>{column, whole}.run(args, terms, num_terms);
  }
}

/// bf16 to f32, aligned: what FP32 on a wire asks for. No switch over types parts these loads, so that they go side by side.
__device__ inline void lanes_widen(Lanes lanes, const SumArgs& args) {
  constexpr int kGroups = 4;
  constexpr int kStride = 32 * kLaneColumns;
  for (int64_t first = lanes.lane * kLaneColumns; first < args.count; first += kGroups * kStride) {
    LaneColumns<bf16> groups[kGroups];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int64_t column = first + group * kStride;
      if (column < args.count) groups[group] = LaneColumns<bf16>::load(static_cast<const bf16*>(args.bias0) + column);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int64_t column = first + group * kStride;
      float values[kLaneColumns];
      groups[group].widen(values);
      if (column < args.count) store_columns(static_cast<float*>(args.out) + column, values);
    }
  }
}

/// What is rare: other types, odd addresses, odd lengths. Not inlined, so that it does not crowd out the rest; arguments by
/// value, so that the usual ones need not lie in memory.
__device__ __noinline__ inline void lanes_sum_odd(Lanes lanes, SumArgs args, const Term* terms, int num_terms) {
  const int64_t whole = lanes.lanes == 32 && all_aligned(args, terms, num_terms) ? args.count / kLaneColumns * kLaneColumns : 0;
  const bool widens = num_terms == 0 && args.bias0 != nullptr && args.bias1 == nullptr && args.bias_dtype == DType::bf16 &&
                      args.out_dtype == DType::f32;
  if (widens && whole == args.count) return lanes_widen(lanes, args);
  switch (args.in_dtype) {
    case DType::f32: lanes_sum_aligned<float>(lanes, args, terms, num_terms, whole); break;
    case DType::bf16: lanes_sum_aligned<bf16>(lanes, args, terms, num_terms, whole); break;
    default: lanes_sum_aligned<f16>(lanes, args, terms, num_terms, whole);
  }
  for (int64_t column = whole + lanes.lane; column < args.count; column += lanes.lanes)
    store_column(args, column, column_sum(args, terms, num_terms, column));
}

__device__ inline void lanes_sum_rows(Lanes lanes, const SumArgs& args, const Term* terms, int num_terms) {
  const bool is_usual = args.in_dtype == DType::bf16 && args.out_dtype == DType::bf16 && args.bias0 == nullptr &&
                        args.count % kLaneColumns == 0 && lanes.lanes == 32 && all_aligned(args, terms, num_terms);
  if (!is_usual) return lanes_sum_odd(lanes, args, terms, num_terms);
  const SumArgs usual{.out = args.out, .out_dtype = DType::bf16, .in_dtype = DType::bf16, .bias0 = nullptr, .bias1 = nullptr,
                      .bias_dtype = DType::bf16, .count = args.count};  // its branches are settled when compiled
  lanes_sum_aligned<bf16>(lanes, usual, terms, num_terms, args.count);
}

}  // namespace heddle
