// The same parity with one thread that launches for all ranks, as compute-sanitizer needs it; small shapes, for its sake.
#include <gmock/gmock.h>

#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

struct LockstepRank {
  std::unique_ptr<GpuMachine> machine;
  std::unique_ptr<StepRank> steps;
};

/// Made by a thread each, as their windows need it, but used by one.
std::vector<LockstepRank> make_ranks(const spec::World& world, const MachineOptions& options) {
  std::vector<LockstepRank> ranks(static_cast<size_t>(world.ranks));
  run_threads(world.ranks, [&](Bootstrap& bootstrap) {
    ranks[static_cast<size_t>(bootstrap.rank())].machine =
        std::make_unique<GpuMachine>(bootstrap, options, GpuOptions{.num_sms = 4});
  });
  for (int rank = 0; rank < world.ranks; ++rank) {
    LockstepRank& own = ranks[static_cast<size_t>(rank)];
    Launch launch = own.machine->backend().launch();
    launch.wait = false;
    own.machine->backend().use(launch);
    const Topology topo{.rank = rank, .world = world.ranks, .experts = world.experts};
    own.steps = std::make_unique<StepRank>(*own.machine, world, topo, options);
  }
  return ranks;
}

class Lockstep : public ::testing::TestWithParam<const char*> {};

void compare_in_lockstep(StepCase played, std::vector<Trace> (*way)(std::vector<StepRank*>, const StepCase&)) {
  played.world.tokens = played.dispatch.max_tokens = 13;
  played.world.hidden = 256;
  played.rounds = 1;
  const auto wanted = play_all(played, make_cpu_machine);

  const spec::World world = make_world(played.world);
  MachineOptions options = options_for(world, played);
  options.timeout = std::chrono::seconds(100);  // under a tool everything is slow
  const auto owners = make_ranks(world, options);
  std::vector<StepRank*> ranks;
  for (const LockstepRank& owner : owners) ranks.push_back(owner.steps.get());
  expect_same_traces(played, wanted, way(ranks, played));
}

TEST_P(Lockstep, Parity) {
  HEDDLE_NEEDS_GPU();
  compare_in_lockstep(step_case(GetParam()), play_lockstep);
}

// The pumps, with their mailboxes, belts and tags.
TEST_P(Lockstep, Whole) {
  HEDDLE_NEEDS_GPU();
  compare_in_lockstep(as_whole(step_case(GetParam())), play_whole_lockstep);
}

INSTANTIATE_TEST_SUITE_P(Small, Lockstep,
                         ::testing::Values("token_major_2_ranks", "token_major_three_slots", "expert_major_duplicates",
                                           "slab_2_ranks", "expert_major_ue8m0", "slab_nvfp4_tiles"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace heddle::testing
