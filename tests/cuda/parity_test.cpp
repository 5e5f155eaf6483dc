// A GPU leaves the same bytes as a CPU after each step: the same slots, rows, sums and roundings, whatever the routing, the
// layout, the quantisation, the rounds and the workers.
#include <gmock/gmock.h>

#include "cuda/step_world.hpp"
#include "support/routing.hpp"

namespace heddle::testing {
namespace {

struct Case {
  const char* name;
  WorldOptions world;
  DispatchCase dispatch;
  std::vector<CombineCase> combines{{}};
  int64_t slots = 0;  // of a pair's range; 0: all rows fit in one round
  int rounds = 2;     // the whole path again on the same buffer
};

/// Everything one rank's steps left, in order.
using Trace = std::vector<Tables>;

void expect(bool ok, const char* step) {
  if (!ok) fail(ErrorCode::faulted, "{} ended in a fault", step);
}

Trace play(StepRank& rank, const Case& played) {
  Trace trace;
  trace.push_back(rank.plan());
  for (int round = 0; round < played.rounds; ++round) {
    expect(rank.send_dispatch(played.dispatch), "dispatch_send");
    expect(rank.read_headers(), "dispatch_headers");
    expect(rank.receive_dispatch(), "dispatch_receive");
    trace.push_back(rank.dispatched());
    for (const CombineCase& combine : played.combines) {
      expect(rank.send_combine(combine, static_cast<uint64_t>(round)), "combine_send");
      expect(rank.receive_combine(), "combine_receive");
      trace.push_back(rank.combined());
    }
  }
  return trace;
}

std::vector<Trace> play_all(const spec::World& world, const Case& played, MachineOptions options) {
  std::vector<Trace> traces(static_cast<size_t>(world.ranks));
  const Errors errors = StepWorld(world, options).run([&](StepRank& rank) {
    traces[static_cast<size_t>(rank.context().topo.rank)] = play(rank, played);
  });
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    if (errors[rank]) ADD_FAILURE() << (options.gpu ? "GPU" : "CPU") << " rank " << rank << ": " << errors[rank]->what();
  }
  return traces;
}

std::string first_difference(const Bytes& cpu, const Bytes& gpu) {
  if (cpu.size() != gpu.size()) return fmt::format("{} bytes on the CPU, {} on the GPU", cpu.size(), gpu.size());
  size_t wrong = 0, first = cpu.size();
  for (size_t i = 0; i < cpu.size(); ++i) {
    if (cpu[i] == gpu[i]) continue;
    first = std::min(first, i);
    ++wrong;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} bytes differ, first at {}: CPU {:#x}, GPU {:#x}", wrong, cpu.size(), first, cpu[first],
                     gpu[first]);
}

void expect_same(const Tables& cpu, const Tables& gpu, const std::string& where) {
  ASSERT_EQ(cpu.size(), gpu.size()) << where;
  for (const auto& [name, bytes] : cpu) {
    const auto found = gpu.find(name);
    ASSERT_NE(found, gpu.end()) << where << ": " << name;
    EXPECT_EQ(first_difference(bytes, found->second), "") << where << ": " << name;
  }
}

MachineOptions options_for(const spec::World& world, const Case& played) {
  MachineOptions options;
  if (played.slots > 0) options.window_bytes = window_for(world, played.dispatch, played.slots);
  return options;
}

void expect_parity(const Case& played, Workers workers, CudaPath path = CudaPath::automatic) {
  const spec::World world = make_world(played.world);
  MachineOptions options = options_for(world, played);
  const auto cpu = play_all(world, played, options);
  options.gpu = true;
  options.workers = workers;
  options.path = path;
  const auto gpu = play_all(world, played, options);
  for (size_t rank = 0; rank < cpu.size(); ++rank) {
    ASSERT_EQ(cpu[rank].size(), gpu[rank].size()) << "rank " << rank;
    for (size_t i = 0; i < cpu[rank].size(); ++i) {
      expect_same(cpu[rank][i], gpu[rank][i], fmt::format("{}, rank {}, step {}", played.name, rank, i));
    }
  }
}

WorldOptions world_of(int ranks, Routing routing, int topk = 4) {
  return {.routing = routing, .ranks = ranks, .tokens = 61, .topk = topk, .experts = 10, .hidden = 512,
          .values = Values::random};
}

std::vector<Case> cases() {
  const std::vector<CombineCase> grouped{{},
                                         {.weights = Weights::at_owner},
                                         {.weights = Weights::late, .biases = 1},
                                         {.weights = Weights::at_source, .biases = 2},
                                         {.wire = DType::f32},
                                         {.row_weights = true}};
  const std::vector<CombineCase> tokens{{}, {.biases = 2}, {.wire = DType::f32}, {.row_weights = true}};
  const DispatchCase token_major{.max_tokens = 61};
  const DispatchCase expert_major{.layout = Layout::expert_major, .alignment = 8, .max_tokens = 61, .zero_padding = true};
  const DispatchCase slab{.layout = Layout::slab, .max_tokens = 61};
  auto fp8 = [](DispatchCase base, Quantise quantise) {
    base.quantise = quantise;
    return base;
  };
  auto fixed = [](DispatchCase base, int64_t capacity) {
    base.fixed_size = true;
    base.capacity = capacity;
    return base;
  };
  std::vector<Case> all{
      {"token_major_1_rank", world_of(1, Routing::uniform), token_major, tokens},
      {"token_major_2_ranks", world_of(2, Routing::uniform), token_major, tokens},
      {"token_major_holes", world_of(2, Routing::holes), token_major, tokens},
      {"token_major_three_slots", world_of(2, Routing::uniform), token_major, {{}}, 3},
      {"token_major_nothing", world_of(2, Routing::nothing), token_major, {{}}},
      {"token_major_empty_rank", world_of(3, Routing::empty_rank), token_major, {{}}},
      {"token_major_fixed", world_of(2, Routing::ragged), fixed(token_major, -1), tokens},
      {"token_major_dropped", world_of(2, Routing::uniform), fixed(token_major, 40), {{}}},
      {"token_major_fp8", world_of(2, Routing::uniform), fp8(token_major, Quantise::fp8), {{}}},
      {"expert_major_2_ranks", world_of(2, Routing::uniform), expert_major, grouped},
      {"expert_major_duplicates", world_of(2, Routing::duplicates), expert_major, grouped},
      {"expert_major_ragged_3_ranks", world_of(3, Routing::ragged), expert_major, grouped},
      {"expert_major_skew", world_of(4, Routing::one_expert), expert_major, {{}}},
      {"expert_major_five_slots", world_of(2, Routing::zipf), expert_major, grouped, 5},
      {"expert_major_ue8m0", world_of(2, Routing::uniform), fp8(expert_major, Quantise::fp8_ue8m0), {{}}},
      {"expert_major_dropped", world_of(2, Routing::uniform), fixed(expert_major, 100), {{}}},
      {"slab_2_ranks", world_of(2, Routing::uniform), slab, grouped},
      {"slab_pow2", world_of(2, Routing::holes), fp8(slab, Quantise::fp8_pow2), {{}}},
      {"expert_major_8_ranks", world_of(8, Routing::uniform), expert_major, grouped},
  };
  all.push_back({"scales_of_the_caller", world_of(2, Routing::uniform), token_major, {{}}});
  all.back().world.dtype = all.back().dispatch.dtype = DType::e4m3;
  all.back().world.scale_words = 4;
  all.push_back({"wide_topk", world_of(2, Routing::duplicates, 33), expert_major, grouped});
  all.push_back({"odd_hidden", world_of(2, Routing::uniform), expert_major, grouped});
  all.back().world.hidden = 1032;
  return all;
}

class Parity : public ::testing::TestWithParam<Case> {};

TEST_P(Parity, Grid) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), Workers::grid);
}

