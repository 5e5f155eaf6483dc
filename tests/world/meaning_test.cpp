// Every world means what the spec says, byte for byte: ranks as threads and as processes, over a plain and a reordering
// port, alone and as teams. HEDDLE_WORLD_SEED moves the seed that draws the cases.
#include <fmt/format.h>

#include <tuple>

#include "world/cases.hpp"
#include "world/hows.hpp"

namespace heddle::testing {
namespace {

uint64_t seed_of(Group group, const How& how) {
  return world_seed() * 1000 + static_cast<uint64_t>(group) * 100 + static_cast<uint64_t>(how.ranks) * 4 +
         static_cast<uint64_t>(how.port) * 2 + static_cast<uint64_t>(how.crew);
}

class Worlds : public ::testing::TestWithParam<std::tuple<How, Group>> {
 protected:
  void SetUp() override { HEDDLE_NEEDS(std::get<How>(GetParam())); }
};

TEST_P(Worlds, MeanWhatTheSpecSays) {
  const auto& [how, group] = GetParam();
  for (const Case& c : cases_of(group, seed_of(group, how))) {
    const Meaning meaning = meaning_of(c);
    World(how, settings_for(c)).run([&](Rank& r) { play(r, c, meaning); });
    if (HasFailure()) FAIL() << name_of(how) << ", HEDDLE_WORLD_SEED=" << world_seed() << ": " << c.describe();
  }
}

std::string name_with_count(const ::testing::TestParamInfo<Worlds::ParamType>& info) {
  const auto& [how, group] = info.param;
  return fmt::format("{}_{}_{}_cases", name_of(how), name_of(group), cases_of(group, seed_of(group, how)).size());
}

INSTANTIATE_TEST_SUITE_P(All, Worlds, ::testing::Combine(::testing::ValuesIn(all_hows()), ::testing::ValuesIn(kGroups)),
                         name_with_count);

TEST(Worlds, CasesPerCell) {
  for (const How& how : all_hows()) {
    size_t cases = 0;
    for (const Group group : kGroups) cases += cases_of(group, seed_of(group, how)).size();
    fmt::print("world cases, {}: {}\n", name_of(how), cases);
  }
}

}  // namespace
}  // namespace heddle::testing
