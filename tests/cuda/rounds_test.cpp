// Full load, exact data: thousands of rounds back to back without the host, with another kernel beside. What is lost once in
// many calls (a missing release, a slot reused too early) shows as a wrong row here and nowhere else.
//   HEDDLE_ROUNDS   rounds a case, default 40
//   HEDDLE_TOKENS   tokens of a rank, default 256
#include <gmock/gmock.h>

#include <cstdlib>
#include <optional>

#include "cuda/gpu_machine.hpp"
#include "cuda/rounds.hpp"
#include "support/step_world.hpp"
#include "support/routing.hpp"

namespace heddle::testing {
namespace {

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

constexpr int kHidden = 7168;
constexpr int kNoiseBlocks = 4;
constexpr size_t kNoiseBytes = size_t{16} << 20;
constexpr int kTogether = 16;  // rounds queued at once: a full queue would hold a lock that other ranks need

struct Load {
  int ranks;
  Layout layout;
  bool by_graph = false;
  bool whole = false;  // each call in one launch
};

spec::World make_load(const Load& load, int tokens) {
  const spec::World rows = make_world({.routing = Routing::uniform, .ranks = load.ranks, .tokens = tokens, .topk = 8,
                                       .experts = 64, .hidden = 1});
  spec::World world = rows;
  world.hidden = kHidden;
  world.row_bytes = kHidden * static_cast<int>(sizeof(bf16));
  for (spec::Batch& batch : world.batches) batch.rows.resize(static_cast<size_t>(batch.tokens) * world.row_bytes);
  return world;
}

/// How many rows of a token come back and are added: one a rank, or one an expert.
std::vector<int32_t> hits_of(const spec::World& world, int rank, Layout layout) {
  const spec::Batch& batch = world.batches[static_cast<size_t>(rank)];
  std::vector<int32_t> hits;
  for (int token = 0; token < batch.tokens; ++token) {
    int count = 0;
    for (int owner = 0; layout == Layout::token_major && owner < world.ranks; ++owner) {
      count += reaches(world, batch, token, owner);
    }
    for (int k = 0; layout != Layout::token_major && k < world.topk; ++k) {
      count += is_first_column(world, batch, token, k);
    }
    hits.push_back(count);
  }
  return hits;
}

void dispatch_and_combine(CudaBackend& backend, const DispatchArgs& dispatch, const CombineArgs& combine, bool whole) {
  if (whole) {
    backend.dispatch(dispatch);
    backend.combine(combine);
    return;
  }
  backend.dispatch_send(dispatch);
  backend.dispatch_headers(dispatch);
  backend.dispatch_receive(dispatch);
  backend.combine_send(combine);
  backend.combine_headers(combine);
  backend.combine_receive(combine);
}

/// One rank's rounds; returns its wrong rows.
unsigned long long run_rounds(StepRank& rank, Bootstrap& bootstrap, const spec::World& world, const Load& load) {
  auto& machine = static_cast<GpuMachine&>(rank.machine());
  CudaBackend& backend = machine.backend();
  use_gpu(machine.device());
  const int rounds = setting("HEDDLE_ROUNDS", 40);
  const int own = rank.context().topo.rank;
  const int tokens = world.batches[static_cast<size_t>(own)].tokens;
  rank.plan();
  const DispatchCase wanted{.layout = load.layout, .max_tokens = tokens, .fixed_size = true};
  if (!rank.send_dispatch(wanted) || !rank.read_headers() || !rank.receive_dispatch()) return 1;
  const DispatchArgs& dispatch = rank.dispatch_args();
  const CombineArgs combine = rank.echo_args();
  const auto hits = backend.allocate(static_cast<size_t>(tokens) * sizeof(int32_t) + 1);
  const auto expected = hits_of(world, own, load.layout);
  backend.write(hits.get(), expected.data(), expected.size() * sizeof(int32_t));
  const auto bad = backend.allocate(sizeof(unsigned long long));
  const auto memory = backend.allocate(kNoiseBytes);
  std::optional<Noise> noise;
  if (own < count_gpus()) noise.emplace(memory.get(), kNoiseBytes, kNoiseBlocks);

  Launch launch = backend.launch();
  launch.wait = false;
  backend.use(launch);
  const auto once = [&] { dispatch_and_combine(backend, dispatch, combine, load.whole); };
  std::optional<Graph> graph;
  if (load.by_graph) graph.emplace(launch.stream, once);
  bootstrap.barrier("all have captured");
  for (int round = 0; round < rounds; ++round) {
    const RowPattern pattern{.rank = own, .tokens = tokens, .hidden = kHidden, .round = static_cast<uint32_t>(round)};
    fill_rows(const_cast<std::byte*>(dispatch.batch.x), pattern, launch.stream);
    // Eager calls between replays: what a call counts lives with the data, so they mix.
    if (graph && round % 5 != 0) graph->replay();
    else once();
    count_bad_rows(combine.out.x, static_cast<const int32_t*>(hits.get()), pattern,
                   static_cast<unsigned long long*>(bad.get()), launch.stream);
    if (round % kTogether != kTogether - 1) continue;
    backend.drain();
    if (noise) noise->go_on();
  }
  backend.drain();
  unsigned long long wrong = 0;
  backend.read(&wrong, bad.get(), sizeof wrong);
  EXPECT_FALSE(backend.is_faulted()) << "rank " << own;
  return wrong;
}

class Rounds : public ::testing::TestWithParam<Load> {};

TEST_P(Rounds, EveryRowIsExact) {
  HEDDLE_NEEDS_GPU();
  const Load load = GetParam();
  const int tokens = setting("HEDDLE_TOKENS", 256);
  const spec::World world = make_load(load, tokens);
  const GpuOptions gpu{.num_sms = std::max(1, sms_for(load.ranks) - kNoiseBlocks)};
  const MachineOptions options{.window_bytes = size_t{256} << 20, .tags = load.whole};
  const Errors errors = StepWorld(world, gpu_machines(gpu), options).run([&](StepRank& rank, Bootstrap& group) {
    EXPECT_EQ(run_rounds(rank, group, world, load), 0u) << "wrong rows of rank " << rank.context().topo.rank;
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

std::vector<Load> loads() {
  std::vector<Load> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const Layout layout : {Layout::token_major, Layout::expert_major}) {
      all.push_back({ranks, layout});
      all.push_back({.ranks = ranks, .layout = layout, .whole = true});
    }
  }
  all.push_back({2, Layout::token_major, true});
  all.push_back({2, Layout::expert_major, true});
  all.push_back({2, Layout::token_major, true, true});
  all.push_back({2, Layout::expert_major, true, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Rounds, ::testing::ValuesIn(loads()), [](const auto& tested) {
  const bool token_major = tested.param.layout == Layout::token_major;
  return fmt::format("{}{}{}_{}_ranks", tested.param.by_graph ? "graph_" : "", tested.param.whole ? "whole_" : "", token_major ? "token_major" : "expert_major",
                     tested.param.ranks);
});

}  // namespace
}  // namespace heddle::testing
