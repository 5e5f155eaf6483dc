// Ranks that are processes: windows cross by descriptor, GPUs may be shared. The parent must not touch CUDA before it forks,
// so run these tests by themselves (as ctest does).
#include <gmock/gmock.h>

#include "cuda/gpu_machine.hpp"
#include "support/step_world.hpp"
#include "support/tcp_ranks.hpp"

namespace heddle::testing {
namespace {

struct Setup {
  const char* played;
  CudaPath path;
  RankPairs apart{};
};

Setup with_a_pair_apart(const char* played) {
  Setup setup{played, CudaPath::automatic};
  setup.apart.add(2, 0);
  return setup;
}

std::string digest_of(const Trace& trace) {
  uint64_t hash = 0xcbf29ce484222325ull;
  std::string digest;
  for (const Tables& tables : trace) {
    for (const auto& [name, bytes] : tables) {
      for (uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3ull;
      digest += fmt::format("{} {:016x}\n", name, hash);
    }
  }
  return digest;
}

class Processes : public ::testing::TestWithParam<Setup> {};

TEST_P(Processes, LeaveWhatThreadsOnACpuLeave) {
  const StepCase played = step_case(GetParam().played);
  const spec::World world = make_world(played.world);
  const MachineOptions options = options_for(world, played);
  const auto ranks = run_tcp_ranks(world.ranks, [&](Bootstrap& bootstrap) {
    if (const std::string problem = cuda_problem(); !problem.empty()) {
      return std::vector<std::byte>{};
    }
    const Topology topo{.rank = bootstrap.rank(), .world = world.ranks, .experts = world.experts};
    GpuMachine machine(bootstrap, options, {.path = GetParam().path, .apart = GetParam().apart});
    StepRank rank(machine, world, topo, options);
    bootstrap.barrier("start");
    const std::string digest = digest_of(play(rank, played));
    bootstrap.barrier("end");
    const auto* first = reinterpret_cast<const std::byte*>(digest.data());
    return std::vector<std::byte>(first, first + digest.size());
  });
  expect_all_ok(ranks);
  if (!ranks.empty() && ranks[0].ok() && ranks[0].result.empty()) GTEST_SKIP() << "no GPU";
  const auto cpu = play_all(played, make_cpu_machine);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto& result = ranks[rank].result;
    const std::string seen(reinterpret_cast<const char*>(result.data()), result.size());
    EXPECT_EQ(seen, digest_of(cpu[rank])) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, Processes,
                         ::testing::Values(Setup{"token_major_2_ranks", CudaPath::automatic},
                                           Setup{"expert_major_duplicates", CudaPath::automatic},
                                           Setup{"token_major_three_slots", CudaPath::automatic},
                                           Setup{"expert_major_ragged_3_ranks", CudaPath::automatic},
                                           with_a_pair_apart("expert_major_ragged_3_ranks"),
                                           Setup{"expert_major_2_ranks", CudaPath::pinned}),
                         [](const auto& tested) {
                           return fmt::format("{}_{}", tested.param.played,
                                              tested.param.apart.empty() ? name_of(tested.param.path) : "mixed");
                         });

}  // namespace
}  // namespace heddle::testing
