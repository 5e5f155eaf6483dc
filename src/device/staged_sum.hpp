// The sum of rows that lie side by side in block memory, as sum_rows makes it (docs/protocol.md, I8).
#pragma once

#include <cstddef>

#include "base/macros.hpp"
#include "device/rows.hpp"

namespace heddle {

inline constexpr int kMostStagedRows = 24;

/// Columns of bf16 rows, a multiple of 8: row r's are at `at + r * stride`; all addresses are 16-aligned. First come the biases, then
/// the terms of the chain. Those of [own, own_end) are summed and rounded by themselves, and then are one term of weight 1.
struct StagedSum {
  std::byte* out;
  std::byte* at;  // may be changed
  int stride;
  int columns;
  int rows;
  int biases;
  int own;  // -1: none
  int own_end;
  const Term* terms;  // [rows]: the weights; a row that is null is all zeros, and was not staged
};

}  // namespace heddle

#ifdef __CUDACC__
#include "device/staged_sum.cuh"
#endif

namespace heddle {

inline void host_sum_staged(const StagedSum& sum) {
  Term terms[kMostStagedRows];
  int count = 0;
  const auto add = [&](int row) {
    if (sum.terms[row].row != nullptr) terms[count++] = {sum.at + row * sum.stride, sum.terms[row].weight};
  };
  SumArgs args{.out = sum.out, .out_dtype = DType::bf16, .in_dtype = DType::bf16, .bias0 = nullptr, .bias1 = nullptr,
               .bias_dtype = DType::bf16, .count = sum.columns};
  std::byte* own = sum.own < 0 ? nullptr : sum.at + sum.own * sum.stride;
  if (own != nullptr) {
    SumArgs of_own = args;
    of_own.out = own;
    for (int row = sum.own; row < sum.own_end; ++row) add(row);
    host_sum_rows(of_own, terms, count);
  }
  count = 0;
  for (int row = sum.biases; row < sum.rows; ++row) {
    if (row == sum.own) terms[count++] = {own, 1.0f};
    if (own == nullptr || row < sum.own || row >= sum.own_end) add(row);
  }
  if (sum.biases > 0) args.bias0 = sum.at;
  if (sum.biases > 1) args.bias1 = sum.at + sum.stride;
  host_sum_rows(args, terms, count);
}

/// By the lanes of one worker; no sync inside.
template <class Coop>
HEDDLE_HD void sum_staged(const Coop& coop, const StagedSum& sum) {
#if HEDDLE_ON_DEVICE
  lanes_sum_staged({coop.lane(), coop.lanes()}, sum);
#else
  if (coop.lane() == 0) host_sum_staged(sum);
#endif
}

}  // namespace heddle
