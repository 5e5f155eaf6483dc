// Experts are told as ready once all their rows are there, and as soon as those are, whosever others are missing.
#include "protocol/ready.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "protocol/dispatch_layout.hpp"
#include "support/expert_gemm.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

using ::testing::Each;

TEST(Ready, TheLastPieceEndsTheCall) {
  uint64_t word = 7 * kReadyCall;
  add_ready(&word, 3);
  add_ready(&word, 3);
  EXPECT_EQ(word, 7 * kReadyCall + 2);
  add_ready(&word, 3);
  EXPECT_EQ(word, 8 * kReadyCall);
  add_ready(&word, 1);
  EXPECT_EQ(word, 9 * kReadyCall);
}

std::vector<uint64_t> words_of(const TableBytes& bytes) {
  std::vector<uint64_t> words(bytes.size() / sizeof(uint64_t));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

class ReadyCases : public ::testing::TestWithParam<StepCase> {};

// Whatever is asked to be told, the call leaves the same; and each call counts once for each expert, in any case.
TEST_P(ReadyCases, EachCallCountsOnce) {
  const StepCase plain = GetParam();
  StepCase told = plain;
  told.dispatch.tells_ready = true;
  std::vector<Trace> seen = play_all(told, make_cpu_machine);
  for (Trace& trace : seen) {
    uint64_t calls = 0;
    for (Tables& tables : trace) {
      const auto found = tables.find("ready");
      if (found == tables.end()) continue;
      EXPECT_THAT(words_of(found->second), Each(++calls * kReadyCall)) << plain.name;
      tables.erase(found);
    }
    EXPECT_EQ(calls, static_cast<uint64_t>(plain.rounds));
  }
  expect_same_traces(plain, play_all(plain, make_cpu_machine), seen);
}

std::vector<StepCase> grouped_cases() {
  std::vector<StepCase> grouped;
  for (const StepCase& one : step_cases()) {
    if (one.dispatch.layout != Layout::token_major) grouped.push_back(one);
  }
  return grouped;
}

INSTANTIATE_TEST_SUITE_P(All, ReadyCases, ::testing::ValuesIn(grouped_cases()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Ready, AGemmBeginsWithAnExpertWhileAnothersRowsAreMissing) {
  expect_gemm_beside_held_rows(make_cpu_machine, make_cpu_gemm, false);
}

}  // namespace
}  // namespace heddle::testing
