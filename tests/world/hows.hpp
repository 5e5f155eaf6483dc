// Tests that run in every cell of {thread, process} x {plain, reordering} x {Solo, Team}, and on GPUs where there are any.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "support/world.hpp"

namespace heddle::testing {

inline void PrintTo(const How& how, std::ostream* out) { *out << name_of(how); }

/// Ends a test early, as skipped, on a machine that cannot play it.
#define HEDDLE_NEEDS(how) \
  if (const std::string problem = problem_of(how); !problem.empty()) GTEST_SKIP() << problem

class InEveryCell : public ::testing::TestWithParam<How> {
 protected:
  void SetUp() override { HEDDLE_NEEDS(GetParam()); }
};

inline std::string cell_name(const ::testing::TestParamInfo<How>& info) { return name_of(info.param); }

/// The cells whose ranks can be killed.
inline std::vector<How> process_hows() {
  std::vector<How> hows = all_hows();
  std::erase_if(hows, [](const How& how) { return how.ranks != Sharing::processes; });
  return hows;
}

/// HEDDLE_WORLD_SEED, or 1.
inline uint64_t world_seed() {
  const char* given = std::getenv("HEDDLE_WORLD_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
}

}  // namespace heddle::testing
