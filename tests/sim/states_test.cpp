// All states of two ranks and a few calls. Prints how many there are.
#include <gtest/gtest.h>

#include <iostream>

#include "sim/explore.hpp"
#include "sim/player.hpp"

namespace heddle::testing {
namespace {

struct Few {
  const char* name;
  Program program;
};

/// One dispatch whose rows go in two rounds, so that credits are waited for.
Program two_rounds() {
  Program program = tiny_program({{.what = Do::dispatch}});
  program.max_tokens = 2;
  program.batches = {{{.tokens = 2, .ids = {1, -1, 1, -1}, .weights = {1, 1, 1, 1}}, {.tokens = 0, .ids = {}, .weights = {}}}};
  return program;
}

/// Two split calls in flight; the seed says when and in what order each rank runs its hooks.
Program split_pair(uint64_t seed) {
  Program program = tiny_program({{.what = Do::dispatch, .split = true}, {.what = Do::dispatch, .split = true, .batch = 1}});
  program.seed = seed;
  return program;
}

const Few kFew[] = {
    {"dispatch_and_combine", tiny_program({{.what = Do::dispatch}, {.what = Do::combine, .of = 0}})},
    {"two_dispatches", tiny_program({{.what = Do::dispatch}, {.what = Do::dispatch, .batch = 1}})},
    {"two_rounds", two_rounds()},
    {"a_split_pair", split_pair(3)},
    {"a_split_pair_with_late_hooks", split_pair(1)},
};

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kStates = 300;  // many times slower; what each path does, the others do too
#else
constexpr uint64_t kStates = 1'000'000;
#endif

class States : public ::testing::TestWithParam<Few> {};

TEST_P(States, EveryPathEndsWell) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the hash of a state reads all ranks' memory";
#endif
  const Exploration all = explore(GetParam().program, kStates);
  std::cout << GetParam().name << ": " << all.states << " states, " << all.transitions << " transitions, " << all.ends
            << " ends\n";
  EXPECT_EQ(all.failure, "");
  if (all.states > kStates) return;
  EXPECT_TRUE(all.complete);
  EXPECT_EQ(all.ends, 1u);
}

std::string name_of_few(const ::testing::TestParamInfo<Few>& few) { return few.param.name; }
INSTANTIATE_TEST_SUITE_P(All, States, ::testing::ValuesIn(kFew), name_of_few);

}  // namespace
}  // namespace heddle::testing
