#include "device/pack.hpp"

#include <algorithm>

#include "device/pack_block.hpp"
#include "device/rows_variant.hpp"

namespace heddle {
namespace {

template <class Block>
Block block_of(const float* values, int64_t count) {
  PackRange range;
  for (int64_t i = 0; i < count; ++i) range.add(values[i]);
  return Block::of(range);
}

template <class Block>
void pack_block(const SumArgs& args, int64_t block, const float* sums, int64_t count) {
  const PackedRow at = PackedRow::of(args.count, args.out_wire);
  auto* row = static_cast<std::byte*>(args.out);
  const Block packed = block_of<Block>(sums, count);
  for (int64_t i = 0; i < count; ++i) store_code<Block>(row, at, block * kPackBlock + i, packed.code(sums[i]));
  *mark_of(row, at, block) = packed.mark;
}

template <class Block>
void pack_and_back(float* values, int64_t count) {
  const Block packed = block_of<Block>(values, count);
  for (int64_t i = 0; i < count; ++i) values[i] = packed_and_back(packed, values[i]);
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

/// A chain of FP32 sums of one block's columns, from one call of the row functions to the next.
class Chain {
 public:
  /// From the biases of `part`, or from `start`.
  Chain(const SumArgs& part, float start) : part_(part) {
    part_.in_dtype = DType::f32;
    if (part.bias0 == nullptr) std::fill(sums_, sums_ + part.count, start);
    else add(nullptr, 0, DType::f32);
    part_.bias0 = sums_;
    part_.bias1 = nullptr;
    part_.bias_dtype = DType::f32;
  }

  float* sums() { return sums_; }

  void add(const Term* terms, int num_terms, DType dtype) {
    part_.out = sums_;
    part_.out_dtype = DType::f32;
    part_.in_dtype = dtype;
    rows_variant().sum(part_, terms, num_terms);
  }
  /// Those columns of whole rows that begin at `first`.
  void add_rows(const Term* terms, int num_terms, DType dtype, int64_t first) {
    for (int t = 0; t < num_terms; ++t) {
      const auto* row = static_cast<const std::byte*>(terms[t].row) + first * static_cast<int64_t>(size_of(dtype));
      const Term moved{row, terms[t].weight};
      add(&moved, 1, dtype);
    }
  }
  void finish(const SumArgs& part) {
    part_.out = part.out;
    part_.out_dtype = part.out_dtype;
    rows_variant().sum(part_, nullptr, 0);
  }

 private:
  SumArgs part_;
  float sums_[kPackBlock];
};

template <class Block>
void sum_unpacked(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const int64_t first = block * kPackBlock;
  const SumArgs part = columns_of(args, first, args.count - first < kPackBlock ? args.count - first : kPackBlock);
  const OwnTerms& own = args.own;
  Chain chain(part, 0.0f);
  for (int t = 0; t <= num_terms; ++t) {
    if (t == own.first) {
      SumArgs raw = part;
      raw.bias0 = nullptr;
      Chain hits(raw, own.start());
      hits.add_rows(terms + own.first, own.end - own.first, own.dtype, first);
      pack_and_back<Block>(hits.sums(), part.count);
      const Term together{hits.sums(), 1.0f};
      chain.add(&together, 1, DType::f32);
      t = own.end;
    }
    if (t >= num_terms) break;
    float values[kPackBlock];
    unpack_block<Block>(args, block, terms[t].row, values, part.count);
    const Term term{values, terms[t].weight};
    chain.add(&term, 1, DType::f32);
  }
  chain.finish(part);
}

/// The packed sum of a block of rows.
template <class Block>
void pack_sum(const SumArgs& args, const Term* terms, int num_terms, int64_t block) {
  const int64_t first = block * kPackBlock;
  const SumArgs part = columns_of(args, first, args.count - first < kPackBlock ? args.count - first : kPackBlock);
  Chain chain(part, 0.0f);
  chain.add_rows(terms, num_terms, args.in_dtype, first);
  pack_block<Block>(args, block, chain.sums(), part.count);
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
