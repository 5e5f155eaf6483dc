// The GPU's side of pack.hpp: a warp packs four blocks of a row at a time, and unpacks eight columns a lane.
#pragma once

#include "device/pack_block.hpp"
#include "device/quantise.cuh"
#include "device/rows.cuh"

namespace heddle {

/// Eight columns of a packed row in a thread's registers.
template <class Block>
struct PackedColumns {
  uint2 low;
  uint32_t high;
  uint32_t mark;

  __device__ static PackedColumns load(const void* from, const PackedRow& at, int64_t column) {
    const auto* row = static_cast<const std::byte*>(from);
    PackedColumns columns{};
    columns.low = *reinterpret_cast<const uint2*>(row + column);
    if constexpr (Block::kBits > 8) columns.high = *reinterpret_cast<const uint16_t*>(row + at.high + column / 4);
    columns.mark = mark_of(row, at, column / kPackBlock);
    return columns;
  }

  __device__ void widen(float (&values)[kLaneColumns]) const {
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const uint32_t code = (i < 4 ? low.x : low.y) >> i % 4 * 8 & 255;
      values[i] = Block::value(mark, code | (high >> 2 * i & 3) << 8);
    }
  }

  __device__ static void store(std::byte* row, const PackedRow& at, int64_t column, const Block& block,
                               const float (&values)[kLaneColumns]) {
    uint32_t low[2] = {}, high = 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      const uint32_t code = block.code(values[i]);
      low[i / 4] |= (code & 255) << i % 4 * 8;
      high |= code >> 8 << 2 * i;
    }
    *reinterpret_cast<uint2*>(row + column) = make_uint2(low[0], low[1]);
    if constexpr (Block::kBits > 8) *reinterpret_cast<uint16_t*>(row + at.high + column / 4) = static_cast<uint16_t>(high);
  }
};

/// What the lanes of a block have seen, together.
template <class Cut>
__device__ PackRange range_of_lanes(PackRange range) {
#pragma unroll
  for (int apart = Cut::kLanes / 2; apart > 0; apart /= 2) {
    range.most = max(range.most, __shfl_xor_sync(0xFFFFFFFFu, range.most, apart));
    range.least = min(range.least, __shfl_xor_sync(0xFFFFFFFFu, range.least, apart));
  }
  return range;
}

/// By a whole warp, aligned.
template <class In, class Block>
__device__ void pack_by_warp(int lane, const SumArgs& args, const Term* terms, int num_terms) {
  using Cut = BlockCut<kPackBlock, 8>;
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  for (int64_t start = 0; start < args.count; start += Cut::kStep) {
    const int64_t first = start + Cut::first(lane);
    const auto column = [&](int turn) { return first + Cut::piece(lane, turn); };
    float sums[Cut::kPieces][kLaneColumns] = {};
#pragma unroll
    for (int turn = 0; turn < Cut::kPieces; ++turn) {
      if (column(turn) < args.count) start_columns(args, column(turn), sums[turn]);
    }
#pragma unroll 2
    for (int t = 0; t < num_terms; ++t) {
#pragma unroll
      for (int turn = 0; turn < Cut::kPieces; ++turn) {
        if (column(turn) >= args.count) continue;
        float values[kLaneColumns];
        LaneColumns<In>::load(static_cast<const In*>(terms[t].row) + column(turn)).widen(values);
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) sums[turn][i] = __fmaf_rn(terms[t].weight, values[i], sums[turn][i]);
      }
    }
    PackRange range;
#pragma unroll
    for (const auto& piece : sums) {
#pragma unroll
      for (const float sum : piece) range.add(sum);
    }
    const Block block = Block::of(range_of_lanes<Cut>(range));
#pragma unroll
    for (int turn = 0; turn < Cut::kPieces; ++turn) {
      if (column(turn) < args.count) PackedColumns<Block>::store(row, at, column(turn), block, sums[turn]);
    }
    if (lane % Cut::kLanes == 0 && first < args.count) *mark_of(row, at, first / kPackBlock) = block.mark;
  }
}

/// One block by one thread: for any alignment and any number of lanes.
template <class Block>
__device__ void pack_block_alone(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  const int64_t first = block * kPackBlock;
  const int64_t end = first + kPackBlock < args.count ? first + kPackBlock : args.count;
  PackRange range;
  for (int64_t column = first; column < end; ++column) range.add(column_sum(args, terms, num_terms, column));
  const Block packed = Block::of(range);
  for (int64_t column = first; column < end; ++column) {
    store_code<Block>(row, at, column, packed.code(column_sum(args, terms, num_terms, column)));
  }
  *mark_of(row, at, block) = packed.mark;
}

template <class Block>
__device__ void lanes_pack(Lanes lanes, const SumArgs& args, const Term* terms, int num_terms, bool aligned) {
  if (!aligned) {
    for (int64_t block = lanes.lane; block * kPackBlock < args.count; block += lanes.lanes) {
      pack_block_alone<Block>(args, terms, num_terms, block);
    }
    return;
  }
  switch (args.in_dtype) {
    case DType::f32: return pack_by_warp<float, Block>(lanes.lane, args, terms, num_terms);
    case DType::bf16: return pack_by_warp<bf16, Block>(lanes.lane, args, terms, num_terms);
    default: return pack_by_warp<f16, Block>(lanes.lane, args, terms, num_terms);
  }
}

template <class Block>
__device__ void lanes_unpack(Lanes lanes, const SumArgs& args, const Term* terms, int num_terms, bool aligned) {
  const PackedRow at = PackedRow::of(args.count, args.in_wire);
  const int64_t whole = aligned ? args.count : 0;
  for (int64_t column = lanes.lane * kLaneColumns; column < whole; column += 32 * kLaneColumns) {
    float sums[kLaneColumns];
    start_columns(args, column, sums);
#pragma unroll 4
    for (int t = 0; t < num_terms; ++t) {
      float values[kLaneColumns];
      PackedColumns<Block>::load(terms[t].row, at, column).widen(values);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) sums[i] = __fmaf_rn(terms[t].weight, values[i], sums[i]);
    }
    finish_columns(args, column, sums);
  }
  for (int64_t column = whole + lanes.lane; column < args.count; column += lanes.lanes) {
    float sum = column_start(args, column);
    for (int t = 0; t < num_terms; ++t) {
      const auto* row = static_cast<const std::byte*>(terms[t].row);
      const float value = Block::value(mark_of(row, at, column / kPackBlock), load_code<Block>(row, at, column));
      sum = __fmaf_rn(terms[t].weight, value, sum);
    }
    store_column(args, column, sum);
  }
}

/// Not inlined, and by value, as what is rare: it would crowd out the usual sums.
__device__ __noinline__ inline void lanes_sum_packed(Lanes lanes, SumArgs args, const Term* terms, int num_terms) {
  const bool aligned = lanes.lanes == 32 && args.count % kLaneColumns == 0 && all_aligned(args, terms, num_terms);
  const bool packs = is_packed(args.out_wire);
  with_pack(packs ? args.out_wire : args.in_wire, [&](auto block) {
    if (packs) lanes_pack<decltype(block)>(lanes, args, terms, num_terms, aligned);
    else lanes_unpack<decltype(block)>(lanes, args, terms, num_terms, aligned);
  });
}

}  // namespace heddle
