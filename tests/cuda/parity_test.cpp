// A GPU leaves the same bytes as a CPU after each step: the same slots, rows, sums and roundings, whatever the routing, the
// layout, the quantisation, the rounds and the workers.
#include <gmock/gmock.h>

#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

void expect_parity(const StepCase& played, const GpuOptions& gpu) {
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(gpu)));
}

class Parity : public ::testing::TestWithParam<StepCase> {};

TEST_P(Parity, Grid) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), {});
}

// The protocol does not know how many work together: one warp and one block must do the same as a whole GPU.
TEST_P(Parity, Block) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), {.workers = Workers::block});
}

TEST_P(Parity, Warp) {
  HEDDLE_NEEDS_GPU();
  if (GetParam().world.ranks > 3) GTEST_SKIP() << "slow";
  expect_parity(GetParam(), {.workers = Workers::warp});
}

TEST_P(Parity, PinnedHostMemory) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), {.path = CudaPath::pinned});
}

// Whole calls by the pumps; with plain peers that store tags, they must not notice.
TEST_P(Parity, Whole) {
  HEDDLE_NEEDS_GPU();
  const StepCase played = as_whole(GetParam());
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(), play_whole));
}

TEST_P(Parity, WholeAmongPlain) {
  HEDDLE_NEEDS_GPU();
  const StepCase played = as_whole(GetParam());
  const Play mixed = [](StepRank& rank, const StepCase& one) {
    return rank.context().topo.rank % 2 == 0 ? play_whole(rank, one) : play(rank, one);
  };
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(), mixed));
}

// Rows in place (I14): nothing may depend on which way a pair's rows take, so the CPU's are staged.
TEST_P(Parity, InPlace) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), {.heap_bytes = size_t{64} << 20});
}

TEST_P(Parity, WholeInPlace) {
  HEDDLE_NEEDS_GPU();
  const StepCase played = as_whole(GetParam());
  const GpuOptions gpu{.heap_bytes = size_t{64} << 20};
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(gpu), play_whole));
}

INSTANTIATE_TEST_SUITE_P(All, Parity, ::testing::ValuesIn(step_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

}  // namespace
}  // namespace heddle::testing
