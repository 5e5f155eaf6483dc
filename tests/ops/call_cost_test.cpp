#include "ops/call_cost.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace heddle {
namespace {

struct Measured {
  std::string name;
  Shape shape;
  std::vector<int> microseconds;  // with 24, 64, 132 SMs
};

Shape shape_of(Kind kind, Layout layout, DType wire) {
  const bool is_fp8 = wire == DType::e4m3;
  return {.kind = kind,
          .layout = layout,
          .dtype = wire,
          .wire = wire,
          .payload_bytes = is_fp8 ? 7168 : 14336,
          .scale_words = is_fp8 ? 56 : 0,
          .topk = 8,
          .experts = 256,
          .max_tokens = 4096};
}

constexpr Topology kTwo{.rank = 0, .world = 2, .experts = 256};

// docs/performance.md, "GPU, whole calls".
const std::vector<Measured>& measured() {
  using enum Layout;
  static const std::vector<Measured> table = {
      {"fp8 token-major", shape_of(Kind::dispatch, token_major, DType::e4m3), {235, 158, 150}},
      {"fp8 expert-major", shape_of(Kind::dispatch, expert_major, DType::e4m3), {373, 221, 205}},
      {"bf16 token-major", shape_of(Kind::dispatch, token_major, DType::bf16), {346, 242, 229}},
      {"bf16 expert-major", shape_of(Kind::dispatch, expert_major, DType::bf16), {552, 340, 300}},
      {"combine token-major", shape_of(Kind::combine, token_major, DType::bf16), {411, 244, 236}},
      {"combine expert-major", shape_of(Kind::combine, expert_major, DType::bf16), {749, 364, 296}}};
  return table;
}

TEST(CallCost, PredictsTheTableItWasFittedTo) {
  for (const auto& [name, shape, microseconds] : measured()) {
    const CallCost cost = CallCost::of(kTwo, shape, 4096);
    const int sms[] = {24, 64, 132};
    for (size_t i = 0; i < microseconds.size(); ++i) {
      EXPECT_NEAR(cost.microseconds(sms[i]) / microseconds[i], 1.0, 0.12) << name << ", " << sms[i] << " SMs";
    }
  }
}

// Every token goes to both ranks, near enough: 30.3 and 58.7 MB (reference of the floor).
TEST(CallCost, CountsTheWire) {
  EXPECT_NEAR(CallCost::of(kTwo, measured()[0].shape, 4096).wire_bytes / 30.3e6, 1.0, 0.01);
  EXPECT_NEAR(CallCost::of(kTwo, measured()[2].shape, 4096).wire_bytes / 58.7e6, 1.0, 0.01);
  const Topology alone{.rank = 0, .world = 1, .experts = 256};
  EXPECT_EQ(CallCost::of(alone, measured()[2].shape, 4096).wire_bytes, 0);
}

TEST(CallCost, TakesAsManySmsAsGainSomething) {
  for (const auto& [name, shape, microseconds] : measured()) {
    const CallCost cost = CallCost::of(kTwo, shape, 4096);
    const int enough = cost.enough_sms(132);
    EXPECT_GT(enough, 64) << name;
    EXPECT_LE(enough, 132) << name;
    EXPECT_LE(cost.microseconds(enough), 1.03 * cost.microseconds(132)) << name;
    EXPECT_GT(cost.microseconds(enough - 1), 1.03 * cost.microseconds(132)) << name;
  }
}

TEST(CallCost, SmallBatchesNeedFew) {
  const CallCost few = CallCost::of(kTwo, measured()[0].shape, 64);
  EXPECT_LT(few.enough_sms(132), 60);
  EXPECT_GE(CallCost::of(kTwo, measured()[0].shape, 0).enough_sms(132), 1);
  EXPECT_EQ(few.enough_sms(1), 1);
}

}  // namespace
}  // namespace heddle
