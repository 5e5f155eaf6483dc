// Seeded schedules of two to five ranks through the real Buffer: rounds, split calls with their hooks in any order, refusals,
// ranks that stall or die, masks, resets, rows in place. Every result is compared exactly.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/player.hpp"

namespace heddle::testing {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSchedules = 150;
#else
constexpr uint64_t kSchedules = 1000;
#endif

class Schedules : public ::testing::TestWithParam<int> {};

// HEDDLE_SIM_SEED=n plays schedule n alone; HEDDLE_SIM_COUNT=n plays n of each batch.
TEST_P(Schedules, EveryResultIsExact) {
  const char* count_given = std::getenv("HEDDLE_SIM_COUNT");
  const uint64_t count = count_given == nullptr ? kSchedules : std::strtoull(count_given, nullptr, 10);
  const bool alone = std::getenv("HEDDLE_SIM_SEED") != nullptr;
  const uint64_t first = sim_seed(static_cast<uint64_t>(GetParam()) * 1'000'000);
  for (uint64_t seed = first; seed < first + (alone ? 1 : count); ++seed) {
    const Program program = draw_program(seed);
    ASSERT_EQ(play(program), "") << program.describe();
    ASSERT_FALSE(HasFailure()) << program.describe();
  }
}

void expect_all_well(Program program) {
  for (program.seed = 1; program.seed <= kSchedules; ++program.seed) {
    ASSERT_EQ(play(program), "") << program.describe();
    ASSERT_FALSE(::testing::Test::HasFailure()) << program.describe();
  }
}

// A rank that is quick is in its second reset while another takes its last look in the first: that one was not left out.
TEST(Former, ResetAfterResetWithNothingBetween) {
  Program program = tiny_program({});
  program.segments = {{.resets = true}, {.resets = true}, {.resets = true}};
  expect_all_well(program);
}

// A rank may store its rows into an offered output, be done and mask the receiver, all before a row has landed. The output
// is free for its owner then, but its memory is not for anybody else.
TEST(Former, RowsInPlaceOfARankThatMasksTheReceiver) {
  Program program = tiny_program({{.what = Do::dispatch}, {.what = Do::mask, .rank = 0, .peer = 1}});
  program.in_place = true;
  program.segments[0].may_mask = program.segments[0].resets = true;
  expect_all_well(program);
}

INSTANTIATE_TEST_SUITE_P(Batch, Schedules, ::testing::Range(0, 4));

}  // namespace
}  // namespace heddle::testing
