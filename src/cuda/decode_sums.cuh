// Sums of parts of rows in a warp's registers, in FP32: the hits of one token, by k ascending; and what they are rounded to.
#pragma once

#include <cstdint>

#include "cuda/decode_block.cuh"
#include "device/rows.hpp"
#include "protocol/combine_args.hpp"

namespace heddle {

inline constexpr int kPartGroups = kCombinePart / 32 / kLaneColumns;  // pieces of eight columns of a lane
static_assert(kPartGroups == 2, "a wait looks again for two words of a lane");

/// A lane's columns of a part of a row.
struct PartSums {
  float of[kPartGroups][kLaneColumns];
};

__device__ inline int part_column(int part, int group) {
  return part * kCombinePart + (group * 32 + static_cast<int>(threadIdx.x & 31)) * kLaneColumns;
}

/// Calls `work(place in PartSums, column)` for each of this lane's columns.
template <class Work>
__device__ void for_each_column(const CombineArgs& args, int part, const Work& work) {
#pragma unroll
  for (int group = 0; group < kPartGroups; ++group) {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const int column = part_column(part, group) + i;
      if (column < args.hidden) work(group, i, column);
    }
  }
}

/// What a lane knows of one column of a received row.
struct LaneTerm {
  int32_t row = -1;
  float weight = 1.0f;
};

// What is rare, in functions of its own and by value: other types, odd addresses, biases.

/// All lanes.
__device__ __noinline__ inline PartSums sum_odd(const CombineArgs& args, LaneTerm term, int part) {
  PartSums sums{};
  for (unsigned left = __ballot_sync(kAllLanes, term.row >= 0); left != 0; left &= left - 1) {
    const int from = __ffs(static_cast<int>(left)) - 1;
    const std::byte* row = args.experts.x + __shfl_sync(kAllLanes, term.row, from) * args.experts.x_stride;
    const float weight = __shfl_sync(kAllLanes, term.weight, from);
    for_each_column(args, part, [&](int group, int i, int column) {
      sums.of[group][i] = __fmaf_rn(weight, load_column(args.experts.dtype, row, column), sums.of[group][i]);
    });
  }
  return sums;
}

__device__ __noinline__ inline PartSums bias_of(const CombineArgs& args, int token, int part) {
  PartSums sums{};
  const int64_t at = int64_t{token} * args.hidden * static_cast<int64_t>(sizeof(bf16));
  for_each_column(args, part, [&](int group, int i, int column) {
    float bias = load_column(DType::bf16, args.out.bias[0] + at, column);
    if (args.out.bias[1] != nullptr) bias += load_column(DType::bf16, args.out.bias[1] + at, column);
    sums.of[group][i] = bias;
  });
  return sums;
}

/// A part of a row, rounded: eight bf16 columns each.
struct PackedPart {
  uint4 of[kPartGroups];
};

/// Of one call. All lanes of a warp.
class PartSummer {
  static constexpr int kAhead = 4;  // rows that are loaded together

 public:
  __device__ explicit PartSummer(const CombineArgs& args) : a_(args) {}

  /// The sum of the hits, by k ascending, rounded. All lanes.
  __device__ PackedPart sum_hits(const LaneTerm& term, int part) const {
    const bool usual = a_.experts.dtype == DType::bf16 &&
                       (reinterpret_cast<uintptr_t>(a_.experts.x) | static_cast<uintptr_t>(a_.experts.x_stride)) % 16 == 0;
    if (!usual) return packed(sum_odd(a_, term, part));
    PartSums sums{};
    unsigned left = __ballot_sync(kAllLanes, term.row >= 0);
#pragma unroll 1
    while (left != 0) {
      const std::byte* rows[kAhead];
      float weights[kAhead];
      int count = 0;
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        if (left == 0) continue;
        const int column = __ffs(static_cast<int>(left)) - 1;
        left &= left - 1;
        rows[n] = a_.experts.x + __shfl_sync(kAllLanes, term.row, column) * a_.experts.x_stride;
        weights[n] = __shfl_sync(kAllLanes, term.weight, column);
        ++count;
      }
      add_rows_of(sums, rows, weights, count, part);
    }
    return packed(sums);
  }
  __device__ static PackedPart packed(const PartSums& sums) {
    PackedPart rounded;
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) store_columns(reinterpret_cast<bf16*>(&rounded.of[group]), sums.of[group]);
    return rounded;
  }

  __device__ void add_rows_of(PartSums& sums, const std::byte* (&rows)[kAhead], const float (&weights)[kAhead], int count,
                            int part) const {
    uint4 loaded[kAhead][kPartGroups];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) {
        const int column = part_column(part, group);
        if (n < count && column < a_.hidden) {
          loaded[n][group] = *reinterpret_cast<const uint4*>(rows[n] + column * int64_t{sizeof(bf16)});
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (n >= count) continue;
#pragma unroll
      for (int group = 0; group < kPartGroups; ++group) add(sums.of[group], loaded[n][group], weights[n]);
    }
  }
  __device__ static void add(float (&sums)[kLaneColumns], const uint4& columns, float weight) {
    float values[kLaneColumns];
    LaneColumns<bf16>{{columns}}.widen(values);
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) sums[i] = __fmaf_rn(weight, values[i], sums[i]);
  }

  __device__ void start(PartSums& sums, int token, int part) const {
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
#pragma unroll
      for (float& sum : sums.of[group]) sum = 0.0f;
    }
    if (a_.out.bias[0] != nullptr) sums = bias_of(a_, token, part);
  }
  __device__ void finish(const PartSums& sums, int token, int part) const {
#pragma unroll
    for (int group = 0; group < kPartGroups; ++group) {
      const int column = part_column(part, group);
      if (column >= a_.hidden) continue;
      std::byte* to = a_.out.x + token * a_.out.x_stride + column * int64_t{sizeof(bf16)};
      uint4 packed;
      store_columns(reinterpret_cast<bf16*>(&packed), sums.of[group]);
      if (reinterpret_cast<uintptr_t>(to) % sizeof(uint4) == 0) *reinterpret_cast<uint4*>(to) = packed;
      else store_odd(to, packed);
    }
  }

 private:
  const CombineArgs& a_;
};

}  // namespace heddle
