// Calls whose rows are self-announcing words leave the bytes that the plain steps leave on a CPU: in one launch or in two,
// whatever the routing, the cast, the sums, and the number of blocks.
#include <gmock/gmock.h>

#include "cuda/gpu_machine.hpp"
#include "protocol/context.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

class Decode : public ::testing::TestWithParam<StepCase> {
 protected:
  void SetUp() override { HEDDLE_NEEDS_GPU(); }

  static void compare(const StepCase& played, const GpuOptions& gpu, const Play& way) {
    const auto wanted = play_all(played, make_cpu_machine);
    expect_same_traces(played, wanted, play_all(played, gpu_machines(gpu), way));
  }
};

/// Fails where a call would silently take another way than by words.
Trace play_by_words(StepRank& rank, const StepCase& played, const Play& way) {
  Trace trace = way(rank, played);
  EXPECT_TRUE(uses_words(rank.context(), rank.dispatch_args().call.shape)) << played.name;
  EXPECT_TRUE(uses_words(rank.context(), rank.echo_args().call.shape)) << played.name;
  return trace;
}

TEST_P(Decode, InOneLaunch) {
  compare(GetParam(), {}, [](StepRank& rank, const StepCase& one) { return play_by_words(rank, one, play_whole); });
}

TEST_P(Decode, TakesTheCallersIds) {
  compare(GetParam(), {},
          [](StepRank& rank, const StepCase& one) { return play_by_words(rank, one, play_whole_of_wide_ids); });
}

TEST_P(Decode, InOneLaunchOfFewBlocks) {
  compare(GetParam(), {.num_sms = 3},
          [](StepRank& rank, const StepCase& one) { return play_by_words(rank, one, play_whole); });
}

// What is sent may be overwritten before it is received, so this rank's own rows travel as well.
TEST_P(Decode, SendAndReceiveApart) {
  StepCase played = GetParam();
  played.dispatch.split = true;
  compare(played, {}, [](StepRank& rank, const StepCase& one) { return play_by_words(rank, one, play); });
}

INSTANTIATE_TEST_SUITE_P(All, Decode, ::testing::ValuesIn(decode_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace heddle::testing
