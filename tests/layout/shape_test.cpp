#include "layout/shape.hpp"

#include <gtest/gtest.h>

#include <set>

namespace heddle {
namespace {

// I7: ranks that disagree on any of these must see it. Each field changed alone gives another hash.
TEST(Shape, EveryFieldIsInTheHash) {
  const Shape base{.payload_bytes = 64, .topk = 2, .experts = 8, .max_tokens = 16};
  std::set<uint64_t> hashes = {base.hash()};
  const auto change = [&](auto member, auto value) {
    Shape changed = base;
    changed.*member = value;
    EXPECT_TRUE(hashes.insert(changed.hash()).second) << "change " << hashes.size();
  };
  change(&Shape::kind, Kind::combine);
  change(&Shape::layout, Layout::expert_major);
  change(&Shape::layout, Layout::slab);
  change(&Shape::weights, Weights::at_owner);
  change(&Shape::weights, Weights::late);
  change(&Shape::weights, Weights::at_source);
  change(&Shape::quantise, Quantise::fp8);
  change(&Shape::result_wire, ResultWire::fp8);
  change(&Shape::dtype, DType::bf16);
  change(&Shape::wire, DType::e4m3);
  change(&Shape::split, true);
  change(&Shape::cached, true);
  change(&Shape::row_weights, true);
  change(&Shape::payload_bytes, 128);
  change(&Shape::scale_words, 1);
  change(&Shape::topk, 3);
  change(&Shape::experts, 9);
  change(&Shape::alignment, 4);
  change(&Shape::max_tokens, 17);
}

TEST(Shape, EqualShapesHaveEqualHashes) {
  const Shape a{.layout = Layout::slab, .payload_bytes = 7168};
  const Shape b = a;
  EXPECT_EQ(a.hash(), b.hash());
  static_assert(Shape{}.hash() == Shape{}.hash(), "a kernel and the host find the same one");
}

}  // namespace
}  // namespace heddle
