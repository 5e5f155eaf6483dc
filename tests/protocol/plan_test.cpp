// Plans against the spec, by one lane and by teams: the same tensors whoever makes them (I1).
#include "protocol/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cpu/crew.hpp"
#include "spec/plan.hpp"
#include "support/routing.hpp"

namespace heddle::testing {
namespace {

/// A plan's tensors, filled with what an old plan may have left.
struct Tensors {
  explicit Tensors(const spec::World& world, int rank, int64_t lanes) {
    const spec::Batch& batch = world.batches[rank];
    const int64_t tokens = batch.tokens;
    topo = {.rank = rank, .world = world.ranks, .experts = world.experts};
    plan.ids = batch.ids;
    plan.ordinal.assign(tokens * world.topk, 77);
    plan.in_rank.assign(tokens * world.ranks, 1);
    if (world.topk == 0) plan.in_rank = batch.rank_map;
    plan.send_offset.assign(world.ranks + 1, 77);
    plan.send_tokens.assign(tokens * world.ranks, 77);
    plan.pairs_per_expert.assign(world.experts, 77);
    plan.rows_per_expert.assign(world.experts, 77);
    per_rank.assign(world.ranks, 77);
    scratch.assign(plan_scratch_words(topo, lanes), 77);
    view.tokens = static_cast<int32_t>(tokens);
    view.topk = world.topk;
    view.ids = plan.ids.data();
    view.ordinals = plan.ordinal.data();
    view.in_rank = plan.in_rank.data();
    view.send_offset = plan.send_offset.data();
    view.per_rank = per_rank.data();
    view.send_tokens = plan.send_tokens.data();
    view.pairs = plan.pairs_per_expert.data();
    view.rows = plan.rows_per_expert.data();
    view.scratch = scratch.data();
  }

  Topology topo;
  spec::Plan plan;
  std::vector<int32_t> per_rank;
  std::vector<int32_t> scratch;
  PlanView view;
};

void expect_as_the_spec_says(const spec::World& world, int lanes) {
  const auto wanted = spec::plan(world);
  for (int rank = 0; rank < world.ranks; ++rank) {
    Tensors made(world, rank, lanes);
    Crew crew(lanes);
    crew.run([&](const auto& coop) {
      make_plan(coop, made.topo, made.view);
      return true;
    });
    const spec::Plan& right = wanted[rank];
    made.plan.send_tokens.resize(right.send_tokens.size());
    EXPECT_EQ(made.plan.in_rank, right.in_rank);
    EXPECT_EQ(made.plan.send_offset, right.send_offset);
    EXPECT_EQ(made.plan.send_tokens, right.send_tokens);
    EXPECT_EQ(made.plan.pairs_per_expert, right.pairs_per_expert);
    EXPECT_EQ(made.plan.rows_per_expert, right.rows_per_expert);
    EXPECT_EQ(made.plan.ordinal, right.ordinal);
    for (int to = 0; to < world.ranks; ++to) {
      EXPECT_EQ(made.per_rank[to], right.send_offset[to + 1] - right.send_offset[to]);
    }
  }
}

class PlanBy : public ::testing::TestWithParam<int> {};

TEST_P(PlanBy, EveryRoutingIsWhatTheSpecSays) {
  for (const Routing routing : kRoutings) {
    SCOPED_TRACE(name_of(routing));
    expect_as_the_spec_says(make_world({.routing = routing, .ranks = 3, .tokens = 23, .topk = 5, .experts = 11}),
                            GetParam());
  }
}

TEST_P(PlanBy, ARankMapIsWhatTheSpecSays) {
  expect_as_the_spec_says(as_rank_map(make_world({.routing = Routing::holes, .ranks = 5, .tokens = 9})), GetParam());
}

// Fewer tokens than lanes: some lanes have none.
TEST_P(PlanBy, FewTokensAreEnough) {
  for (const int tokens : {0, 1, 2}) {
    expect_as_the_spec_says(make_world({.ranks = 2, .tokens = tokens, .topk = 3, .experts = 4}), GetParam());
  }
}

// More ranks than experts: some own none.
TEST_P(PlanBy, RanksWithoutExpertsGetNothing) {
  expect_as_the_spec_says(make_world({.ranks = 7, .tokens = 12, .topk = 2, .experts = 3}), GetParam());
}

TEST_P(PlanBy, WideTopkAndManyExperts) {
  expect_as_the_spec_says(make_world({.routing = Routing::duplicates, .ranks = 4, .tokens = 6, .topk = 64,
                                      .experts = 300}), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Lanes, PlanBy, ::testing::Values(1, 2, 3, 5));

}  // namespace
}  // namespace heddle::testing
