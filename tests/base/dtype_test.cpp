// Casts against references that share nothing with them: tables of all codes, the compiler's _Float16, powers of two.
#include "base/dtype.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/error.hpp"

namespace heddle {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kQuietNan = std::numeric_limits<float>::quiet_NaN();

/// The value of each E4M3 magnitude, from the format's definition.
double e4m3_magnitude(int code) {
  const int exponent = code >> 3, mantissa = code & 7;
  return exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
}

/// Nearest of the finite codes by exact distance, ties to the even code, so it saturates by itself.
uint8_t e4m3_reference(float value) {
  if (std::isnan(value)) return 0x7F;
  const double magnitude = std::fabs(std::isinf(value) ? 1e30 : double{value});
  int best = 0;
  for (int code = 1; code < 0x7F; ++code) {
    const double gain = std::fabs(magnitude - e4m3_magnitude(best)) - std::fabs(magnitude - e4m3_magnitude(code));
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

/// Floats of every exponent, with the bits near a rounding step set often.
std::vector<float> hard_floats(int count) {
  std::mt19937 random(7);
  std::vector<float> floats;
  for (int i = 0; i < count; ++i) {
    const uint32_t masks[] = {~0u, 0xFFFF0000u, 0xFFFF8000u, 0xFFF80000u, 0xFFFFF000u, 0xFFF00000u};
    floats.push_back(float_of(static_cast<uint32_t>(random()) & masks[i % 6]));
  }
  for (float edge : {0.0f, -0.0f, kInf, -kInf, kQuietNan, -kQuietNan, 448.0f, 448.001f, 464.0f, 432.0f, 65504.0f,
                     65519.996f, 65520.0f, 3.4028235e38f, 1e-45f, 0x1p-10f, 0x1.8p-9f, 0x1p-25f, 0x1.000002p-25f}) {
    floats.push_back(edge);
    floats.push_back(-edge);
  }
  return floats;
}

TEST(DTypeNames, RoundTripAndRefuse) {
  for (int value = 0; value < 8; ++value) {
    const auto dtype = static_cast<DType>(value);
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
    EXPECT_EQ(parse_dtype(std::string("torch.") + name_of(dtype)), dtype);
    EXPECT_GT(size_of(dtype), 0u);
  }
  EXPECT_EQ(parse_dtype("bf16"), DType::bf16);
  EXPECT_STREQ(name_of(DType::e4m3), "float8_e4m3fn");
  EXPECT_EQ(size_of(static_cast<DType>(77)), 0u);
  EXPECT_STREQ(name_of(static_cast<DType>(77)), "unknown");
  try {
    parse_dtype("float64");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("'float64'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("bfloat16 (bf16)"), std::string::npos) << error.what();
  }
}

TEST(Bf16, AllCodesRoundTrip) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = to_float(bf16{static_cast<uint16_t>(code)});
    EXPECT_EQ(to_bf16(value).bits, std::isnan(value) ? 0x7FFF : code);
  }
}

// Nearest by distance, ties to even: against the two neighbours, in double, where the step past the largest is 2^128.
TEST(Bf16, RoundsToNearestEven) {
  for (float value : hard_floats(200000)) {
    if (std::isnan(value)) {
      EXPECT_EQ(to_bf16(value).bits, 0x7FFF);
      continue;
    }
    if (std::isinf(value)) {
      EXPECT_EQ(to_bf16(value).bits, std::signbit(value) ? 0xFF80 : 0x7F80);
      continue;
    }
    const auto below = static_cast<uint16_t>(bits_of(std::fabs(value)) >> 16);
    const auto magnitude_of = [](uint16_t code) { return code == 0x7F80 ? 0x1p128 : double{to_float(bf16{code})}; };
    const double down = std::fabs(value) - magnitude_of(below);
    const double up = magnitude_of(static_cast<uint16_t>(below + 1)) - std::fabs(value);
    const bool take_up = up < down || (up == down && below % 2 == 1);
    EXPECT_EQ(to_bf16(value).bits & 0x7FFF, below + take_up) << value;
    EXPECT_EQ(to_bf16(value).bits >> 15, std::signbit(value)) << value;
  }
}

TEST(F16, AllCodesRoundTrip) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const f16 half{static_cast<uint16_t>(code)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_EQ(code & 0x7C00, 0x7C00u);
      EXPECT_EQ(to_f16(value).bits, 0x7FFF);
      continue;
    }
    EXPECT_EQ(value, static_cast<float>(__builtin_bit_cast(_Float16, half.bits)));
    EXPECT_EQ(to_f16(value).bits, code);
  }
}

