// Tries one build of the protocol's steps: those of this program, or those of a library that run.py made from damaged headers.
//   units     what the layers below the protocol promise, and a plan: knows nothing of ranks that wait for one another
//   simulate  seeded schedules and a few cases of tests/sim
// Prints the first failure; exits 0, 1, or as the fault pleases.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "mutants/steps.hpp"
#include "sim/player.hpp"
#include "sim/universe.hpp"
#include "spec/plan.hpp"
#include "support/routing.hpp"

namespace heddle::testing {
namespace {

std::string check_counts() {
  uint64_t word = 3;
  add_count(&word, 4);
  return word == 7 ? "" : "add_count";
}

std::string check_plan() {
  const spec::World world = make_world({.routing = Routing::duplicates, .ranks = 3, .tokens = 17, .topk = 4, .experts = 7});
  const spec::Plan wanted = spec::plan(world)[1];
  Universe universe({.ranks = 3});
  const auto backend = make_sim_backend(universe, 1, false);
  std::vector<int32_t> ids = world.batches[1].ids;
  const Topology topo{.rank = 1, .world = 3, .experts = 7};
  std::vector<int32_t> ordinals(17 * 4), per_rank(3), offset(4), tokens(17 * 3), pairs(7), rows(7);
  std::vector<int32_t> scratch(static_cast<size_t>(plan_scratch_words(topo, 1)));
  std::vector<uint8_t> in_rank(17 * 3);
  backend->plan(topo, {.tokens = 17, .topk = 4, .ids = ids.data(), .ordinals = ordinals.data(), .in_rank = in_rank.data(),
                       .per_rank = per_rank.data(), .send_offset = offset.data(), .send_tokens = tokens.data(),
                       .pairs = pairs.data(), .rows = rows.data(), .scratch = scratch.data()});
  tokens.resize(static_cast<size_t>(offset[3]));
  const bool same = ordinals == wanted.ordinal && in_rank == wanted.in_rank && offset == wanted.send_offset &&
                    tokens == wanted.send_tokens && pairs == wanted.pairs_per_expert && rows == wanted.rows_per_expert;
  return same ? "" : "plan";
}

std::string units() {
  const std::string counts = check_counts();
  return counts.empty() ? check_plan() : counts;
}

/// The cases that tests/sim keeps by hand.
std::vector<Program> cases() {
  Program resets = tiny_program({});
  resets.segments = {{.resets = true}, {.resets = true}, {.resets = true}};
  Program masked = tiny_program({{.what = Do::dispatch}, {.what = Do::mask, .rank = 0, .peer = 1}});
  masked.in_place = masked.segments[0].may_mask = masked.segments[0].resets = true;
  const Step sent{.what = Do::dispatch, .split = true};
  // The lane of a refused call is used again by the second call after it.
  const Step call{.what = Do::dispatch, .batch = 1};
  return {resets, masked, tiny_program({sent, sent, sent, sent, sent}),
          tiny_program({{.what = Do::refuse, .rank = 0}, call, call})};
}

std::string simulate(uint64_t count) {
  for (uint64_t seed = 0; seed < count; ++seed) {
    std::vector<Program> programs = cases();
    for (Program& program : programs) program.seed = seed;
    programs.push_back(draw_program(seed));
    for (const Program& program : programs) {
      const std::string failure = play(program);
      if (!failure.empty()) return "seed " + std::to_string(seed) + ": " + failure;
      if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) return "heap, seed " + std::to_string(seed);
    }
  }
  return {};
}

}  // namespace
}  // namespace heddle::testing

int main(int argc, char** argv) {
  using namespace heddle::testing;
  if (argc < 3 || (argc > 3 && !use_steps(argv[3]))) {
    std::fprintf(stderr, "usage: driver units|simulate COUNT [LIBRARY]; %s\n", argc > 3 ? dlerror() : "");
    return 2;
  }
  const std::string failure = std::string(argv[1]) == "units" ? units() : simulate(std::strtoull(argv[2], nullptr, 10));
  if (!failure.empty()) std::printf("%s\n", failure.c_str());
  return failure.empty() ? 0 : 1;
}
