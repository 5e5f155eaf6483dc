// Workers with many lanes, as GPUs have them, leave the same bytes as one thread alone. On a CPU a worker has one lane, so
// nothing else here would notice a lane that reads what another has yet to write.
#include <gmock/gmock.h>

#include "sim/lane_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

class Lanes : public ::testing::TestWithParam<StepCase> {
 protected:
  void compare(const LaneShape& shape) const {
    StepCase played = GetParam();
    played.world.tokens = played.dispatch.max_tokens = 17;
    played.world.hidden = played.world.hidden % 128 == 0 ? 128 : 136;
    const MakeMachine lanes = [shape](Bootstrap& bootstrap, const MachineOptions& options) {
      return std::make_unique<LaneMachine>(bootstrap, options, shape);
    };
    expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, lanes));
  }
};

TEST_P(Lanes, ThreeWorkersOfFourLanes) { compare({.workers = 3, .lanes = 4}); }
TEST_P(Lanes, OneWarp) { compare({.workers = 1, .lanes = kWarpLanes}); }

INSTANTIATE_TEST_SUITE_P(All, Lanes, ::testing::ValuesIn(step_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace heddle::testing
