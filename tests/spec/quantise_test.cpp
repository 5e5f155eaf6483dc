#include "spec/quantise.hpp"

#include "device/coop.hpp"
#include "device/quantise.hpp"

#include <bit>
#include <cmath>
#include <cstring>

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

TEST(Quantise, OneScaleForTheRow) {
  Floats row(300, 1);
  row[299] = -7;
  const QuantisedRow quantised_row = quantised(Quantise::fp8_row, row);
  ASSERT_EQ(quantised_row.scales.size(), 1u);
  EXPECT_EQ(scale(quantised_row), 7.0f * (1.0f / 448.0f));
  EXPECT_EQ(values(quantised_row)[0], 64);
  EXPECT_EQ(values(quantised_row)[299], -448);
}

TEST(Quantise, MxHasAnExponentFor32Channels) {
  Floats row(32, 448.0f);
  row.resize(72, 449.0f);  // bf16 has 448 and 450
  row[40] = 450.0f;
  const QuantisedRow quantised_row = quantised(Quantise::mxfp8, row);
  EXPECT_THAT(quantised_row.scales, ElementsAre(127 | 128 << 8 | 127 << 16)) << "the last block is short";
  EXPECT_EQ(values(quantised_row)[0], 448);
  EXPECT_EQ(values(quantised_row)[40], 224) << "450 / 2 is nearer to 224 than to 240";
  EXPECT_THAT(quantised(Quantise::mxfp8, {0, -0.0f}).scales, ElementsAre(0)) << "2^-127";
  EXPECT_THAT(numbers(quantised(Quantise::mxfp8, {0, -0.0f}).values), ElementsAre(0x00, 0x80));
}

TEST(Quantise, Nvfp4IsRelativeToTheGlobalScale) {
  Floats row(16, 3);
  row[0] = 6;
  row[3] = -0.5f;
  row.resize(32, 24);
  const QuantisedRow plain = quantised(Quantise::nvfp4, row);
  EXPECT_THAT(plain.scales, ElementsAre(0x38 | 0x48 << 8)) << "1 and 4 as e4m3";
  EXPECT_EQ(std::to_integer<int>(plain.values[0]), 0x57) << "6 and 3";
  EXPECT_EQ(std::to_integer<int>(plain.values[1]), 0x95) << "3 and -0.5";
  EXPECT_EQ(std::to_integer<int>(plain.values[8]), 0x77);
  const QuantisedRow scaled = quantise_row(Quantise::nvfp4, bf16_bytes(row), 8.0f);
  EXPECT_EQ(scaled.values, plain.values);
  EXPECT_THAT(scaled.scales, ElementsAre(0x50 | 0x60 << 8)) << "8 and 32";
}

TEST(Quantise, Nvfp4MarksBlocksThatAreNotFinite) {
  for (float hard : {kInf, -kInf, kNan}) {
    Floats row(32, 1);
    row[20] = hard;
    EXPECT_THAT(quantised(Quantise::nvfp4, row).scales, ElementsAre(0x23 | 0x7F << 8));
  }
  const QuantisedRow zeros = quantised(Quantise::nvfp4, {0, -0.0f, 0});
  EXPECT_THAT(zeros.scales, ElementsAre(0));
  EXPECT_THAT(numbers(zeros.values), ElementsAre(0x80, 0x00));
}

constexpr ::heddle::Quantise kForms[] = {::heddle::Quantise::fp8,       ::heddle::Quantise::fp8_pow2,
                                         ::heddle::Quantise::fp8_ue8m0, ::heddle::Quantise::fp8_row,
                                         ::heddle::Quantise::mxfp8,     ::heddle::Quantise::nvfp4};

void expect_same_as_the_device(::heddle::Quantise form, const Floats& row, float global) {
  const Bytes bytes = bf16_bytes(row);
  const auto hidden = static_cast<int64_t>(row.size());
  std::vector<uint8_t> q(static_cast<size_t>(quantised_bytes(hidden, form)));
  std::vector<uint32_t> scales(static_cast<size_t>(num_scale_words(hidden, form)));
  ::heddle::quantise_row(Solo{}, {.x = bytes.data(), .x_dtype = DType::bf16, .hidden = hidden, .mode = form, .q = q.data(),
                                  .scales = scales.data(), .global_scale = &global});
  const QuantisedRow wanted = quantise_row(static_cast<Quantise>(form), bytes, global);
  ASSERT_EQ(std::memcmp(q.data(), wanted.values.data(), q.size()), 0) << "form " << static_cast<int>(form);
  ASSERT_EQ(scales, wanted.scales) << "form " << static_cast<int>(form);
}

// What src/device makes of a row is what is said here: every bf16 value in rows of all values, and as a block's largest.
TEST(Quantise, TheDevicesAreTheseBitByBit) {
  Floats all, falling;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    all.push_back(to_float(bf16{static_cast<std::uint16_t>(bits)}));
    falling.push_back(bits % 16 == 0 ? to_float(bf16{static_cast<std::uint16_t>(bits)})
                                     : falling.back() * (bits % 3 == 0 ? -0.7f : 0.9f));
  }
  for (::heddle::Quantise form : kForms) {
    for (float global : {1.0f, 448.0f * 6 / 37, 1e-3f}) {
      ASSERT_NO_FATAL_FAILURE(expect_same_as_the_device(form, all, global));
      ASSERT_NO_FATAL_FAILURE(expect_same_as_the_device(form, falling, global));
      ASSERT_NO_FATAL_FAILURE(expect_same_as_the_device(form, Floats(falling.begin(), falling.begin() + 1000), global));
    }
  }
}

}  // namespace
}  // namespace heddle::spec