TEST(F16, RoundsAsTheCompilerDoes) {
  for (float value : hard_floats(200000)) {
    const auto wanted = __builtin_bit_cast(uint16_t, static_cast<_Float16>(value));
    EXPECT_EQ(to_f16(value).bits, std::isnan(value) ? 0x7FFF : wanted) << value;
  }
}

TEST(E4m3, AllCodesHaveTheFormatsValueAndRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(e4m3{static_cast<uint8_t>(code)});
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(to_e4m3(value).bits, 0x7F);
      continue;
    }
    EXPECT_EQ(std::fabs(value), e4m3_magnitude(code & 0x7F));
    EXPECT_EQ(std::signbit(value), code >= 0x80);
    EXPECT_EQ(to_e4m3(value).bits, code);
  }
}

TEST(E4m3, MatchesTheTableOnFloats) {
  for (float value : hard_floats(100000)) ASSERT_EQ(to_e4m3(value).bits, e4m3_reference(value)) << value;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> exponent(-12.0f, 10.0f);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::exp2(exponent(random)) * (i % 2 ? 1.0f : -1.0f);
    ASSERT_EQ(to_e4m3(value).bits, e4m3_reference(value)) << value;
  }
}

TEST(E4m3, MatchesTheTableOnEveryBf16) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = to_float(bf16{static_cast<uint16_t>(code)});
    ASSERT_EQ(to_e4m3(value).bits, e4m3_reference(value)) << value;
  }
}

// A reader of self-announcing words takes all ones for "not yet written".
TEST(Casts, NeverYieldAllOnes) {
  for (float value : hard_floats(200000)) {
    EXPECT_NE(to_e4m3(value).bits, 0xFF);
    EXPECT_NE(to_bf16(value).bits, 0xFFFF);
    EXPECT_NE(to_f16(value).bits, 0xFFFF);
    EXPECT_NE(bits_of(round_to<float>(value)), 0xFFFFFFFFu);
  }
}

TEST(Ue8m0, IsTheNextPowerOfTwo) {
  for (int exponent = -126; exponent <= 127; ++exponent) {
    const float power = std::ldexp(1.0f, exponent);
    EXPECT_EQ(to_ue8m0_up(power).bits, exponent + 127);
    EXPECT_EQ(to_float(ue8m0{static_cast<uint8_t>(exponent + 127)}), power);
    const int above = exponent == 127 ? 254 : exponent + 128;
    EXPECT_EQ(to_ue8m0_up(std::nextafter(power, kInf)).bits, above);
    if (exponent == -126) continue;  // below it lie subnormals
    EXPECT_EQ(to_ue8m0_up(std::nextafter(power, 0.0f)).bits, exponent + 127);
  }
  EXPECT_EQ(to_ue8m0_up(std::numeric_limits<float>::max()).bits, 254);
  EXPECT_EQ(to_float(ue8m0{0}), 0x1p-127f);
  EXPECT_TRUE(std::isnan(to_float(ue8m0{255})));
}

// The casts are usable in constant expressions, so layouts and tests can hold golden values.
static_assert(to_bf16(1.0f).bits == 0x3F80);
static_assert(to_f16(-2.0f).bits == 0xC000);
static_assert(to_e4m3(448.0f).bits == 0x7E);

/// Nearest of the eight magnitudes by exact distance, ties to the even code.
uint8_t e2m1_reference(float value) {
  constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (std::isnan(value)) return 7;
  const double magnitude = std::min(std::fabs(double{value}), 6.0);
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double gain = std::fabs(magnitude - kMagnitudes[best]) - std::fabs(magnitude - kMagnitudes[code]);
    if (gain > 0 || (gain == 0 && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(value) ? 8 : 0));
}

TEST(E2m1, CodesComeBack) {
  for (int code = 0; code < 16; ++code) {
    EXPECT_EQ(to_e2m1(to_float(e2m1{static_cast<uint8_t>(code)})).bits, code);
    EXPECT_EQ(std::signbit(to_float(e2m1{static_cast<uint8_t>(code)})), code >= 8);
  }
}

TEST(E2m1, RoundsToTheNearestAndSaturates) {
  for (float value : hard_floats(100000)) ASSERT_EQ(to_e2m1(value).bits, e2m1_reference(value)) << value;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_of(bits << 16);
    ASSERT_EQ(to_e2m1(value).bits, e2m1_reference(value)) << value;
  }
}

}  // namespace
}  // namespace heddle
