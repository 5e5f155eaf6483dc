// Quantisation against a plain reference of its own: tables and quotients, no shared code (robustness case 19).
#include "device/quantise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
constexpr Quantise kModes[] = {Quantise::fp8,     Quantise::fp8_pow2, Quantise::fp8_ue8m0,
                              Quantise::fp8_row, Quantise::mxfp8,    Quantise::nvfp4};
constexpr float kGlobal = 2.5f;  // nvfp4's

size_t block_of(Quantise mode, size_t hidden) {
  if (mode == Quantise::fp8_row) return hidden;
  return mode == Quantise::mxfp8 ? 32 : mode == Quantise::nvfp4 ? 16 : 128;
}

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

uint8_t nearest_e2m1(float value) {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  if (std::isnan(value)) return 7;
  const float magnitude = std::min(std::fabs(value), 6.0f);
  int nearest = 0;
  for (int code = 1; code < 8; ++code) {
    const double before = std::fabs(double{kValues[nearest]} - magnitude), now = std::fabs(double{kValues[code]} - magnitude);
    if (now < before || (now == before && code % 2 == 0)) nearest = code;
  }
  return static_cast<uint8_t>(nearest | (std::signbit(value) ? 8 : 0));
}

struct Reference {
  std::vector<uint8_t> q;
  std::vector<float> scales;

  void add(float value, Quantise mode, size_t i) {
    if (mode != Quantise::nvfp4) q.push_back(nearest_code(value));
    else if (i % 2 == 0) q.push_back(nearest_e2m1(value));
    else q.back() = static_cast<uint8_t>(q.back() | nearest_e2m1(value) << 4);
  }
};

/// Scale and multiplier.
std::pair<float, float> plain_scale(Quantise mode, float a, bool all_finite) {
  if (mode == Quantise::nvfp4) {
    if (!all_finite) return {kQuietNan, 0.0f};
    const float scale = table_value(nearest_code(kGlobal * (a * static_cast<float>(1.0 / 6.0))));
    return {scale, scale == 0 ? 0 : kGlobal / scale};
  }
  const float scale = a * static_cast<float>(1.0 / 448.0);
  if (mode == Quantise::fp8 || mode == Quantise::fp8_row) return {scale, 448.0f / a};
  int k = -127;
  while (std::ldexp(1.0, k) < double{scale}) ++k;
  return {std::ldexp(1.0f, k), std::ldexp(1.0f, -k)};
}

