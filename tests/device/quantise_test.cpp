// Quantisation against a plain reference of its own: tables and quotients, no shared code (robustness case 19).
#include "device/quantise.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.hpp"
#include "device/coop.hpp"
#include "hard_rows.hpp"

namespace heddle {
namespace {

using testing::element;
using testing::GuardedRow;
using testing::kFloats;
using testing::Kind;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();
constexpr Quantise kModes[] = {Quantise::fp8, Quantise::fp8_pow2, Quantise::fp8_ue8m0};

float table_value(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

uint8_t nearest_code(float value) {
  if (std::isnan(value)) return 0x7F;
  const double magnitude = std::fabs(std::isinf(value) ? 1e30 : double{value});
  int low = 0, high = 0x7E;
  while (high - low > 1) (magnitude < table_value((low + high) / 2) ? high : low) = (low + high) / 2;
  const double above = table_value(high) - magnitude, below = magnitude - table_value(low);
  const int code = above < below || (above == below && high % 2 == 0) ? high : low;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

struct Reference {
  std::vector<uint8_t> q;
  std::vector<float> scales;
};

Reference quantise_plainly(const std::vector<float>& x, Quantise mode) {
  Reference out;
  for (size_t first = 0; first < x.size(); first += 128) {
    const size_t end = std::min(x.size(), first + 128);
    float a = 1e-4f;
    for (size_t i = first; i < end; ++i) a = std::isfinite(x[i]) ? std::max(a, std::fabs(x[i])) : a;
    float scale = a * static_cast<float>(1.0 / 448.0), multiplier = 448.0f / a;
    if (mode != Quantise::fp8) {
      int k = 0;
      while (std::ldexp(1.0f, k) < scale) ++k;
      while (std::ldexp(1.0f, k - 1) >= scale) --k;
      scale = std::ldexp(1.0f, k);
      multiplier = std::ldexp(1.0f, -k);
    }
    out.scales.push_back(scale);
    for (size_t i = first; i < end; ++i) out.q.push_back(nearest_code(x[i] * multiplier));
  }
  return out;
}

struct Quantised {
  GuardedRow q;
  GuardedRow scales;
};

/// x as it stands, from one element into an allocation.
Quantised quantise(const RowsVariant& variant, const GuardedRow& x, DType dtype, Quantise mode) {
  const auto hidden = static_cast<int64_t>(x.size() / size_of(dtype));
  Quantised out{GuardedRow(DType::u8, hidden, 1), GuardedRow(DType::f32, num_scale_words(hidden, mode))};
  quantise_row_with(variant, {.x = x.data(),
                              .x_dtype = dtype,
                              .hidden = hidden,
                              .mode = mode,
                              .q = static_cast<uint8_t*>(out.q.data()),
                              .scales = out.scales.data()});
  return out;
}

void check_row(const GuardedRow& x, DType dtype, Quantise mode) {
  std::vector<float> values(x.size() / size_of(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = element(x.data(), dtype, i);
  const Reference wanted = quantise_plainly(values, mode);
  for (const RowsVariant* variant : runnable_rows_variants()) {
    SCOPED_TRACE(
        fmt::format("{} {} mode {} hidden {}", variant->name, name_of(dtype), static_cast<int>(mode), values.size()));
    const Quantised got = quantise(*variant, x, dtype, mode);
    EXPECT_TRUE(got.q.is_whole() && got.scales.is_whole());
    EXPECT_EQ(std::memcmp(got.q.data(), wanted.q.data(), wanted.q.size()), 0);
    for (size_t block = 0; block < wanted.scales.size(); ++block) {
      EXPECT_EQ(read_scale(got.scales.data(), mode, block), wanted.scales[block]);
    }
  }
}

void check_modes(const std::vector<float>& values, DType dtype = DType::bf16) {
  GuardedRow x(dtype, values.size(), 1);
  for (size_t i = 0; i < values.size(); ++i) testing::set_element(x.data(), dtype, i, values[i]);
  for (Quantise mode : kModes) check_row(x, dtype, mode);
}

TEST(Quantise, CountsScaleWords) {
  EXPECT_EQ(num_scale_words(7168, Quantise::none), 0);
  EXPECT_EQ(num_scale_words(7168, Quantise::fp8), 56);
  EXPECT_EQ(num_scale_words(7168, Quantise::fp8_ue8m0), 14);
  EXPECT_EQ(num_scale_words(7176, Quantise::fp8_pow2), 57);
  EXPECT_EQ(num_scale_words(7176, Quantise::fp8_ue8m0), 15);
  EXPECT_EQ(num_scale_words(8, Quantise::fp8_ue8m0), 1);
}

// Case 10: every hidden size, also those that no dispatch takes; the last block may be short.
TEST(Quantise, EveryHiddenSizeMatchesTheReference) {
  std::mt19937 random(1);
  for (int64_t hidden = 1; hidden <= 1024; hidden += hidden < 16 ? 1 : 8) {
    for (DType dtype : kFloats) {
      GuardedRow x(dtype, hidden, 1);
      testing::fill(x.data(), dtype, hidden, hidden % 16 ? Kind::normal : Kind::any_bits, random);
      check_row(x, dtype, kModes[random() % 3]);
    }
  }
  for (int64_t hidden : {1536, 2880, 7168, 7176}) {
    GuardedRow x(DType::bf16, hidden);
    testing::fill(x.data(), DType::bf16, hidden, Kind::normal, random);
    for (Quantise mode : kModes) check_row(x, DType::bf16, mode);
  }
}

// Every bf16 once as the largest of its block, with smaller ones of all sizes beside it.
TEST(Quantise, EveryLargestValueMatchesTheReference) {
  std::mt19937 random(2);
  std::vector<float> values;
  for (uint32_t code = 0; code < 0x8000; ++code) {
    const float largest = to_float(bf16{static_cast<uint16_t>(code)});
    values.push_back(largest);
    for (int i = 1; i < 128; ++i) values.push_back(std::ldexp(largest, -static_cast<int>(random() % 20)) * 0.93f);
  }
  check_modes(values);
}

struct HardRow {
  const char* name;
  std::function<float(int)> value;
};

const HardRow kHardRows[] = {
    {"all zero", [](int) { return 0.0f; }},
    {"minus zero", [](int) { return -0.0f; }},
    {"one huge", [](int i) { return i == 77 ? 3e38f : 0.01f * i; }},
    {"largest bf16", [](int i) { return i == 3 ? -3.3895e38f : 1.0f; }},
    {"all 1e-30", [](int i) { return i % 2 ? 1e-30f : -1e-30f; }},
    {"subnormal", [](int i) { return float_of(i * 0x10000u); }},
    {"448 and just above", [](int i) { return i % 2 ? 448.0f : -450.0f; }},
    {"inf", [](int i) { return i == 5   ? kInf
                               : i == 6 ? -kInf
                                        : std::sin(i); }},
    {"only inf", [](int) { return -kInf; }},
    {"nan", [](int i) { return i == 9    ? kQuietNan
                               : i == 10 ? -kQuietNan
                                         : std::sin(i); }},
    {"only nan", [](int) { return kQuietNan; }},
    {"inf in one block", [](int i) { return i == 200 ? kInf : 2.0f + i % 7; }},
};

TEST(Quantise, HardRowsMatchTheReference) {
  for (const HardRow& row : kHardRows) {
    SCOPED_TRACE(row.name);
    std::vector<float> values;
    for (int i = 0; i < 392; ++i) values.push_back(row.value(i));
    check_modes(values);
    check_modes(values, DType::f32);
  }
}

// Case 19: what a receiver may rely on, whatever was sent.
TEST(Quantise, HardRowsKeepThePromises) {
  constexpr int kHidden = 392;
  for (const HardRow& row : kHardRows) {
    for (Quantise mode : kModes) {
      SCOPED_TRACE(fmt::format("{}, mode {}", row.name, static_cast<int>(mode)));
      GuardedRow x(DType::bf16, kHidden);
      for (int i = 0; i < kHidden; ++i) testing::set_element(x.data(), DType::bf16, i, row.value(i));
      const Quantised out = quantise(rows_variant(), x, DType::bf16, mode);
      const QuantisedRow sent{static_cast<const uint8_t*>(out.q.data()), out.scales.data(), mode};
      for (int i = 0; i < kHidden; ++i) {
        const float value = element(x.data(), DType::bf16, i), scale = read_scale(sent.scales, mode, i / 128);
        // Not dequantise(): 256 * 2^120, what the largest bf16 becomes with a power-of-two scale, is beyond FP32.
        const double back = double{to_float(e4m3{sent.q[i]})} * scale;
        ASSERT_TRUE(std::isfinite(scale) && scale > 0.0f);
        ASSERT_NE(sent.q[i], 0xFF);
        ASSERT_EQ(std::isnan(back), std::isnan(value));
        if (std::isnan(value)) continue;
        ASSERT_EQ(std::signbit(back), std::signbit(value));
        if (std::isinf(value)) {
          ASSERT_EQ(sent.q[i] & 0x7F, 0x7E);
          continue;
        }
        // The scale and the product are rounded too, hence a little more than the bare 2^-4 and 2^-10.
        const float allowed = std::max(std::fabs(value) * 0x1p-4f, scale * 0x1p-10f) * (1 + 0x1p-20f);
        ASSERT_LE(std::fabs(back - value), allowed) << i << ": " << value << " came back as " << back;
      }
    }
  }
}

TEST(Quantise, DequantiseUndoesIt) {
  std::vector<bf16> x(300, to_bf16(-1.75f));
  std::vector<uint8_t> q(600);  // g++ considers Quantise::none too and would warn of an overrun
  for (Quantise mode : kModes) {
    float scales[3] = {};
    quantise_row(Solo{}, {x.data(), DType::bf16, 300, mode, q.data(), scales});
    for (int64_t i = 0; i < 300; ++i) ASSERT_NEAR(dequantise({q.data(), scales, mode}, i), -1.75f, 1e-6f);
  }
}

TEST(Quantise, ZeroRowHasTheSmallestScale) {
  GuardedRow x(DType::bf16, 128);
  std::memset(x.data(), 0, x.size());
  EXPECT_EQ(*static_cast<const float*>(quantise(rows_variant(), x, DType::bf16, Quantise::fp8).scales.data()),
            1e-4f * float_of(0x3B124925));
  EXPECT_EQ(*static_cast<const uint32_t*>(quantise(rows_variant(), x, DType::bf16, Quantise::fp8_ue8m0).scales.data()),
            105u);
}

// Word w holds blocks 4w to 4w + 3, lowest byte first; bytes of no block are 0.
TEST(Quantise, PacksExponentsLowestByteFirst) {
  std::vector<bf16> x(5 * 128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(448.0f * std::ldexp(1.0f, static_cast<int>(i / 128)));
  std::vector<uint8_t> q(x.size());
  uint32_t words[2] = {~0u, ~0u};
  quantise_row(Solo{}, {x.data(), DType::bf16, 5 * 128, Quantise::fp8_ue8m0, q.data(), words});
  EXPECT_EQ(words[0], 0x8281807Fu);
  EXPECT_EQ(words[1], 0x00000083u);
}

TEST(Quantise, NoneCopiesTheBytes) {
  const std::vector<uint16_t> x = {1, 0xFFFF, 3};
  std::vector<uint8_t> q(6);
  quantise_row(Solo{}, {x.data(), DType::bf16, 3, Quantise::none, q.data(), nullptr});
  EXPECT_EQ(std::memcmp(q.data(), x.data(), 6), 0);
}

TEST(Quantise, RefusesOtherTypesAndModes) {
  uint8_t q[8] = {}, x[8] = {};
  float scale = 0;
  EXPECT_THROW(quantise_row(Solo{}, {x, DType::i64, 1, Quantise::fp8, q, &scale}), Error);
  EXPECT_THROW(quantise_row(Solo{}, {x, DType::bf16, 1, static_cast<Quantise>(9), q, &scale}), Error);
}

}  // namespace
}  // namespace heddle
