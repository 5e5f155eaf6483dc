// Calls of words in buffers that mask by deadline leave what the plain steps leave on a CPU, whatever of a lost rank had come.
#include "support/lost_rank.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "cuda/gpu_machine.hpp"

namespace heddle::testing {
namespace {

const std::vector<CombineCase>& combines() {
  static const std::vector<CombineCase> all{{}, {.weights = Weights::at_owner}, {.weights = Weights::late, .biases = 1}};
  return all;
}

Arrives on_cpu(Arrives arrives) { return arrives == Arrives::some_rows ? Arrives::headers : arrives; }

class LostRank : public ::testing::TestWithParam<std::tuple<Arrives, CombineCase>> {};

TEST_P(LostRank, IsMaskedByWords) {
  HEDDLE_NEEDS_GPU();
  const auto [arrives, combine] = GetParam();
  expect_same_traces({"lost rank"}, play_with_lost_rank(make_cpu_machine, on_cpu(arrives), combine, false),
                     play_with_lost_rank(gpu_machines(), arrives, combine, true));
}

INSTANTIATE_TEST_SUITE_P(All, LostRank,
                         ::testing::Combine(::testing::Values(Arrives::nothing, Arrives::headers, Arrives::some_rows,
                                                              Arrives::dispatch, Arrives::all),
                                            ::testing::ValuesIn(combines())));

// A result that came in part counts as one that did not come.
TEST(LostRank, NoTokenHasHalfARow) {
  HEDDLE_NEEDS_GPU();
  const CombineCase combine{.weights = Weights::at_owner};
  const auto of = [&](const MakeMachine& make, Arrives arrives, bool words) {
    return play_with_lost_rank(make, arrives, combine, words)[0][2].at("combined");
  };
  const TableBytes whole = of(make_cpu_machine, Arrives::all, false), without = of(make_cpu_machine, Arrives::dispatch, false);
  const TableBytes seen = of(gpu_machines(), Arrives::some_results, true);
  constexpr size_t kRow = 1296 * 2;
  size_t had = 0, lacked = 0;
  for (size_t at = 0; at < seen.size(); at += kRow) {
    const auto same = [&](const TableBytes& other) {
      return std::equal(seen.begin() + at, seen.begin() + at + kRow, other.begin() + at);
    };
    EXPECT_TRUE(same(whole) || same(without)) << "token " << at / kRow;
    had += same(whole) && !same(without);
    lacked += same(without) && !same(whole);
  }
  EXPECT_EQ(had, 2u);
  EXPECT_GT(lacked, 3u);
}

}  // namespace
}  // namespace heddle::testing