Reference quantise_plainly(const std::vector<float>& x, Quantise mode) {
  Reference out;
  for (size_t first = 0; first < x.size(); first += block_of(mode, x.size())) {
    const size_t end = std::min(x.size(), first + block_of(mode, x.size()));
    float a = mode == Quantise::mxfp8 || mode == Quantise::nvfp4 ? 0.0f : 1e-4f;
    for (size_t i = first; i < end; ++i) a = std::isfinite(x[i]) ? std::max(a, std::fabs(x[i])) : a;
    const bool all_finite = std::all_of(&x[first], x.data() + end, [](float value) { return std::isfinite(value); });
    const auto [scale, multiplier] = plain_scale(mode, a, all_finite);
    out.scales.push_back(scale);
    for (size_t i = first; i < end; ++i) out.add(x[i] * multiplier, mode, i);
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
  Quantised out{GuardedRow(DType::u8, quantised_bytes(hidden, mode), 1), GuardedRow(DType::f32, num_scale_words(hidden, mode))};
  quantise_row_with(variant, {.x = x.data(),
                              .x_dtype = dtype,
                              .hidden = hidden,
                              .mode = mode,
                              .q = static_cast<uint8_t*>(out.q.data()),
                              .scales = out.scales.data(),
                              .global_scale = &kGlobal});
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
      const float scale = read_scale(got.scales.data(), mode, block);
      EXPECT_TRUE(scale == wanted.scales[block] || (std::isnan(scale) && std::isnan(wanted.scales[block])))
          << "block " << block << ": " << scale << ", not " << wanted.scales[block];
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
  EXPECT_EQ(num_scale_words(7168, Quantise::fp8_row), 1);
  EXPECT_EQ(num_scale_words(7168, Quantise::mxfp8), 56);
  EXPECT_EQ(num_scale_words(7168, Quantise::nvfp4), 112);
  EXPECT_EQ(num_scale_words(7184, Quantise::nvfp4), 113);
  EXPECT_EQ(quantised_bytes(7168, Quantise::nvfp4), 3584);
}

// Case 10: every hidden size, also those that no dispatch takes; the last block may be short.
TEST(Quantise, EveryHiddenSizeMatchesTheReference) {
  std::mt19937 random(1);
  for (int64_t hidden = 1; hidden <= 1024; hidden += hidden < 16 ? 1 : 8) {
    for (DType dtype : kFloats) {
      GuardedRow x(dtype, hidden, 1);
      testing::fill(x.data(), dtype, hidden, hidden % 16 ? Kind::normal : Kind::any_bits, random);
      check_row(x, dtype, kModes[random() % std::size(kModes)]);
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
      if (mode == Quantise::nvfp4) continue;  // see below
      SCOPED_TRACE(fmt::format("{}, mode {}", row.name, static_cast<int>(mode)));
      GuardedRow x(DType::bf16, kHidden);
      for (int i = 0; i < kHidden; ++i) testing::set_element(x.data(), DType::bf16, i, row.value(i));
      const Quantised out = quantise(rows_variant(), x, DType::bf16, mode);
      const QuantisedRow sent{static_cast<const uint8_t*>(out.q.data()), out.scales.data(), mode, kHidden};
      for (int i = 0; i < kHidden; ++i) {
        const float value = element(x.data(), DType::bf16, i), scale = read_scale(sent.scales, mode, i / static_cast<int>(block_of(mode, kHidden)));
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

// A block of nvfp4 holds its values within half a step, or says by its scale that it cannot.
TEST(Quantise, Nvfp4MarksWhatItCannotHold) {
  for (const HardRow& row : kHardRows) {
    SCOPED_TRACE(row.name);
    constexpr int kHidden = 392;
    GuardedRow x(DType::bf16, kHidden);
    for (int i = 0; i < kHidden; ++i) testing::set_element(x.data(), DType::bf16, i, row.value(i));
    const Quantised out = quantise(rows_variant(), x, DType::bf16, Quantise::nvfp4);
    const QuantisedRow sent{static_cast<const uint8_t*>(out.q.data()), out.scales.data(), Quantise::nvfp4, kHidden, kGlobal};
    for (int block = 0; block * 16 < kHidden; ++block) {
      bool all_finite = true;
      float a = 0;
      for (int i = block * 16; i < std::min(kHidden, block * 16 + 16); ++i) {
        const float value = element(x.data(), DType::bf16, i);
        all_finite &= std::isfinite(value);
        a = std::max(a, std::fabs(value));
      }
      const float scale = read_scale(sent.scales, Quantise::nvfp4, block);
      ASSERT_EQ(std::isnan(scale), !all_finite) << "block " << block;
      if (!all_finite || kGlobal * (a / 6) > 448 || scale < 0x1p-6f) continue;  // out of the scale's range
      for (int i = block * 16; i < std::min(kHidden, block * 16 + 16); ++i) {
        const float value = element(x.data(), DType::bf16, i);
        ASSERT_LE(std::fabs(dequantise(sent, i) - value), (1 + 0.36f) * scale / kGlobal) << i << ": " << value;
      }
    }
  }
}

TEST(Quantise, DequantiseUndoesIt) {
  std::vector<bf16> x(300, to_bf16(-1.75f));
  std::vector<uint8_t> q(600);  // g++ considers Quantise::none too and would warn of an overrun
  for (Quantise mode : kModes) {
    float scales[5] = {};
    quantise_row(Solo{}, {x.data(), DType::bf16, 300, mode, q.data(), scales});
    const float allowed = mode == Quantise::nvfp4 ? 0.07f : 1e-6f;  // the scale has three bits
    for (int64_t i = 0; i < 300; ++i) ASSERT_NEAR(dequantise({q.data(), scales, mode, 300}, i), -1.75f, allowed);
  }
}

// Two channels a byte, the even one low; scales of 16 channels, the first in the lowest byte.
TEST(Quantise, Nvfp4PacksPairsAndScales) {
  std::vector<bf16> x(32);
  for (size_t i = 0; i < 16; ++i) x[i] = to_bf16(i == 1 ? -6.0f : 0.5f * static_cast<float>(i % 4));
  for (size_t i = 16; i < 32; ++i) x[i] = to_bf16(12.0f);
  uint8_t q[16] = {};
  uint32_t scales = ~0u;
  quantise_row(Solo{}, {x.data(), DType::bf16, 32, Quantise::nvfp4, q, &scales});
  EXPECT_EQ(scales, 0x00004038u) << "1 and 2 as e4m3";
  EXPECT_EQ(q[0], 0xF0) << "0 and -6";
  EXPECT_EQ(q[1], 0x32) << "1 and 1.5";
  EXPECT_EQ(q[15], 0x77) << "6 and 6";
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
