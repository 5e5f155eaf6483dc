// Seeded schedules of two to five ranks through the real Buffer: rounds, split calls with their hooks in any order, refusals,
// ranks that stall or die, masks, resets, rows in place. Every result is compared exactly.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/player.hpp"

namespace heddle::testing {
namespace {

#ifdef __SANITIZE_THREAD__
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

INSTANTIATE_TEST_SUITE_P(Batch, Schedules, ::testing::Range(0, 4));

}  // namespace
}  // namespace heddle::testing
