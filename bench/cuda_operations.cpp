#include "cuda_operations.hpp"

#include <cstring>
#include <random>

#include "support/routing.hpp"

namespace heddle::bench {
namespace {

/// Finite in bf16, whatever the word.
uint64_t finite_words(uint64_t word) { return word & 0xBF7FBF7FBF7FBF7Full; }

void fill(spec::Bytes& rows, uint64_t seed) {
  std::mt19937_64 engine(seed);
  for (size_t i = 0; i + 8 <= rows.size(); i += 8) {
    const uint64_t words = finite_words(engine());
    std::memcpy(&rows[i], &words, 8);
  }
}

}  // namespace

std::vector<Operation> operations(int tokens) {
  using testing::DispatchCase;
  const DispatchCase token_major{.max_tokens = tokens, .fixed_size = true};
  const DispatchCase expert_major{.layout = Layout::expert_major, .max_tokens = tokens, .fixed_size = true};
  const auto fp8 = [](DispatchCase bf16) {
    bf16.dtype = DType::e4m3;
    return bf16;
  };
  return {{"fp8 dispatch token-major", fp8(token_major)},      {"fp8 dispatch expert-major", fp8(expert_major)},
          {"bf16 dispatch token-major", token_major},          {"bf16 dispatch expert-major", expert_major},
          {"bf16 combine token-major", token_major, true},     {"bf16 combine expert-major", expert_major, true}};
}

spec::World make_rows(const Batches& batches, DType dtype) {
  spec::World world = testing::make_world({.routing = batches.routing, .ranks = batches.ranks,
                                           .tokens = batches.tokens, .topk = batches.topk,
                                           .experts = batches.experts, .hidden = 1});
  world.hidden = batches.hidden;
  world.row_bytes = batches.hidden * static_cast<int>(size_of(dtype));
  world.scale_words = dtype == DType::e4m3 ? batches.hidden / 128 : 0;
  uint64_t seed = 1;
  for (spec::Batch& batch : world.batches) {
    batch.rows.resize(static_cast<size_t>(batch.tokens) * static_cast<size_t>(world.row_bytes));
    fill(batch.rows, ++seed);
    batch.scales.assign(static_cast<size_t>(batch.tokens) * static_cast<size_t>(world.scale_words), 0x3C000000u);
  }
  return world;
}

double wire_bytes(const spec::World& world, int rank, const Operation& operation) {
  double rows = 0;
  for (int other = 0; other < world.ranks; ++other) {
    // A combine sends back what the others' dispatches brought.
    const int source = operation.is_combine ? other : rank;
    const int owner = operation.is_combine ? rank : other;
    if (other == rank) continue;
    const spec::Batch& batch = world.batches[static_cast<size_t>(source)];
    for (int token = 0; token < batch.tokens; ++token) rows += reaches(world, batch, token, owner);
  }
  return rows * (world.row_bytes + 4.0 * world.scale_words);
}

}  // namespace heddle::bench
