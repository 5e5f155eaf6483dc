// Experts that are told as ready on a GPU: by words and by the plain steps, as on a CPU; and a kernel that begins with one.
#include <gmock/gmock.h>

#include "cuda/expert_gemm.hpp"
#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

StepCase telling(StepCase played) {
  played.dispatch.tells_ready = true;
  return played;
}

void compare(const StepCase& played, const GpuOptions& gpu, const Play& way) {
  HEDDLE_NEEDS_GPU();
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(gpu), way));
}

class ReadyByWords : public ::testing::TestWithParam<StepCase> {};

TEST_P(ReadyByWords, InOneLaunch) { compare(telling(GetParam()), {}, play_whole); }
TEST_P(ReadyByWords, InOneLaunchOfFewBlocks) { compare(telling(GetParam()), {.num_sms = 3}, play_whole); }
TEST_P(ReadyByWords, SendAndReceiveApart) {
  StepCase played = telling(GetParam());
  played.dispatch.split = true;
  compare(played, {}, play);
}

INSTANTIATE_TEST_SUITE_P(All, ReadyByWords, ::testing::ValuesIn(decode_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

class ReadyBySteps : public ::testing::TestWithParam<StepCase> {};

TEST_P(ReadyBySteps, Parity) { compare(telling(GetParam()), {}, play); }
// Where a pump would do the call in one launch, the steps do.
TEST_P(ReadyBySteps, Whole) { compare(telling(as_whole(GetParam())), {}, play_whole); }

INSTANTIATE_TEST_SUITE_P(Some, ReadyBySteps,
                         ::testing::Values(step_case("expert_major_ragged_3_ranks"), step_case("expert_major_five_slots"),
                                           step_case("expert_major_dropped"), step_case("slab_2_ranks"),
                                           step_case("slab_nvfp4_tiles")),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(ReadyOnGpu, AKernelBeginsWithAnExpertWhileAnothersWordsAreMissing) {
  HEDDLE_NEEDS_GPU();
  expect_gemm_beside_held_rows(gpu_machines(), gpu_gemms(0), true);
}

TEST(ReadyOnGpu, AKernelBeginsWithAnExpertWhileAnothersRowsAreMissing) {
  HEDDLE_NEEDS_GPU();
  expect_gemm_beside_held_rows(gpu_machines(), gpu_gemms(0), false);
}

}  // namespace
}  // namespace heddle::testing
