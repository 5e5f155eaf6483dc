// The plan by many blocks leaves the same tensors as the plain one, tile by tile and block by block.
#include "cuda/plan_blocks.hpp"

#include <gmock/gmock.h>

#include "sim/lane_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

class BlocksBackend : public LaneBackend {
 public:
  using LaneBackend::LaneBackend;
  void plan(const Topology& topo, const PlanView& view) override {
    run([&](const Lane& lane) {
      make_plan_by_blocks(lane, topo, view);
      return true;
    });
  }
  void plan_from(const TableView& ids, IdCheck& check, const Topology& topo, const PlanView& view) override {
    run([&](const Lane& lane) {
      make_plan_by_blocks(lane, topo, view, {.table = ids, .bad = &check.bad});
      return true;
    });
  }
};

struct PlanMachine : Machine {
  explicit PlanMachine(std::unique_ptr<Backend> of) : steps(std::move(of)) {}
  Backend& backend() override { return *steps; }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  std::unique_ptr<Backend> steps;
};

/// Twice; of a world with ids a third time, from a caller's table.
Trace plan_with(std::unique_ptr<Backend> backend, const spec::World& world, int rank) {
  PlanMachine machine(std::move(backend));
  const Topology topo{.rank = rank, .world = world.ranks, .experts = world.experts};
  StepRank steps(machine, world, topo, {});
  Trace trace{steps.plan(), steps.plan()};
  if (world.topk > 0) trace.push_back(steps.plan_from_table());
  return trace;
}

void expect_same_plans(const spec::World& world, const LaneShape& shape) {
  for (int rank = 0; rank < world.ranks; ++rank) {
    const auto wanted = plan_with(std::make_unique<LaneBackend>(PeerView{}, LaneShape{.workers = 1, .lanes = 1}, 1), world, rank);
    const auto seen = plan_with(std::make_unique<BlocksBackend>(PeerView{}, shape, 1), world, rank);
    expect_same(wanted, seen, fmt::format("rank {}, {} blocks", rank, shape.blocks));
  }
}

class PlanBlocks : public ::testing::TestWithParam<Routing> {};

TEST_P(PlanBlocks, LikeThePlainPlan) {
  for (const int tokens : {0, 1, 127, 128, 129, 600}) {
    const spec::World world = make_world(
        {.routing = GetParam(), .ranks = 3, .tokens = tokens, .topk = 5, .experts = 11, .hidden = 8});
    expect_same_plans(world, {.workers = 4, .lanes = 8, .blocks = 2});
    expect_same_plans(world, {.workers = 3, .lanes = 4, .blocks = 3});
    if (tokens > 200) expect_same_plans(world, {.workers = 1, .lanes = 32, .blocks = 1});
  }
}

TEST_P(PlanBlocks, FromARankMap) {
  const spec::World world = as_rank_map(make_world(
      {.routing = GetParam(), .ranks = 3, .tokens = 300, .topk = 5, .experts = 11, .hidden = 8}));
  expect_same_plans(world, {.workers = 4, .lanes = 8, .blocks = 2});
}

// The plan of a table with ids that no expert has is that of none in their places, and says one of them.
TEST(PlanBlocksIds, OutOfRangeAreTold) {
  spec::World world = make_world({.ranks = 2, .tokens = 300, .topk = 3, .experts = 6, .hidden = 8});
  spec::World wanted = world;
  world.batches[0].ids[500] = 6;
  world.batches[0].ids[20] = -2;
  wanted.batches[0].ids[500] = wanted.batches[0].ids[20] = -1;
  const auto by = [](const spec::World& of, uint64_t& bad) {
    PlanMachine machine(std::make_unique<BlocksBackend>(PeerView{}, LaneShape{.workers = 2, .lanes = 8, .blocks = 2}, 1));
    return StepRank(machine, of, {.rank = 0, .world = 2, .experts = 6}, {}).plan_from_table(&bad);
  };
  uint64_t bad = 0, none = 0;
  const Tables seen = by(world, bad);
  expect_same({by(wanted, none)}, {seen}, "ids out of range");
  EXPECT_THAT(bad, ::testing::AnyOf(21u, 501u));
  EXPECT_EQ(none, 0u);
}

INSTANTIATE_TEST_SUITE_P(Of, PlanBlocks, ::testing::ValuesIn(kRoutings),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace heddle::testing
