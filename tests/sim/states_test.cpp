// All states of two ranks and a few calls. Prints how many there are.
#include <gtest/gtest.h>

#include <iostream>

#include "sim/explore.hpp"
#include "sim/player.hpp"

namespace heddle::testing {
namespace {

struct Few {
  const char* name;
  std::vector<Step> steps;
};

const Few kFew[] = {
    {"dispatch_and_combine", {{.what = Do::dispatch}, {.what = Do::combine, .of = 0}}},
    {"two_dispatches", {{.what = Do::dispatch}, {.what = Do::dispatch}}},
    {"a_split_pair", {{.what = Do::dispatch, .split = true}, {.what = Do::combine, .split = true, .of = 0}}},
};

class States : public ::testing::TestWithParam<Few> {};

TEST_P(States, EveryPathEndsWell) {
  const Exploration all = explore(tiny_program(GetParam().steps), 5'000'000);
  std::cout << GetParam().name << ": " << all.states << " states, " << all.transitions << " transitions, " << all.ends
            << " ends\n";
  EXPECT_EQ(all.failure, "");
  EXPECT_TRUE(all.complete);
  EXPECT_EQ(all.ends, 1u);
}

std::string name_of_few(const ::testing::TestParamInfo<Few>& few) { return few.param.name; }
INSTANTIATE_TEST_SUITE_P(All, States, ::testing::ValuesIn(kFew), name_of_few);

}  // namespace
}  // namespace heddle::testing
