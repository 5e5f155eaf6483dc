// Sums of rows: every variant of the host against a plain loop with std::fma, bit by bit (I8; robustness case 23).
#include "device/rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "device/coop.hpp"
#include "hard_rows.hpp"

namespace heddle {
namespace {

using testing::element;
using testing::GuardedRow;
using testing::kFloats;
using testing::Kind;

/// The meaning, column by column.
void sum_plainly(const SumArgs& args, const std::vector<Term>& terms) {
  for (int64_t i = 0; i < args.count; ++i) {
    float sum = 0.0f;
    if (args.bias0 != nullptr) sum = element(args.bias0, args.bias_dtype, i);
    if (args.bias0 != nullptr && args.bias1 != nullptr) sum += element(args.bias1, args.bias_dtype, i);
    for (const Term& term : terms) sum = std::fma(term.weight, element(term.row, args.in_dtype, i), sum);
    testing::set_element(args.out, args.out_dtype, i, sum);
  }
}

struct Case {
  DType in;
  DType out;
  DType bias;
  int64_t count;
  int num_terms;
  int num_biases;
  Kind kind;
};

/// Odd terms are skewed by one element, so that vectors straddle every alignment.
void check_case(const RowsVariant& variant, const Case& test, std::mt19937& random) {
  std::vector<GuardedRow> rows;
  std::vector<Term> terms;
  const float weights[] = {1.0f, 0.3f, -1.7f, 1.0f, 0x1p-130f, -0.0f, 3e38f, 1e-3f};
  for (int t = 0; t < test.num_terms; ++t) {
    rows.emplace_back(test.in, test.count, t % 2);
    testing::fill(rows.back().data(), test.in, test.count, test.kind, random);
  }
  for (int t = 0; t < test.num_terms; ++t) terms.push_back({rows[t].data(), weights[random() % 8]});
  std::vector<GuardedRow> biases(2, GuardedRow(test.bias, test.count, 1));
  for (GuardedRow& bias : biases) testing::fill(bias.data(), test.bias, test.count, test.kind, random);
  GuardedRow wanted(test.out, test.count, 1), got(test.out, test.count, 1);
  SumArgs args{.out = wanted.data(),
               .out_dtype = test.out,
               .in_dtype = test.in,
               .bias0 = test.num_biases > 0 ? biases[0].data() : nullptr,
               .bias1 = test.num_biases > 1 ? biases[1].data() : nullptr,
               .bias_dtype = test.bias,
               .count = test.count};
  sum_plainly(args, terms);
  args.out = got.data();
  variant.sum(args, terms.data(), test.num_terms);
  EXPECT_TRUE(got.is_whole());
  EXPECT_EQ(std::memcmp(got.data(), wanted.data(), got.size()), 0)
      << variant.name << ": " << name_of(test.in) << " -> " << name_of(test.out) << ", bias " << name_of(test.bias)
      << " x " << test.num_biases << ", " << test.num_terms << " terms, " << test.count << " columns";
}

class EveryVariant : public ::testing::TestWithParam<const RowsVariant*> {};

TEST_P(EveryVariant, SumsAsThePlainLoopDoes) {
  std::mt19937 random(1);
  for (DType in : kFloats) {
    for (DType out : kFloats) {
      for (Kind kind : {Kind::normal, Kind::any_bits}) {
        for (int num_terms : {0, 1, 2, 3, 8}) {
          for (int64_t count : {1, 15, 200, 1023}) {
            const DType bias = kFloats[random() % 3];
            check_case(*GetParam(), {in, out, bias, count, num_terms, static_cast<int>(random() % 3), kind}, random);
          }
        }
      }
    }
  }
}

TEST_P(EveryVariant, SumsEveryCountOfColumns) {
  std::mt19937 random(2);
  for (int64_t count = 0; count < 300; ++count) {
    check_case(*GetParam(), {DType::bf16, DType::bf16, DType::f32, count, 3, 1, Kind::normal}, random);
  }
}

TEST_P(EveryVariant, SumsManyTerms) {
  std::mt19937 random(3);
  for (Kind kind : {Kind::normal, Kind::any_bits}) {
    check_case(*GetParam(), {DType::bf16, DType::f32, DType::f32, 7168, 64, 0, kind}, random);
    check_case(*GetParam(), {DType::bf16, DType::bf16, DType::bf16, 264, 1000, 2, kind}, random);
  }
}

// A product and a sum that are each rounded, or rounded by way of double, differ from fma in a few of a million of these:
// the accumulator lies within a few places of half a step of the product.
TEST_P(EveryVariant, RoundsAProductAndItsSumOnce) {
  std::mt19937 random(4);
  constexpr int64_t kColumns = 4096;
  std::vector<float> row(kColumns), bias(kColumns), wanted(kColumns), got(kColumns);
  for (int round = 0; round < 200; ++round) {
    const float weight = std::ldexp(static_cast<float>(random() % 0x1000000 | 1), round % 3 == 0 ? -150 : -24);
    for (int64_t i = 0; i < kColumns; ++i) {
      row[i] = std::ldexp(static_cast<float>(random() % 0x1000000 | 1), -24) * (random() % 2 ? 1.0f : -1.0f);
      const int away = static_cast<int>(random() % 60) - 30;
      const uint32_t mantissa = random() % 4 == 0 ? 0x800000u : random() % 0x1000000;
      bias[i] =
          std::ldexp(static_cast<float>(mantissa), std::ilogb(weight) - 24 + away) * (random() % 2 ? 1.0f : -1.0f);
      wanted[i] = std::fma(weight, row[i], bias[i]);
    }
    const Term term{row.data(), weight};
    const SumArgs args{.out = got.data(),
                       .out_dtype = DType::f32,
                       .in_dtype = DType::f32,
                       .bias0 = bias.data(),
                       .bias1 = nullptr,
                       .bias_dtype = DType::f32,
                       .count = kColumns};
    GetParam()->sum(args, &term, 1);
    ASSERT_EQ(std::memcmp(got.data(), wanted.data(), kColumns * sizeof(float)), 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, EveryVariant, ::testing::ValuesIn(runnable_rows_variants()),
                         [](const auto& variant) { return variant.param->name; });

SumArgs bf16_sum(std::vector<bf16>& out) {
  return {.out = out.data(),
          .out_dtype = DType::bf16,
          .in_dtype = DType::bf16,
          .bias0 = nullptr,
          .bias1 = nullptr,
          .bias_dtype = DType::bf16,
          .count = static_cast<int64_t>(out.size())};
}

// 2^30 swallows a 1 that is added to it, so the result tells the order.
TEST(Rows, SumInTheOrderOfTerms) {
  const std::vector<bf16> big(8, to_bf16(0x1p30f)), one(8, to_bf16(1.0f));
  std::vector<bf16> out(8);
  const Term one_last[] = {{big.data(), 1.0f}, {big.data(), -1.0f}, {one.data(), 1.0f}};
  sum_rows(Solo{}, bf16_sum(out), one_last, 3);
  EXPECT_EQ(to_float(out[0]), 1.0f);
  const Term one_between[] = {{big.data(), 1.0f}, {one.data(), 1.0f}, {big.data(), -1.0f}};
  sum_rows(Solo{}, bf16_sum(out), one_between, 3);
  EXPECT_EQ(to_float(out[0]), 0.0f);
}

// The chain starts from +0 and +0 + -0 is +0; a cast has no chain and keeps the sign.
TEST(Rows, MinusZeroSumsToZeroAndCastsToItself) {
  const std::vector<bf16> minus_zero(8, bf16{0x8000});
  std::vector<bf16> out(8, bf16{0xAAAA});
  const Term term{minus_zero.data(), 1.0f};
  sum_rows(Solo{}, bf16_sum(out), &term, 1);
  EXPECT_EQ(out[3].bits, 0);
  std::vector<float> wide(8);
  cast_row(Solo{}, {wide.data(), DType::f32, minus_zero.data(), DType::bf16, 8});
  EXPECT_EQ(bits_of(wide[3]), 0x80000000u);
}

TEST(Rows, NoTermsGiveZeroOrTheBiases) {
  std::vector<bf16> out(5, bf16{0xAAAA});
  sum_rows(Solo{}, bf16_sum(out), nullptr, 0);
  for (bf16 value : out) EXPECT_EQ(value.bits, 0);
  const std::vector<bf16> one(5, to_bf16(1.0f)), two(5, to_bf16(2.0f));
  SumArgs args = bf16_sum(out);
  args.bias0 = one.data();
  args.bias1 = two.data();
  sum_rows(Solo{}, args, nullptr, 0);
  for (bf16 value : out) EXPECT_EQ(to_float(value), 3.0f);
}

TEST(Rows, SumInPlace) {
  std::vector<bf16> row(1000, to_bf16(1.5f)), other(1000, to_bf16(2.0f));
  const Term terms[] = {{row.data(), 2.0f}, {other.data(), 1.0f}};
  sum_rows(Solo{}, bf16_sum(row), terms, 2);
  for (bf16 value : row) ASSERT_EQ(to_float(value), 5.0f);
}

// Case 23: eight terms that nearly cancel, against FP64. One BF16 rounding, and FP32's own error of eight steps.
TEST(Rows, CancellingTermsStayNearFp64) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  constexpr int kTerms = 8, kColumns = 4096;
  std::vector<std::vector<bf16>> rows(kTerms, std::vector<bf16>(kColumns));
  std::vector<Term> terms;
  std::vector<double> exact(kColumns), size(kColumns);
  for (int t = 0; t < kTerms; ++t) {
    const float weight = t % 2 ? -0.25f : 0.25f;
    for (int i = 0; i < kColumns; ++i) {
      const float near = t % 2 ? to_float(rows[t - 1][i]) * (1 + 0.01f * normal(random)) : 100 * normal(random);
      rows[t][i] = to_bf16(near);
      exact[i] += double{weight} * to_float(rows[t][i]);
      size[i] += std::fabs(double{weight} * to_float(rows[t][i]));
    }
    terms.push_back({rows[t].data(), weight});
  }
  std::vector<bf16> out(kColumns);
  sum_rows(Solo{}, bf16_sum(out), terms.data(), kTerms);
  for (int i = 0; i < kColumns; ++i) {
    const double allowed = std::fabs(exact[i]) * 0x1p-8 + kTerms * size[i] * 0x1p-24;
    ASSERT_LE(std::fabs(to_float(out[i]) - exact[i]), allowed) << i;
  }
}

TEST(Rows, RefuseOtherTypes) {
  std::vector<bf16> out(8);
  SumArgs args = bf16_sum(out);
  args.in_dtype = DType::i32;
  try {
    sum_rows(Solo{}, args, nullptr, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_STREQ(error.what(), "sum_rows: in_dtype is int32; legal: float32, bfloat16, float16");
  }
}

TEST(RowsVariant, BaselineIsAlwaysThereAndTheChosenIsOneOfThem) {
  const auto runnable = runnable_rows_variants();
  EXPECT_STREQ(runnable.front()->name, "baseline");
  EXPECT_NE(std::find(runnable.begin(), runnable.end(), &rows_variant()), runnable.end());
}

// In a process of its own: the choice is made once.
TEST(RowsVariantDeathTest, EnvironmentChoosesAndRefuses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto name_with = [](const char* wanted) {
    setenv("HEDDLE_SIMD", wanted, 1);
    try {
      fmt::print(stderr, "chose {}\n", rows_variant().name);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
    }
    std::exit(0);
  };
  EXPECT_EXIT(name_with("baseline"), ::testing::ExitedWithCode(0), "chose baseline");
  EXPECT_EXIT(name_with("sse9"), ::testing::ExitedWithCode(0), "HEDDLE_SIMD is 'sse9'; this CPU runs: baseline");
}

}  // namespace
}  // namespace heddle