// The protocol does not know how many work together: one warp and one block must do the same as a whole GPU.
TEST_P(Parity, Block) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), Workers::block);
}

TEST_P(Parity, Warp) {
  HEDDLE_NEEDS_GPU();
  if (GetParam().world.ranks > 3) GTEST_SKIP() << "slow";
  expect_parity(GetParam(), Workers::warp);
}

TEST_P(Parity, PinnedHostMemory) {
  HEDDLE_NEEDS_GPU();
  expect_parity(GetParam(), Workers::grid, CudaPath::pinned);
}

INSTANTIATE_TEST_SUITE_P(All, Parity, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

// The harness itself: two CPU worlds leave the same bytes.
TEST(ParityHarness, TwoCpuWorldsAgree) {
  for (const Case& played : cases()) {
    const spec::World world = make_world(played.world);
    const MachineOptions options = options_for(world, played);
    const auto once = play_all(world, played, options);
    const auto again = play_all(world, played, options);
    for (size_t rank = 0; rank < once.size(); ++rank) {
      ASSERT_EQ(once[rank].size(), again[rank].size()) << played.name;
      for (size_t i = 0; i < once[rank].size(); ++i) expect_same(once[rank][i], again[rank][i], played.name);
    }
  }
}

}  // namespace
}  // namespace heddle::testing
