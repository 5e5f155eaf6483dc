// The GPU's side of pack.hpp: a warp packs and unpacks four blocks of a row at a time.
#pragma once

#include "device/pack_block.hpp"
#include "device/prefetch.hpp"
#include "device/rows.cuh"

namespace heddle {

inline constexpr int kPackGroups = 2;  // times eight columns of a lane, side by side

// Eight values of a lane, by the hardware's casts where there are such.

template <class Block>
__device__ void codes_of(const Block& block, const float (&values)[kLaneColumns], uint2& low, uint32_t& high) {
  uint32_t words[2] = {};
  high = 0;
#pragma unroll
  for (int i = 0; i < kLaneColumns; i += 2) {
    if constexpr (Block::kBits == 8) {
      words[i / 4] |= round_pair(values[i] * block.multiplier, values[i + 1] * block.multiplier, e4m3{}) << i % 4 * 8;
    } else {
      const uint32_t even = block.code(values[i]), odd = block.code(values[i + 1]);
      words[i / 4] |= ((even & 255) | (odd & 255) << 8) << i % 4 * 8;
      high |= (even >> 8 | odd >> 8 << 2) << 2 * i;
    }
  }
  low = make_uint2(words[0], words[1]);
}

template <class Block>
__device__ void values_of(uint32_t mark, const uint2& low, uint32_t high, float (&values)[kLaneColumns]) {
#pragma unroll
  for (int i = 0; i < kLaneColumns; i += 2) {
    const uint32_t pair = (i < 4 ? low.x : low.y) >> i % 4 * 8;
    if constexpr (Block::kBits == 8) {
      widen_pair(pair, values[i], values[i + 1]);
      values[i] *= float_of(mark);
      values[i + 1] *= float_of(mark);
    } else {
      values[i] = Block::value(mark, (pair & 255) | (high >> 2 * i & 3) << 8);
      values[i + 1] = Block::value(mark, (pair >> 8 & 255) | (high >> (2 * i + 2) & 3) << 8);
    }
  }
}

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
  __device__ void widen(float (&values)[kLaneColumns]) const { values_of<Block>(mark, low, high, values); }

  __device__ static void store(std::byte* row, const PackedRow& at, int64_t column, const Block& block,
                               const float (&values)[kLaneColumns]) {
    uint2 low;
    uint32_t high;
    codes_of(block, values, low, high);
    *reinterpret_cast<uint2*>(row + column) = low;
    if constexpr (Block::kBits > 8) *reinterpret_cast<uint16_t*>(row + at.high + column / 4) = static_cast<uint16_t>(high);
  }
};

/// Sums of a lane: kPackGroups times eight columns, a stride apart. A group of a warp has two blocks, each of 16 lanes. Columns at or
/// past `end` are nobody's.
struct PackSums {
  static constexpr int kStride = 32 * kLaneColumns;
  static constexpr int kBlockLanes = kPackBlock / kLaneColumns;
  int64_t first;
  int64_t end;
  float of[kPackGroups][kLaneColumns];

  /// Calls `work(sums)` for all columns of a row, by all lanes of a warp.
  template <class Work>
  __device__ static void each(int lane, int64_t columns, const Work& work) {
    for (int64_t start = 0; start < columns; start += kPackGroups * kStride) {
      PackSums sums{start + lane * kLaneColumns, columns, {}};
      work(sums);
    }
  }

  __device__ int64_t column(int group) const { return first + group * kStride; }
  __device__ bool has(int group) const { return column(group) < end; }

  __device__ void fill(float value) {
#pragma unroll
    for (auto& group : of) {
#pragma unroll
      for (float& sum : group) sum = value;
    }
  }

