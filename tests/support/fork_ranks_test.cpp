#include "support/fork_ranks.hpp"

#include <thread>

namespace heddle::testing {
namespace {

using namespace std::chrono_literals;

TEST(ForkRanks, ResultsComeBackByRank) {
  const auto outcomes = run_ranks(5, [](int rank) { return to_bytes(rank * 10); });
  ASSERT_EQ(outcomes.size(), 5u);
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_TRUE(outcomes[rank].ok()) << outcomes[rank];
    EXPECT_EQ(from_bytes<int>(outcomes[rank].result), rank * 10);
  }
}

// More than a pipe holds: the parent must read while the child still writes.
TEST(ForkRanks, LargeResultsDoNotBlock) {
  const auto outcomes = run_ranks(2, [](int rank) { return Bytes(1 << 20, std::byte(rank)); });
  for (const auto& rank : outcomes) EXPECT_EQ(rank.result, Bytes(1 << 20, std::byte(rank.rank))) << rank;
}

TEST(ForkRanks, ExceptionsAndDeathsAreTold) {
  const auto outcomes = run_ranks(3, [](int rank) {
    if (rank == 1) throw std::runtime_error("rank one is out of tokens");
    if (rank == 2) die_now();
  });
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0];
  EXPECT_EQ(outcomes[1].exit_code, 1);
  EXPECT_EQ(outcomes[1].message, "rank one is out of tokens");
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  EXPECT_FALSE(outcomes[2].straggler);
}

TEST(ForkRanks, StragglersAreKilledAtTheDeadline) {
  const auto sleeper = [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(1h);
  };
  const auto outcomes = run_ranks(2, sleeper, 200ms);
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0];
  EXPECT_TRUE(outcomes[1].straggler);
  EXPECT_FALSE(outcomes[1].ok());
}

TEST(ForkRanks, OneChildCanBeKilledOnPurpose) {
  ForkedRanks ranks(2, [](int rank) {
    if (rank == 1) std::this_thread::sleep_for(1h);
    return to_bytes(rank);
  });
  ranks.kill(1);
  const auto outcomes = ranks.wait();
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0];
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_FALSE(outcomes[1].straggler);
}

// A failed EXPECT_ in a child would otherwise be lost with it.
TEST(ForkRanks, FailedExpectationsFailTheRank) {
  const auto outcomes = run_ranks(1, [](int) {
    std::fclose(stdout);  // the failure is wanted here, so it is not shown
    ADD_FAILURE();
  });
  EXPECT_EQ(outcomes[0].exit_code, 2);
}

}  // namespace
}  // namespace heddle::testing
