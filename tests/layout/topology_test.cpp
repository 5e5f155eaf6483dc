#include "layout/topology.hpp"

#include <gtest/gtest.h>

namespace heddle {
namespace {

// Rank r owns [floor(r E / R), floor((r + 1) E / R)): also where E is no multiple of R, or smaller than it.
TEST(Topology, EveryExpertHasOneOwnerWhoseRangeHoldsIt) {
  for (int world = 1; world <= 12; ++world) {
    for (int experts = 1; experts <= 40; ++experts) {
      const Topology topo{.world = world, .experts = experts};
      EXPECT_EQ(topo.first_expert(0), 0);
      EXPECT_EQ(topo.first_expert(world), experts);
      for (int expert = 0; expert < experts; ++expert) {
        const int owner = topo.owner_of(expert);
        ASSERT_LE(topo.first_expert(owner), expert) << expert << " of " << experts << ", " << world << " ranks";
        ASSERT_LT(expert, topo.first_expert(owner + 1)) << expert << " of " << experts << ", " << world << " ranks";
      }
    }
  }
}

TEST(Topology, UnevenShareDiffersByOneAtMost) {
  const Topology topo{.world = 7, .experts = 96};
  for (int rank = 0; rank < topo.world; ++rank) {
    EXPECT_GE(topo.num_local(rank), 96 / 7);
    EXPECT_LE(topo.num_local(rank), 96 / 7 + 1);
  }
}

TEST(Topology, ExpertsAreZeroToTheLast) {
  const Topology topo{.world = 2, .experts = 8};
  EXPECT_FALSE(topo.is_expert(-1));
  EXPECT_TRUE(topo.is_expert(7));
  EXPECT_FALSE(topo.is_expert(8));
}

// 128 ranks x 2^24 experts: products pass 2^31.
TEST(Topology, ArithmeticIs64Bit) {
  const Topology topo{.world = 128, .experts = 1 << 24};
  EXPECT_EQ(topo.first_expert(127), 127 << 17);
  EXPECT_EQ(topo.owner_of((1 << 24) - 1), 127);
}

}  // namespace
}  // namespace heddle