  /// Adds rows in order; all columns of one are loaded, by load(row, column), before the first is used.
  template <class Columns, class Load>
  __device__ void add(const Term* terms, int num_terms, const Load& load) {
    for (int t = 0; t < num_terms; ++t) {
      Columns row[kPackGroups];
#pragma unroll
      for (int group = 0; group < kPackGroups; ++group) {
        if (has(group)) row[group] = load(terms[t].row, column(group));
      }
#pragma unroll
      for (int group = 0; group < kPackGroups; ++group) {
        if (!has(group)) continue;
        float values[kLaneColumns];
        row[group].widen(values);
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) of[group][i] = __fmaf_rn(terms[t].weight, values[i], of[group][i]);
      }
    }
  }
  template <class In>
  __device__ void add_raw(const Term* terms, int num_terms) {
    add<LaneColumns<In>>(terms, num_terms, [](const void* row, int64_t column) {
      return LaneColumns<In>::load(static_cast<const In*>(row) + column);
    });
  }
  __device__ void add_raw(DType dtype, const Term* terms, int num_terms) {
    switch (dtype) {
      case DType::f32: return add_raw<float>(terms, num_terms);
      case DType::bf16: return add_raw<bf16>(terms, num_terms);
      default: return add_raw<f16>(terms, num_terms);
    }
  }
  template <class Block>
  __device__ void add_packed(const PackedRow& at, const Term* terms, int num_terms) {
    add<PackedColumns<Block>>(terms, num_terms,
                              [&](const void* row, int64_t column) { return PackedColumns<Block>::load(row, at, column); });
  }

  /// That of a group's columns, by all lanes.
  template <class Block>
  __device__ Block block(int group) const {
    PackRange range;
#pragma unroll
    for (const float sum : of[group]) range.add(has(group) ? sum : 0.0f);
#pragma unroll
    for (int apart = kBlockLanes / 2; apart > 0; apart /= 2) {
      range.most = max(range.most, __shfl_xor_sync(0xFFFFFFFFu, range.most, apart));
      if constexpr (Block::kBits > 8) range.before = min(range.before, __shfl_xor_sync(0xFFFFFFFFu, range.before, apart));
    }
    return Block::of(range);
  }

  /// Adds what packing would leave of raw rows' sum.
  template <class Block>
  __device__ void add_own(const OwnTerms& own, const Term* terms) {
    PackSums raw{first, end, {}};
    raw.fill(own.start());
    raw.add_raw(own.dtype, terms, own.end - own.first);
#pragma unroll
    for (int group = 0; group < kPackGroups; ++group) {
      const Block packed = raw.block<Block>(group);
      uint2 low;
      uint32_t high;
      codes_of(packed, raw.of[group], low, high);
      values_of<Block>(packed.mark, low, high, raw.of[group]);
#pragma unroll
      for (int i = 0; i < kLaneColumns; ++i) of[group][i] += raw.of[group][i];
    }
  }
};

__device__ inline void prefetch_rows(int lane, DType dtype, int64_t columns, const Term* terms, int num_terms) {
  const size_t bytes = static_cast<size_t>(columns) * size_of(dtype);
  for (int t = 0; t < num_terms; ++t) prefetch_share(lane, 32, terms[t].row, bytes);
}

/// By a whole warp, aligned. Terms are rows of `dtype`.
template <class Block>
__device__ void pack_by_warp(int lane, const SumArgs& args, DType dtype, const Term* terms, int num_terms, float start) {
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  prefetch_rows(lane, dtype, args.count, terms, num_terms);
  PackSums::each(lane, args.count, [&](PackSums& sums) {
    sums.fill(start);
    sums.add_raw(dtype, terms, num_terms);
#pragma unroll
    for (int group = 0; group < kPackGroups; ++group) {
      const Block block = sums.block<Block>(group);
      if (!sums.has(group)) continue;
      const int64_t column = sums.column(group);
      PackedColumns<Block>::store(row, at, column, block, sums.of[group]);
      if (lane % PackSums::kBlockLanes == 0) *mark_of(row, at, column / kPackBlock) = block.mark;
    }
  });
}

/// The sum of raw rows in one column.
__device__ inline float raw_sum(DType dtype, const Term* terms, int num_terms, int64_t column, float start) {
  float sum = start;
  for (int t = 0; t < num_terms; ++t) sum = __fmaf_rn(terms[t].weight, load_column(dtype, terms[t].row, column), sum);
  return sum;
}

/// Columns [first, end) by one thread.
template <class Block>
__device__ Block block_alone(DType dtype, const Term* terms, int num_terms, int64_t first, int64_t end, float start) {
  PackRange range;
  for (int64_t column = first; column < end; ++column) range.add(raw_sum(dtype, terms, num_terms, column, start));
  return Block::of(range);
}

/// One block by one thread: for any alignment and any number of lanes.
template <class Block>
__device__ void pack_alone(const SumArgs& args, DType dtype, const Term* terms, int num_terms, float start, int64_t block) {
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  const int64_t first = block * kPackBlock;
  const int64_t end = first + kPackBlock < args.count ? first + kPackBlock : args.count;
  const Block packed = block_alone<Block>(dtype, terms, num_terms, first, end, start);
  for (int64_t column = first; column < end; ++column) {
    store_code<Block>(row, at, column, packed.code(raw_sum(dtype, terms, num_terms, column, start)));
  }
  *mark_of(row, at, block) = packed.mark;
}

