// Results in fewer bits: the host's rows against the spec, bit by bit, and what they lose.
#include "device/pack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/coop.hpp"
#include "device/pack_block.hpp"
#include "device/rows.hpp"
#include "hard_rows.hpp"
#include "spec/pack.hpp"

namespace heddle {
namespace {

using testing::kFloats;
using testing::Kind;
using Row = std::vector<float>;

constexpr ResultWire kWires[] = {ResultWire::fp8, ResultWire::logfmt10};

spec::Pack spec_of(ResultWire wire) { return wire == ResultWire::fp8 ? spec::Pack::fp8 : spec::Pack::logfmt10; }

/// Guarded, one word into an allocation.
struct Packed {
  ResultWire wire;
  int64_t hidden;
  testing::GuardedRow bytes;

  Packed(ResultWire by, int64_t columns) : wire(by), hidden(columns), bytes(DType::u8, PackedRow::of(columns, by).bytes, 4) {}

  static Packed of(ResultWire wire, const Row& row) {
    Packed packed(wire, static_cast<int64_t>(row.size()));
    const Term term{row.data(), 1.0f};
    sum_rows(Solo{}, packed.sum(DType::f32), &term, 1);
    return packed;
  }
  SumArgs sum(DType in) {
    return {.out = bytes.data(), .out_dtype = DType::u8, .in_dtype = in, .bias0 = nullptr, .bias1 = nullptr, .bias_dtype = in,
            .count = hidden, .out_wire = wire};
  }
  const std::byte* row() const { return static_cast<const std::byte*>(bytes.data()); }
  spec::PackedRow read() const {
    const PackedRow at = PackedRow::of(hidden, wire);
    spec::PackedRow all;
    with_pack(wire, [&](auto block) {
      for (int64_t i = 0; i < hidden; ++i) all.codes.push_back(load_code<decltype(block)>(row(), at, i));
    });
    for (int64_t i = 0; i * kPackBlock < hidden; ++i) all.marks.push_back(mark_of(row(), at, i));
    return all;
  }
};

Row unpacked(const Packed& packed, DType out = DType::f32) {
  Row back(static_cast<size_t>(packed.hidden));
  const Term term{packed.row(), 1.0f};
  sum_rows(Solo{}, {.out = back.data(), .out_dtype = out, .in_dtype = DType::u8, .bias0 = nullptr, .bias1 = nullptr,
                    .bias_dtype = out, .count = packed.hidden, .in_wire = packed.wire}, &term, 1);
  return back;
}

void expect_same_bits(const Row& seen, const Row& wanted) {
  ASSERT_EQ(seen.size(), wanted.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    const float value = wanted[i] == 0 ? 0.0f : round_to<float>(wanted[i]);
    ASSERT_EQ(bits_of(seen[i]), bits_of(value)) << "column " << i << ": " << seen[i] << ", wanted " << value;
  }
}

/// But for the sign of zeros: a chain starts at +0.
void expect_as_spec(ResultWire wire, const Row& row) {
  const Packed packed = Packed::of(wire, row);
  const spec::PackedRow seen = packed.read(), wanted = spec::pack(spec_of(wire), row);
  EXPECT_TRUE(packed.bytes.is_whole());
  ASSERT_EQ(seen.marks, wanted.marks);
  for (size_t i = 0; i < row.size(); ++i) {
    // Nor does a NaN keep its sign in a sum.
    const uint32_t code = row[i] == 0 ? 0 : std::isnan(row[i]) ? wanted.codes[i] & 511 : wanted.codes[i];
    ASSERT_EQ(seen.codes[i], code) << "column " << i << ", " << row[i];
  }
  expect_same_bits(unpacked(packed), spec::unpack(spec_of(wire), wanted));
}

Row random_row(size_t hidden, Kind kind, std::mt19937& random) {
  Row row(hidden);
  testing::fill(row.data(), DType::f32, static_cast<int64_t>(hidden), kind, random);
  return row;
}

/// Over so many octaves.
Row spread_row(size_t hidden, float octaves, std::mt19937& random) {
  Row row(hidden);
  for (float& x : row) x = std::exp2(std::uniform_real_distribution<float>(-octaves, 0)(random)) * (random() % 2 ? 3.0f : -3.0f);
  return row;
}

class Pack : public ::testing::TestWithParam<ResultWire> {};

TEST_P(Pack, EveryBf16IsTheSpecs) {
  for (const uint32_t stride : {1u, 257u, 12289u}) {  // blocks of neighbours, and of all kinds
    Row row(65536);
    for (uint32_t i = 0; i < row.size(); ++i) row[i] = to_float(bf16{static_cast<uint16_t>(i * stride)});
    expect_as_spec(GetParam(), row);
    std::erase_if(row, [](float x) { return !std::isfinite(x); });
    expect_as_spec(GetParam(), row);
  }
}

TEST_P(Pack, RandomRowsAreTheSpecs) {
  std::mt19937 random(5);
  for (const size_t hidden : {0, 1, 7, 127, 128, 129, 520, 7168}) {
    for (int round = 0; round < 8; ++round) {
      expect_as_spec(GetParam(), random_row(hidden, Kind::normal, random));
      expect_as_spec(GetParam(), random_row(hidden, Kind::any_bits, random));
      expect_as_spec(GetParam(), spread_row(hidden, 4.0f * static_cast<float>(round), random));
    }
  }
}

TEST_P(Pack, BlocksAtTheEdgesAreTheSpecs) {
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  for (const Row& row : {Row(128, 0.0f), Row(128, -0.0f), Row(300, kMost), Row{kMost, kLeast, -kMost, 1.0f}, Row(200, kLeast),
                         Row{0.0f, kLeast, 2 * kLeast}, Row{0x1p-126f, 0x1p-110f, 0x1p-127f}, Row{1.0f, 0x1p-16f, 0x1p-17f, 0x1p-18f},
                         Row{1.0f, std::nextafter(1.0f, 2.0f)}, Row{kMost, kMost / 0x1p15f, kMost / 0x1p16f}}) {
    expect_as_spec(GetParam(), row);
  }
}

// Nothing that is not finite goes unseen, and it touches its own block only.
TEST_P(Pack, WhatIsNotFiniteShows) {
  for (const float odd : {INFINITY, -INFINITY, std::nanf("")}) {
    Row row(300, 2.0f);
    row[140] = odd;
    row[150] = 0.0f;
    const Row back = unpacked(Packed::of(GetParam(), row));
    for (size_t i = 0; i < row.size(); ++i) {
      const bool in_block = i >= 128 && i < 256;
      if (!in_block) {
        EXPECT_NEAR(back[i], 2.0f, 0.13f) << i;
      } else if (row[i] != 0) {
        EXPECT_TRUE(std::isnan(back[i])) << i;
      }
    }
  }
}

// pack.hpp says how far a value may be off.
TEST_P(Pack, LosesNoMoreThanItSays) {
  const bool is_fp8 = GetParam() == ResultWire::fp8;
  std::mt19937 random(6);
  for (int round = 0; round < 1000; ++round) {
    const float octaves = static_cast<float>(round % 40);
    Row row = round % 2 == 0 ? spread_row(128, octaves, random) : random_row(128, Kind::normal, random);
    for (float& x : row) x = std::ldexp(x, round % 200 - 95);
    const Row back = unpacked(Packed::of(GetParam(), row));
    float most = 0.0f, least = INFINITY;
    for (float x : row) {
      most = std::max(most, std::fabs(x));
      least = std::min(least, std::fabs(x));
    }
    const float range = std::min(16.0f, std::log2(most) - std::log2(least) + 0.1f);
    const float part = is_fp8 ? 0.0625f : std::min(0.017f, 0.0014f * range);
    for (size_t i = 0; i < row.size(); ++i) {
      const float bound = std::max(part * std::fabs(row[i]), most * (is_fp8 ? 0x1p-18f : 0x1p-17f));
      ASSERT_LE(std::fabs(back[i] - row[i]), bound * 1.0001f) << row[i] << " of a block from " << least << " to " << most;
    }
  }
}

// A packed row is a term of the chain like any other, and a sum is packed as it is in FP32.
TEST_P(Pack, SumsAreTheChainOfWhatRowsStandFor) {
  std::mt19937 random(7);
  for (const DType dtype : kFloats) {
    for (const int num_terms : {0, 1, 2, 5, 40}) {
      constexpr int64_t kHidden = 264;
      std::vector<Packed> rows;
      std::vector<Term> packed, plain;
      std::vector<Row> values;
      for (int t = 0; t < num_terms; ++t) {
        values.push_back(random_row(kHidden, Kind::normal, random));
        rows.push_back(Packed::of(GetParam(), values.back()));
      }
      std::vector<Row> back;
      for (int t = 0; t < num_terms; ++t) {
        const float weight = t % 3 == 0 ? 1.0f : 0.37f * static_cast<float>(t);
        back.push_back(unpacked(rows[t]));
        packed.push_back({rows[t].row(), weight});
      }
      for (int t = 0; t < num_terms; ++t) plain.push_back({back[t].data(), packed[t].weight});
      std::vector<testing::GuardedRow> biases(2, testing::GuardedRow(dtype, kHidden, 1));
      for (auto& bias : biases) testing::fill(bias.data(), dtype, kHidden, Kind::normal, random);
      testing::GuardedRow seen(dtype, kHidden, 1), wanted(dtype, kHidden, 1);
      SumArgs sum{.out = wanted.data(), .out_dtype = dtype, .in_dtype = DType::f32,
                  .bias0 = num_terms % 2 == 0 ? biases[0].data() : nullptr, .bias1 = num_terms % 4 == 0 ? biases[1].data() : nullptr,
                  .bias_dtype = dtype, .count = kHidden};
      sum_rows(Solo{}, sum, plain.data(), num_terms);
      sum.out = seen.data();
      sum.in_wire = GetParam();
      sum_rows(Solo{}, sum, packed.data(), num_terms);
      EXPECT_EQ(seen.bytes(), wanted.bytes()) << name_of(dtype) << ", " << num_terms;

      std::vector<Term> given;
      for (int t = 0; t < num_terms; ++t) given.push_back({values[t].data(), packed[t].weight});
      Row exact(kHidden);
      const SumArgs in_full{.out = exact.data(), .out_dtype = DType::f32, .in_dtype = DType::f32, .bias0 = nullptr,
                            .bias1 = nullptr, .bias_dtype = DType::f32, .count = kHidden};
      sum_rows(Solo{}, in_full, given.data(), num_terms);
      Packed together(GetParam(), kHidden);
      sum_rows(Solo{}, together.sum(DType::f32), given.data(), num_terms);
      EXPECT_EQ(together.read().codes, Packed::of(GetParam(), exact).read().codes) << num_terms;
      EXPECT_EQ(together.read().marks, Packed::of(GetParam(), exact).read().marks) << num_terms;
    }
  }
}

// Rows that have not travelled count as what packing would leave of their sum.
TEST_P(Pack, OwnRowsAreRoundedAsThoseThatTravel) {
  std::mt19937 random(8);
  for (const bool is_row : {false, true}) {
    for (const int num_own : {0, 1, 3}) {
      if (is_row && num_own != 1) continue;
      constexpr int64_t kHidden = 200;
      std::vector<Row> own;
      std::vector<Term> hits;
      for (int t = 0; t < num_own; ++t) own.push_back(random_row(kHidden, Kind::normal, random));
      if (is_row) own[0][3] = -0.0f;
      for (const Row& row : own) hits.push_back({row.data(), is_row ? 1.0f : 0.3f});
      Packed travelled(GetParam(), kHidden);
      if (is_row) cast_row(Solo{}, {.out = travelled.bytes.data(), .out_dtype = DType::u8, .in = own[0].data(), .in_dtype = DType::f32,
                                    .count = kHidden, .out_wire = GetParam()});
      else sum_rows(Solo{}, travelled.sum(DType::f32), hits.data(), num_own);
      const Packed before = Packed::of(GetParam(), random_row(kHidden, Kind::normal, random));
      const Packed after = Packed::of(GetParam(), random_row(kHidden, Kind::normal, random));
      const Row bias(kHidden, -0.0f);
      Row wanted(kHidden), seen(kHidden);
      SumArgs sum{.out = wanted.data(), .out_dtype = DType::f32, .in_dtype = DType::u8, .bias0 = bias.data(), .bias1 = nullptr,
                  .bias_dtype = DType::f32, .count = kHidden, .in_wire = GetParam()};
      const std::vector<Term> all{{before.row(), 1.0f}, {travelled.row(), 1.0f}, {after.row(), 1.0f}};
      sum_rows(Solo{}, sum, all.data(), 3);
      std::vector<Term> mixed = hits;
      mixed.insert(mixed.begin(), all[0]);
      mixed.push_back(all[2]);
      sum.out = seen.data();
      sum.own = {.first = 1, .end = 1 + num_own, .dtype = DType::f32, .is_row = is_row};
      sum_rows(Solo{}, sum, mixed.data(), static_cast<int>(mixed.size()));
      expect_same_bits(seen, wanted);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pack, ::testing::ValuesIn(kWires), [](const auto& tested) {
  return tested.param == ResultWire::fp8 ? "fp8" : "logfmt10";
});

}  // namespace
}  // namespace heddle
