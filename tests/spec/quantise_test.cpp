#include "spec/quantise.hpp"

#include <bit>
#include <cmath>

#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr float kInf = std::numeric_limits<float>::infinity();

QuantisedRow quantised(Quantise form, const Floats& values) { return quantise_row(form, bf16_bytes(values)); }

float scale(const QuantisedRow& row, int block = 0) { return std::bit_cast<float>(row.scales[block]); }

std::vector<float> values(const QuantisedRow& row) {
  std::vector<float> all;
  for (std::byte value : row.values) all.push_back(to_float(e4m3{std::to_integer<std::uint8_t>(value)}));
  return all;
}

TEST(Quantise, MapsTheLargestTo448) {
  const QuantisedRow row = quantised(Quantise::fp8, {1, -2, 0.5f, 0});
  EXPECT_THAT(values(row), ElementsAre(224, -448, 112, 0));
  EXPECT_EQ(scale(row), 2.0f * (1.0f / 448.0f));
}

// The stored scale is a product with fl(1/448); for a = 13 the quotient a / 448 has another last bit.
TEST(Quantise, ScaleIsAProduct) {
  ASSERT_NE(13.0f * (1.0f / 448.0f), 13.0f / 448.0f);
  EXPECT_EQ(scale(quantised(Quantise::fp8, {13})), 13.0f * (1.0f / 448.0f));
}

// Exact powers stay, anything above goes to the next one.
TEST(Quantise, RoundsScalesUpToPowersOfTwo) {
  for (int j : {-10, 0, 3, 12}) {
    const float exact = std::ldexp(448.0f, j);
    EXPECT_EQ(scale(quantised(Quantise::fp8_pow2, {exact})), std::ldexp(1.0f, j));
    EXPECT_EQ(scale(quantised(Quantise::fp8_pow2, {exact * 1.0625f})), std::ldexp(1.0f, j + 1));
  }
  EXPECT_THAT(values(quantised(Quantise::fp8_pow2, {3, 1})), ElementsAre(384, 128)) << "3 / 448 -> 2^-7";
}

TEST(Quantise, PacksFourExponentsAWord) {
  Floats blocks;
  for (int block = 0; block < 5; ++block) blocks.insert(blocks.end(), 128, std::ldexp(448.0f, block));
  const QuantisedRow row = quantised(Quantise::fp8_ue8m0, blocks);
  EXPECT_THAT(row.scales, ElementsAre(0x8281807F, 0x00000083));
  EXPECT_THAT(values(row), Each(448));
}

// Case 10: H need not be a multiple of 128; the last block looks at its own elements only.
TEST(Quantise, ShortBlockUsesItsOwnValues) {
  Floats row(136, 448.0f);
  for (int i = 128; i < 136; ++i) row[i] = 1;
  const QuantisedRow quantised_row = quantised(Quantise::fp8, row);
  ASSERT_EQ(quantised_row.scales.size(), 2u);
  EXPECT_EQ(scale(quantised_row, 0), 448.0f * (1.0f / 448.0f));
  EXPECT_EQ(scale(quantised_row, 1), 1.0f / 448.0f);
  EXPECT_THAT(values(quantised_row), Each(448));
}

// Case 19: all zero, and so small that the floor of 1e-4 rules.
TEST(Quantise, ScaleHasAFloor) {
  const QuantisedRow zeros = quantised(Quantise::fp8, {0, -0.0f});
  EXPECT_EQ(scale(zeros), 1e-4f * (1.0f / 448.0f));
  EXPECT_THAT(numbers(zeros.values), ElementsAre(0x00, 0x80)) << "a zero keeps its sign";
  EXPECT_EQ(scale(quantised(Quantise::fp8_pow2, {0})), 0x1p-22f);
  EXPECT_THAT(quantised(Quantise::fp8_ue8m0, {0}).scales, ElementsAre(105));
  EXPECT_THAT(values(quantised(Quantise::fp8, {1e-30f})), ElementsAre(0));
}

// Case 19: what is not finite spoils neither the scale nor its neighbours.
TEST(Quantise, KeepsNonFiniteValuesToThemselves) {
  for (Quantise form : {Quantise::fp8, Quantise::fp8_pow2}) {
    const QuantisedRow row = quantised(form, {448, kInf, -kInf, kNan, -kNan, 7});
    EXPECT_EQ(scale(row), 1.0f);
    EXPECT_THAT(numbers(row.values), ElementsAre(0x7E, 0x7E, 0xFE, 0x7F, 0x7F, 0x4E));
  }
  EXPECT_EQ(scale(quantised(Quantise::fp8, {kInf, kNan})), 1e-4f * (1.0f / 448.0f));
}

TEST(Quantise, HugeRowsStayFinite) {
  for (Quantise form : {Quantise::fp8, Quantise::fp8_pow2}) {
    const QuantisedRow row = quantised(form, {3e38f, -3e38f});
    EXPECT_TRUE(std::isfinite(scale(row)));
    EXPECT_NEAR(values(row)[0] * (scale(row) / 3e38f), 1, 0.07);
    EXPECT_EQ(values(row)[0], -values(row)[1]);
  }
}

// Every bf16 value as the largest of its block: within half a step of e4m3, and the sign stays.
TEST(Quantise, ErrorIsBoundedForEveryLargest) {
  for (Quantise form : {Quantise::fp8, Quantise::fp8_pow2}) {
    for (std::uint32_t bits = 1; bits < 0x7F80; ++bits) {
      const float largest = to_float(bf16{static_cast<std::uint16_t>(bits)});
      const QuantisedRow row = quantised(form, {largest, -largest / 3});
      const float third = to_float(to_bf16(-largest / 3));
      ASSERT_NEAR(values(row)[0] * double{scale(row)}, largest, std::max(largest / 16.0, scale(row) / 1024.0));
      ASSERT_NEAR(values(row)[1] * double{scale(row)}, third, std::max(-third / 16.0, scale(row) / 1024.0));
    }
  }
}

}  // namespace
}  // namespace heddle::spec