// Not inlined, and by value, as what is rare: they would crowd out the usual sums.

template <class Block>
__device__ __noinline__ void lanes_pack(Lanes lanes, SumArgs args, const Term* terms, int num_terms, bool aligned) {
  // A row as it is: a chain of one that starts from -0.
  const Term row{args.bias0, 1.0f};
  const bool is_row = args.bias0 != nullptr;
  const Term* rows = is_row ? &row : terms;
  const DType dtype = is_row ? args.bias_dtype : args.in_dtype;
  const int count = is_row ? 1 : num_terms;
  const float start = is_row ? -0.0f : 0.0f;
  if (aligned) return pack_by_warp<Block>(lanes.lane, args, dtype, rows, count, start);
  for (int64_t block = lanes.lane; block * kPackBlock < args.count; block += lanes.lanes) {
    pack_alone<Block>(args, dtype, rows, count, start, block);
  }
}

/// By a whole warp, aligned.
template <class Block>
__device__ void unpack_by_warp(int lane, const SumArgs& args, const Term* terms, int num_terms) {
  const PackedRow at = PackedRow::of(args.count, args.in_wire);
  const OwnTerms& own = args.own;
  const bool has_own = own.first >= 0;
  if (has_own) prefetch_rows(lane, own.dtype, args.count, terms + own.first, own.end - own.first);
  PackSums::each(lane, args.count, [&](PackSums& sums) {
#pragma unroll
    for (int group = 0; group < kPackGroups; ++group) {
      if (sums.has(group)) start_columns(args, sums.column(group), sums.of[group]);
    }
    sums.add_packed<Block>(at, terms, has_own ? own.first : num_terms);
    if (has_own) {
      sums.add_own<Block>(own, terms + own.first);
      sums.add_packed<Block>(at, terms + own.end, num_terms - own.end);
    }
#pragma unroll
    for (int group = 0; group < kPackGroups; ++group) {
      if (sums.has(group)) finish_columns(args, sums.column(group), sums.of[group]);
    }
  });
}

/// One block by one thread, as pack_alone().
template <class Block>
__device__ void unpack_alone(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const PackedRow at = PackedRow::of(args.count, args.in_wire);
  const int64_t first = block * kPackBlock;
  const int64_t end = first + kPackBlock < args.count ? first + kPackBlock : args.count;
  const OwnTerms& own = args.own;
  const Term* raw = terms + (own.first < 0 ? 0 : own.first);
  const int num_raw = own.end - own.first;
  Block of_own{};
  if (own.first >= 0) of_own = block_alone<Block>(own.dtype, raw, num_raw, first, end, own.start());
  for (int64_t column = first; column < end; ++column) {
    float sum = column_start(args, column);
    for (int t = 0; t <= num_terms; ++t) {
      if (t == own.first) {
        sum += packed_and_back(of_own, raw_sum(own.dtype, raw, num_raw, column, own.start()));
        t = own.end;
      }
      if (t >= num_terms) break;
      const auto* row = static_cast<const std::byte*>(terms[t].row);
      sum = __fmaf_rn(terms[t].weight, Block::value(mark_of(row, at, block), load_code<Block>(row, at, column)), sum);
    }
    store_column(args, column, sum);
  }
}

template <class Block>
__device__ __noinline__ void lanes_unpack(Lanes lanes, SumArgs args, const Term* terms, int num_terms, bool aligned) {
  if (aligned) return unpack_by_warp<Block>(lanes.lane, args, terms, num_terms);
  for (int64_t block = lanes.lane; block * kPackBlock < args.count; block += lanes.lanes) {
    unpack_alone<Block>(args, terms, num_terms, block);
  }
}

__device__ __noinline__ inline void lanes_sum_packed(Lanes lanes, SumArgs args, const Term* terms, int num_terms) {
  const bool aligned = lanes.lanes == 32 && args.count % kLaneColumns == 0 && all_aligned(args, terms, num_terms);
  const bool packs = is_packed(args.out_wire);
  with_pack(packs ? args.out_wire : args.in_wire, [&](auto block) {
    if (packs) lanes_pack<decltype(block)>(lanes, args, terms, num_terms, aligned);
    else lanes_unpack<decltype(block)>(lanes, args, terms, num_terms, aligned);
  });
}

}  // namespace heddle
