// Whole calls by the pumps leave the same bytes as the plain steps on one thread, for any number of blocks, workers and
// lanes, and whoever the peers are: pumps, or plain steps that store tags.
#include <gmock/gmock.h>

#include "cuda/combine_pump.hpp"
#include "cuda/dispatch_pump.hpp"
#include "sim/lane_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

struct PumpShape {
  LaneShape lanes;
  bool by_belt = false;
  bool only_even_ranks = false;
};

bool run_pump(const Lane& lane, LanePort& port, const DispatchArgs& a, PumpState* s, const PumpShape& shape) {
  const int workers = shape.lanes.workers / shape.lanes.blocks;
  const int movers = workers > 2 ? workers - 1 : 1;
  if (shape.by_belt && can_ride(a)) {
    if (a.call.shape.quantise == Quantise::none) return dispatch_whole<DispatchBelt>(lane, port, a, s, movers);
    return dispatch_whole<CastBelt>(lane, port, a, s, movers);
  }
  return dispatch_whole<DispatchLanes>(lane, port, a, s, movers);
}

bool run_pump(const Lane& lane, LanePort& port, const CombineArgs& a, PumpState* s, const PumpShape& shape) {
  const int movers = std::max(1, shape.lanes.workers / shape.lanes.blocks - 1);
  if (shape.by_belt && can_ride(a)) return combine_whole<CombineBelt>(lane, port, a, s, movers);
  return combine_whole<CombineLanes>(lane, port, a, s, movers);
}

/// `used` counts the calls that a pump did.
MakeMachine pump_machines(const PumpShape& shape, std::atomic<int>& used) {
  return [=, &used](Bootstrap& bootstrap, const MachineOptions& options) -> std::unique_ptr<Machine> {
    if (shape.only_even_ranks && bootstrap.rank() % 2 == 1) return make_cpu_machine(bootstrap, options);
    auto machine = std::make_unique<LaneMachine>(bootstrap, options, shape.lanes);
    const auto state = std::make_shared<PumpState>();
    const auto whole = [&used, state](LaneBackend& backend, const auto& steps, const auto& pump) {
      return [&used, state, &backend, steps, pump](LaneCrew& crew, LanePort& port, const auto& args) {
        if (!has_pump(args)) return steps(backend, args);
        ++used;
        return crew.run([&](const Lane& lane) { return pump(lane, port, args, state.get()); });
      };
    };
    machine->backend().whole_dispatch = whole(
        machine->backend(), [](LaneBackend& to, const DispatchArgs& a) { return to.Backend::dispatch(a); },
        [shape](const Lane& lane, LanePort& port, const DispatchArgs& a, PumpState* s) {
          return run_pump(lane, port, a, s, shape);
        });
    machine->backend().whole_combine = whole(
        machine->backend(), [](LaneBackend& to, const CombineArgs& a) { return to.Backend::combine(a); },
        [shape](const Lane& lane, LanePort& port, const CombineArgs& a, PumpState* s) {
          return run_pump(lane, port, a, s, shape);
        });
    return machine;
  };
}

class Pumps : public ::testing::TestWithParam<StepCase> {
 protected:
  void compare(const PumpShape& shape) {
    StepCase played = as_whole(GetParam());
    played.world.tokens = played.dispatch.max_tokens = 17;
    if (played.dispatch.capacity > 0) played.dispatch.capacity /= 3;
    std::atomic<int> used{0};
    const MakeMachine machines = pump_machines(shape, used);
    expect_same_traces(played, play_all(played, make_cpu_machine, play_whole), play_all(played, machines, play_whole));
    EXPECT_GT(used, 0) << "no pump was used";
  }
};

TEST_P(Pumps, OneBlockOfFourWorkers) { compare({.lanes = {.workers = 4, .lanes = 4, .blocks = 1}}); }
TEST_P(Pumps, ThreeBlocksOfThree) { compare({.lanes = {.workers = 9, .lanes = 2, .blocks = 3}}); }
TEST_P(Pumps, TwoBlocksOfOneWorker) { compare({.lanes = {.workers = 2, .lanes = kWarpLanes, .blocks = 2}}); }
TEST_P(Pumps, BeltsInTwoBlocks) { compare({.lanes = {.workers = 8, .lanes = 2, .blocks = 2}, .by_belt = true}); }
TEST_P(Pumps, BeltsOfTwoRowsAtOnce) { compare({.lanes = {.workers = 3, .lanes = 4, .blocks = 1}, .by_belt = true}); }
TEST_P(Pumps, WithPlainPeers) {
  compare({.lanes = {.workers = 4, .lanes = 2, .blocks = 2}, .by_belt = true, .only_even_ranks = true});
}

// The word of a worker is cleared before any of its lanes raises it.
TEST(Desks, TellTheWorstOfAllLanes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    LaneCrew crew({.workers = 2, .lanes = 4}, seed);
    LanePort port(PeerView{}, PeerView{});
    Board board;
    std::atomic<int> wrong{0};
    crew.run([&](const Lane& lane) {
      const Desk<Lane, LanePort> desk(lane, port, &board, 1);
      for (uint64_t first = 30; first > 0; first -= 10) {
        const uint64_t worst = desk.worst(first + static_cast<uint64_t>(lane.lane()));
        wrong += worst != first + static_cast<uint64_t>(lane.lanes() - 1);
      }
      return true;
    });
    EXPECT_EQ(wrong, 0) << "seed " << seed;
  }
}

TEST(Belts, AStageHoldsARowInASlotAndInPlace) {
  for (int payload = 16; payload < 4096; payload += 16) {
    DispatchArgs args;
    args.call.shape = {.kind = Kind::dispatch, .payload_bytes = payload, .topk = 8};
    const int64_t stage = belt_of(args).stage_bytes;
    EXPECT_GE(stage, Slot::of(args.call.shape).stride) << payload;
    EXPECT_GE(stage, payload + Slot::of(args.call.shape, true).stride) << payload;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Pumps, ::testing::ValuesIn(step_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace heddle::testing
