#include "bootstrap/agree.hpp"

#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using testing::error_with;
using testing::NoneFailed;
using testing::run_threads;

TEST(Agree, SameSettingsPass) {
  const auto errors = run_threads(3, [](Bootstrap& bootstrap) {
    agree(bootstrap, std::vector<Setting>{{"layout", "3"}, {"bytes", "4096"}});
    agree(bootstrap, {});
  });
  EXPECT_THAT(errors, NoneFailed());
}

// I13: the error is the same on every rank, also on those that hold the majority's value.
TEST(Agree, MismatchNamesFieldRanksAndValues) {
  const auto errors = run_threads(4, [](Bootstrap& bootstrap) {
    const bool odd_one = bootstrap.rank() == 2;
    agree(bootstrap, std::vector<Setting>{{"layout", "3"}, {"bytes", odd_one ? "8192" : "4096"}});
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "bytes is 4096 on ranks 0-1, 3, 8192 on ranks 2"));
    EXPECT_EQ(std::string(error->what()).find("layout"), std::string::npos);
  }
}

// All of them at once: a user who fixes one setting at a time restarts the job as many times.
TEST(Agree, EveryDifferenceIsNamed) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    const std::string value = bootstrap.rank() == 0 ? "a" : "b";
    agree(bootstrap, std::vector<Setting>{{"first", value}, {"same", "x"}, {"second", value}});
  });
  for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::mismatch, "first is a", "second is a"));
}

// Another version of the library may have settings that we lack.
TEST(Agree, SettingOfSomeRanksOnlyIsADifference) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    std::vector<Setting> settings = {{"layout", "3"}};
    if (bootstrap.rank() == 1) settings.push_back({"offers", "on"});
    agree(bootstrap, settings);
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "offers is absent on ranks 0, on on ranks 1"));
  }
}

}  // namespace
}  // namespace heddle
