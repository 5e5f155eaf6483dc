// A GPU leaves the same bytes as a CPU after each step: the same slots, rows, sums and roundings, whatever the routing,
// the layout, the quantisation, the rounds and the workers.
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

// Of three ranks and more, two pairs meet in pinned host memory and the others in one another's GPU memory: nothing may
// depend on it. The window is so large that both kinds take part.
StepCase as_mixed(StepCase played) {
  played.world.ranks = std::max(3, played.world.ranks);
  played.window_bytes = size_t{64} << 20;
  return played;
}

GpuOptions with_pairs_apart() {
  GpuOptions gpu;
  gpu.apart.add(0, 2);
  gpu.apart.add(1, 2);
  return gpu;
}

TEST_P(Parity, MixedMemory) {
  HEDDLE_NEEDS_GPU();
  const StepCase played = as_mixed(GetParam());
  expect_same_traces(played, play_all(played, make_cpu_machine), play_all(played, gpu_machines(with_pairs_apart())));
}

TEST_P(Parity, WholeMixedMemory) {
  HEDDLE_NEEDS_GPU();
  const StepCase played = as_mixed(as_whole(GetParam()));
  expect_same_traces(played, play_all(played, make_cpu_machine),
                     play_all(played, gpu_machines(with_pairs_apart()), play_whole));
}

TEST(MixedMemory, IsWhatPairsApartGet) {
  HEDDLE_NEEDS_GPU();
  const auto path_of = [](int ranks, const GpuOptions& gpu) {
    std::vector<CudaPath> paths(static_cast<size_t>(ranks));
    run_threads(ranks, [&](Bootstrap& bootstrap) {
      paths[static_cast<size_t>(bootstrap.rank())] =
          GpuMachine(bootstrap, {.window_bytes = size_t{64} << 20}, gpu).path();
    });
    return paths;
  };
  EXPECT_THAT(path_of(3, with_pairs_apart()), ::testing::Each(CudaPath::mixed));
  GpuOptions all = with_pairs_apart();
  all.apart.add(0, 1);
  EXPECT_THAT(path_of(3, all), ::testing::Each(CudaPath::pinned));
  GpuOptions two;
  two.apart.add(0, 1);
  EXPECT_THAT(path_of(2, two), ::testing::Each(CudaPath::pinned));
  EXPECT_THAT(path_of(3, {}), ::testing::Not(::testing::Contains(CudaPath::mixed)));
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
