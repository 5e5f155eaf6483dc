#include "spec/combine.hpp"

#include <cmath>

#include "base/error.hpp"
#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr CombineOptions kFloat{.in_dtype = DType::f32, .wire_dtype = DType::f32, .out_dtype = DType::f32};

CombineOptions weighted(CombineOptions options) {
  options.weighted = true;
  return options;
}

CombineOptions unreduced(CombineOptions options) {
  options.unreduced = true;
  return options;
}

/// One value a row, in row order, by rank.
std::vector<Bytes> f32_outputs(const std::vector<Floats>& values) {
  std::vector<Bytes> outputs;
  for (const Floats& rows : values) outputs.push_back(bytes_of(rows));
  return outputs;
}

std::vector<Bytes> bf16_outputs(const std::vector<Floats>& values) {
  std::vector<Bytes> outputs;
  for (const Floats& rows : values) outputs.push_back(bf16_bytes(rows));
  return outputs;
}

// Rows at rank 0: tokens 0, 2 of rank 0, token 2 of rank 1. At rank 1: tokens 0, 1 of rank 0, tokens 0, 2 of rank 1.
TEST(Combine, TokenMajorAddsRanks) {
  const auto received = dispatch(two_ranks(), {});
  const auto combined = combine(two_ranks(), received, f32_outputs({{1, 2, 3}, {10, 20, 30, 40}}), kFloat);
  EXPECT_THAT(f32_values(combined[0].x), ElementsAre(11, 20, 2));
  EXPECT_THAT(f32_values(combined[1].x), ElementsAre(30, 0, 43)) << "a token of no choice combines to zero";
  EXPECT_THAT(combined[0].status, Each(Status::arrived));
}

// Rows (source, token) at rank 0: expert 0: (0,0) (0,2) (1,2), expert 1: (0,2).
// At rank 1: expert 2: (0,0) (1,0), expert 3: (0,1) (1,0) (1,2).
TEST(Combine, ExpertMajorAddsHitsWithOrWithoutWeights) {
  const auto received = dispatch(two_ranks(), {.layout = Layout::expert_major});
  const auto outputs = f32_outputs({{1, 2, 3, 4}, {10, 20, 30, 40, 50}});
  const auto plain = combine(two_ranks(), received, outputs, kFloat);
  EXPECT_THAT(f32_values(plain[0].x), ElementsAre(11, 30, 6));
  EXPECT_THAT(f32_values(plain[1].x), ElementsAre(60, 0, 53));
  for (const CombineOptions& options : {weighted(kFloat), unreduced(weighted(kFloat))}) {
    const auto combined = combine(two_ranks(), received, outputs, options);
    EXPECT_THAT(f32_values(combined[0].x), ElementsAre(1 * 1 + 2 * 10, 3 * 30, 4 * 4 + 5 * 2));
    EXPECT_THAT(f32_values(combined[1].x), ElementsAre(6 * 20 + 7 * 40, 0, 8 * 3 + 9 * 50));
  }
}

TEST(Combine, LateWeightsReplaceThoseOfTheDispatch) {
  World world = two_ranks();
  const auto received = dispatch(world, {.layout = Layout::slab, .max_tokens = 3});
  std::vector<Bytes> outputs;
  for (const Received& at : received) outputs.push_back(bytes_of(Floats(at.rows, 1.0f)));
  CombineOptions options = weighted(kFloat);
  options.weights = {{10, 20, 30, kNan, 40, 50}, {60, 70, kNan, kNan, 80, 90}};
  const auto combined = combine(world, received, outputs, options);
  EXPECT_THAT(f32_values(combined[0].x), ElementsAre(30, 30, 90));
  EXPECT_THAT(f32_values(combined[1].x), ElementsAre(130, 0, 170));
}

