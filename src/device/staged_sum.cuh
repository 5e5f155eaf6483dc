// The GPU's side of staged_sum.hpp. Little code, as a sum is a small part of a large kernel: rows of the stage are loaded one ahead.
#pragma once

#include <cstdint>

#include "device/copy.cuh"
#include "device/rows_lane.cuh"

namespace heddle {

/// Two times eight columns of one thread.
struct StagedColumns {
  static constexpr int kGroups = 2;
  static constexpr int kStride = 32 * kLaneColumns;

  LaneColumns<bf16> groups[kGroups];

  /// `at`: an address of block memory.
  __device__ void load(uint32_t at, bool is_whole) {
    groups[0] = load_one(at);
    if (is_whole) groups[1] = load_one(at + kStride * static_cast<uint32_t>(sizeof(bf16)));
  }

  __device__ void add_to(float (&sums)[kGroups][kLaneColumns], float weight) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float row[kLaneColumns];
      groups[group].widen(row);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) sums[group][i] = __fmaf_rn(weight, row[i], sums[group][i]);
    }
  }

  __device__ void widen(float (&sums)[kGroups][kLaneColumns]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) groups[group].widen(sums[group]);
  }

 private:
  __device__ static LaneColumns<bf16> load_one(uint32_t at) {
    LaneColumns<bf16> columns;
    uint4& vector = columns.vectors[0];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(vector.x), "=r"(vector.y), "=r"(vector.z), "=r"(vector.w)
                 : "r"(at)
                 : "memory");
    return columns;
  }
};

/// Rounded to bf16 and widened again.
__device__ inline void round_columns(float (&values)[kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; i += 2) {
    const uint32_t pair = round_pair(values[i], values[i + 1], bf16{});
    values[i] = float_of(pair << 16);
    values[i + 1] = float_of(pair & 0xFFFF0000u);
  }
}

/// One thread's columns from `column` on.
__device__ inline void sum_staged_columns(const StagedSum& sum, uint32_t at, int column) {
  using Columns = StagedColumns;
  const bool is_whole = column + Columns::kStride < sum.columns;
  float sums[Columns::kGroups][kLaneColumns] = {};
  float before[Columns::kGroups][kLaneColumns];  // the chain, while own hits are summed
  Columns next;
  if (sum.rows > 0) next.load(at, is_whole);
#pragma unroll 1
  for (int row = 0; row < sum.rows; ++row) {
    const Columns here = next;
    at += static_cast<uint32_t>(sum.stride);
    if (row + 1 < sum.rows) next.load(at, is_whole);
    if (row < sum.biases) {
      if (row == 0) here.widen(sums);
      else here.add_to(sums, 1.0f);
      continue;
    }
    const Term term = sum.terms[row];
    if (row == sum.own) {
#pragma unroll
      for (int group = 0; group < Columns::kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          before[group][i] = sums[group][i];
          sums[group][i] = 0.0f;
        }
      }
    }
    if (term.row != nullptr) here.add_to(sums, term.weight);
    if (row + 1 == sum.own_end) {
#pragma unroll
      for (int group = 0; group < Columns::kGroups; ++group) {
        round_columns(sums[group]);
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sums[group][i] += before[group][i];
      }
    }
  }
  auto* out = reinterpret_cast<bf16*>(sum.out) + column;
  store_columns(out, sums[0]);
  if (is_whole) store_columns(out + Columns::kStride, sums[1]);
}

/// For 32 lanes.
__device__ inline void lanes_sum_staged(Lanes lanes, const StagedSum& sum) {
  const auto stage = static_cast<uint32_t>(__cvta_generic_to_shared(sum.at));
#pragma unroll 1
  for (int column = lanes.lane * kLaneColumns; column < sum.columns; column += StagedColumns::kGroups * StagedColumns::kStride) {
    sum_staged_columns(sum, stage + static_cast<uint32_t>(column) * static_cast<uint32_t>(sizeof(bf16)), column);
  }
}

}  // namespace heddle
