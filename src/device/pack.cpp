#include "device/pack.hpp"

#include "device/pack_block.hpp"
#include "device/rows_variant.hpp"

namespace heddle {
namespace {

template <class Block>
void pack_block(const SumArgs& args, int64_t block, const float* sums, int64_t count) {
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  PackRange range;
  for (int64_t i = 0; i < count; ++i) range.add(sums[i]);
  const Block packed = Block::of(range);
  for (int64_t i = 0; i < count; ++i) store_code<Block>(row, at, block * kPackBlock + i, packed.code(sums[i]));
  *mark_of(row, at, block) = packed.mark;
}

template <class Block>
void unpack_block(const SumArgs& args, int64_t block, const void* from, float* values, int64_t count) {
  const PackedRow at = PackedRow::of(args.count, args.in_wire);
  const auto* row = static_cast<const std::byte*>(from);
  const uint32_t mark = mark_of(row, at, block);
  for (int64_t i = 0; i < count; ++i) values[i] = Block::value(mark, load_code<Block>(row, at, block * kPackBlock + i));
}

/// Some columns of a sum, from the first on.
SumArgs columns_of(const SumArgs& args, int64_t first, int64_t count) {
  const auto moved = [&](const void* row, DType dtype) -> const void* {
    return row == nullptr ? nullptr : static_cast<const std::byte*>(row) + first * static_cast<int64_t>(size_of(dtype));
  };
  SumArgs part = args;
  part.out = const_cast<void*>(moved(args.out, args.out_dtype));
  part.bias0 = moved(args.bias0, args.bias_dtype);
  part.bias1 = moved(args.bias1, args.bias_dtype);
  part.count = count;
  return part;
}

/// The sum of a block of packed rows: the chain goes on from one to the next.
template <class Block>
void sum_unpacked(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const int64_t first = block * kPackBlock;
  SumArgs part = columns_of(args, first, args.count - first < kPackBlock ? args.count - first : kPackBlock);
  float sums[kPackBlock], values[kPackBlock];
  part.in_dtype = DType::f32;
  for (int t = 0; t < num_terms; ++t) {
    unpack_block<Block>(args, block, terms[t].row, values, part.count);
    const Term term{.row = values, .weight = terms[t].weight};
    SumArgs next = part;
    if (t + 1 < num_terms) {
      next.out = sums;
      next.out_dtype = DType::f32;
    }
    rows_variant().sum(next, &term, 1);
    part.bias0 = sums;
    part.bias1 = nullptr;
    part.bias_dtype = DType::f32;
  }
  if (num_terms == 0) rows_variant().sum(part, nullptr, 0);
}

/// The packed sum of a block of rows.
template <class Block>
void pack_sum(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const int64_t first = block * kPackBlock;
  float sums[kPackBlock];
  SumArgs part = columns_of(args, first, args.count - first < kPackBlock ? args.count - first : kPackBlock);
  part.out = sums;
  part.out_dtype = DType::f32;
  const auto row_at = [&](const Term& term) {
    return Term{static_cast<const std::byte*>(term.row) + first * static_cast<int64_t>(size_of(args.in_dtype)), term.weight};
  };
  constexpr int kAtOnce = 16;
  Term moved[kAtOnce];
  int done = 0;
  do {
    int count = 0;
    for (; count < kAtOnce && done + count < num_terms; ++count) moved[count] = row_at(terms[done + count]);
    rows_variant().sum(part, moved, count);
    done += count;
    part.bias0 = sums;
    part.bias1 = nullptr;
    part.bias_dtype = DType::f32;
  } while (done < num_terms);
  pack_block<Block>(args, block, sums, part.count);
}

}  // namespace

void host_sum_packed(const SumArgs& args, const Term* terms, int num_terms) {
  const bool packs = is_packed(args.out_wire);
  with_pack(packs ? args.out_wire : args.in_wire, [&](auto codec) {
    using Block = decltype(codec);
    for (int64_t block = 0; block * kPackBlock < args.count; ++block) {
      if (packs) pack_sum<Block>(args, terms, num_terms, block);
      else sum_unpacked<Block>(args, terms, num_terms, block);
    }
  });
}

}  // namespace heddle