// Case 25: (a + b) * y, not a * y + b * y. Here a + b rounds to 1, while 3 * 2^-24 would have moved 3 by a bit.
TEST(Combine, WeightsOfARepeatedExpertAreAddedFirst) {
  const World world = tiny_world(8, 4, {{3, 3, 7, -1}, {}}, {{1, 0x1p-24f, 4, kNan}, {}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  for (const CombineOptions& options : {weighted(kFloat), unreduced(weighted(kFloat))}) {
    const auto combined = combine(world, received, f32_outputs({{3}, {0}}), options);
    EXPECT_THAT(f32_values(combined[0].x), ElementsAre(3));
  }
}

// I8. 257 lies half way between the bf16 neighbours 256 and 258, and goes to 256 as often as it is rounded.
TEST(Combine, RoundsOncePerRankAndOnceAtTheEnd) {
  const World world = tiny_world(4, 3, {{0, 1, 2}, {}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  const auto outputs = bf16_outputs({{256, 1}, {1}});
  const auto value = [&](const CombineOptions& options) {
    return bf16_values(combine(world, received, outputs, options)[0].x)[0];
  };
  EXPECT_EQ(value({}), 256) << "256 + 1 -> 256 on rank 0, then 256 + 1 -> 256";
  EXPECT_EQ(value({.wire_dtype = DType::f32}), 258);
  EXPECT_EQ(value({.unreduced = true}), 258);
}

// The source's own part is no exception, or results would depend on where a token lives.
TEST(Combine, RoundsItsOwnPartToo) {
  const World world = tiny_world(2, 2, {{0, 1}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  CombineOptions options;
  options.biases = {{bf16_bytes({1})}};
  const auto combined = combine(world, received, bf16_outputs({{256, 1}}), options);
  EXPECT_EQ(bf16_values(combined[0].x)[0], 256) << "1 + bf16(257), not 1 + 257";
}

// 2^24 + 1 is 2^24 in f32, but 1 + 1 + 2^24 is not.
TEST(Combine, AddsRanksAscending) {
  const World world = tiny_world(3, 3, {{2, 1, 0}, {}, {}});
  const auto received = dispatch(world, {});
  EXPECT_EQ(f32_values(combine(world, received, f32_outputs({{1}, {1}, {0x1p24f}}), kFloat)[0].x)[0], 0x1p24f + 2);
  EXPECT_EQ(f32_values(combine(world, received, f32_outputs({{0x1p24f}, {1}, {1}}), kFloat)[0].x)[0], 0x1p24f);
}

// Unreduced rows follow the columns instead: ids {2, 1, 0} put rank 2's row first.
TEST(Combine, AddsUnreducedRowsByColumn) {
  const World world = tiny_world(3, 3, {{2, 1, 0}, {}, {}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  const auto outputs = f32_outputs({{1}, {1}, {0x1p24f}});
  EXPECT_EQ(f32_values(combine(world, received, outputs, unreduced(kFloat))[0].x)[0], 0x1p24f);
}

// Within a rank hits follow the columns, not the experts: ids {1, 0, 2} on one rank start with expert 1.
TEST(Combine, AddsLocalHitsByColumn) {
  const World world = tiny_world(3, 3, {{1, 0, 2}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  EXPECT_EQ(f32_values(combine(world, received, f32_outputs({{1, 0x1p24f, 1}}), kFloat)[0].x)[0], 0x1p24f);
  EXPECT_EQ(f32_values(combine(world, received, f32_outputs({{1, 1, 0x1p24f}}), kFloat)[0].x)[0], 0x1p24f + 2);
}

// (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 if the product is not rounded, else 0.
TEST(Combine, MultipliesAndAddsWithOneRounding) {
  const World world = tiny_world(2, 2, {{0, 1}}, {{1, 1 + 0x1p-12f}});
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  const auto outputs = f32_outputs({{-(1 + 0x1p-11f), 1 + 0x1p-12f}});
  EXPECT_EQ(f32_values(combine(world, received, outputs, weighted(kFloat))[0].x)[0], 0x1p-24f);
}

// bias0 + bias1 is added in f32 before the first row.
TEST(Combine, StartsFromTheBiases) {
  const World world = tiny_world(2, 1, {{0, -1}, {}});
  const auto received = dispatch(world, {});
  CombineOptions options = kFloat;
  options.biases = {{bytes_of(Floats{0x1p24f, 5}), bytes_of(Floats{1, 6})}, {}};
  const auto combined = combine(world, received, f32_outputs({{1}, {}}), options);
  EXPECT_THAT(f32_values(combined[0].x), ElementsAre(0x1p24f, 11));
}

TEST(Combine, NegativeZeroBecomesZero) {
  const World world = tiny_world(1, 1, {{0}});
  const auto combined = combine(world, dispatch(world, {}), f32_outputs({{-0.0f}}), kFloat);
  EXPECT_FALSE(std::signbit(f32_values(combined[0].x)[0]));
}

TEST(Combine, CastsRowsToTheWireThenToTheOutput) {
  const World world = tiny_world(2, 2, {{0, 1}, {}});
  const auto received = dispatch(world, {});
  CombineOptions options{.in_dtype = DType::f32, .wire_dtype = DType::bf16, .out_dtype = DType::bf16};
  EXPECT_EQ(bf16_values(combine(world, received, f32_outputs({{257}, {1}}), options)[0].x)[0], 256);
  options.wire_dtype = DType::f32;
  EXPECT_EQ(bf16_values(combine(world, received, f32_outputs({{257}, {1}}), options)[0].x)[0], 258);
}

// I10: masked at the dispatch or masked now is the same, at either end, and the result says so.
TEST(Combine, MaskedOwnersAreAbsent) {
  const World world = two_ranks();
  const Mask mask{{false, false}, {true, false}};
  const auto before = dispatch(world, {}, mask);
  const auto then = combine(world, before, f32_outputs({{1, 2}, {30, 40}}), kFloat);
  const auto now = combine(world, dispatch(world, {}), f32_outputs({{1, 2, 3}, {10, 20, 30, 40}}), kFloat, mask);
  for (const auto& combined : {then, now}) {
    EXPECT_THAT(f32_values(combined[0].x), ElementsAre(1, 0, 2));
    EXPECT_THAT(combined[0].status, ElementsAre(Status::arrived, Status::masked));
    EXPECT_THAT(f32_values(combined[1].x), ElementsAre(30, 0, 40));
    EXPECT_THAT(combined[1].status, ElementsAre(Status::masked, Status::arrived));
  }
}

TEST(Combine, DroppedRowsAreAbsent) {
  const World world = two_ranks();
  const auto tokens = dispatch(world, {.capacity = 2});
  const auto by_token = combine(world, tokens, f32_outputs({{1, 2}, {10, 20}}), kFloat);
  EXPECT_THAT(f32_values(by_token[0].x), ElementsAre(11, 20, 2));
  EXPECT_THAT(f32_values(by_token[1].x), ElementsAre(0, 0, 0));
  const auto experts = dispatch(world, {.layout = Layout::expert_major, .capacity = 3});
  const auto by_expert = combine(world, experts, f32_outputs({{1, 2, 3}, {10, 20, 30}}), kFloat);
  EXPECT_THAT(f32_values(by_expert[0].x), ElementsAre(11, 30, 2))
      << "expert 1's row of token 2 is lost, expert 0's not";
  EXPECT_THAT(f32_values(by_expert[1].x), ElementsAre(20, 0, 3));
}

// The gradient of the weights goes back by column; a -1 column has none.
TEST(Combine, ReturnsRowWeightsTokenMajor) {
  const World world = two_ranks();
  CombineOptions options = kFloat;
  options.row_weights = {{1, kNan, 2, 3, 4, kNan}, {kNan, 5, 6, kNan, 7, 8, kNan, 9}};
  const auto combined = combine(world, dispatch(world, {}), f32_outputs({Floats(3), Floats(4)}), options);
  EXPECT_THAT(combined[0].weights, ElementsAre(1, 5, 6, 0, 2, 3));
  EXPECT_THAT(combined[1].weights, ElementsAre(7, 8, 0, 0, 4, 9));
}

TEST(Combine, ReturnsTheRowsWeightToEveryColumnOfARepeatedExpert) {
  const World world = tiny_world(8, 4, {{3, 3, 7, -1}, {}});
  CombineOptions options = kFloat;
  options.row_weights = {{5}, {6}};
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  EXPECT_THAT(combine(world, received, f32_outputs({{0}, {0}}), options)[0].weights, ElementsAre(5, 5, 6, 0));
}

TEST(Combine, RefusesOptionsThatDoNotFit) {
  const World world = tiny_world(1, 1, {{0}});
  const auto received = dispatch(world, {});
  EXPECT_THROW(combine(world, received, f32_outputs({{1}}), weighted(kFloat)), Error);
  EXPECT_THROW(combine(world, received, f32_outputs({{1}}), unreduced(kFloat)), Error);
  EXPECT_THROW(combine(world, received, f32_outputs({{1, 2}}), kFloat), Error) << "one row too many";
  EXPECT_THROW(combine(world, received, f32_outputs({{1}}), {.in_dtype = DType::f32, .wire_dtype = DType::f16}), Error);
}

}  // namespace
}  // namespace heddle::spec
