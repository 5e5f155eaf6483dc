#include "bootstrap/in_process.hpp"

#include "support/errors.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using namespace std::chrono_literals;
using testing::error_with;
using testing::NoneFailed;
using testing::run_threads;

Bytes text(std::string_view words) {
  const auto raw = std::as_bytes(std::span(words));
  return {raw.begin(), raw.end()};
}

class InProcess : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, InProcess, ::testing::Values(1, 2, 3, 8, 64));

// Lengths differ between ranks and rank 0 gives nothing at all; rounds follow one another without a barrier.
TEST_P(InProcess, EveryRankGetsEveryonesBytes) {
  const auto errors = run_threads(GetParam(), [](Bootstrap& bootstrap) {
    for (int round = 0; round < 20; ++round) {
      const auto all = bootstrap.all_gather(Bytes(bootstrap.rank(), std::byte(round)));
      ASSERT_EQ(static_cast<int>(all.size()), bootstrap.size());
      for (int peer = 0; peer < bootstrap.size(); ++peer) ASSERT_EQ(all[peer], Bytes(peer, std::byte(round)));
      bootstrap.barrier();
    }
  });
  EXPECT_THAT(errors, NoneFailed());
}

// The barrier holds: nobody passes it before everybody has come.
TEST_P(InProcess, BarrierWaitsForAll) {
  std::atomic<int> came{0};
  const auto errors = run_threads(GetParam(), [&](Bootstrap& bootstrap) {
    ++came;
    bootstrap.barrier();
    EXPECT_EQ(came.load(), bootstrap.size());
  });
  EXPECT_THAT(errors, NoneFailed());
}

// Ranks 1 and 3 never come. The others learn who, in which call, and find the group broken afterwards.
TEST(InProcessFaults, MissingRanksAreNamed) {
  auto ranks = in_process(4, 500ms);
  std::vector<std::optional<Error>> first(4), second(4);
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&, rank] {
      first[rank] = testing::error_of([&] { ranks[rank]->all_gather({}, "plan"); });
      second[rank] = testing::error_of([&] { ranks[rank]->barrier(); });
    });
  }
  for (auto& thread : threads) thread.join();
  for (const int rank : {0, 2}) {
    EXPECT_THAT(first[rank], error_with(ErrorCode::timeout, "plan", "ranks 1, 3", "500 ms"));
    EXPECT_THAT(second[rank], error_with(ErrorCode::faulted, "broke earlier", "ranks 1, 3"));
  }
  // One that comes too late gets no half of a result.
  EXPECT_THAT(testing::error_of([&] { ranks[1]->all_gather({}, "plan"); }),
              error_with(ErrorCode::timeout, "ranks 1, 3"));
}

// A rank whose thread ended is not waited for until the deadline.
TEST(InProcessFaults, RankThatLeftIsNamedAtOnce) {
  const auto errors = run_threads(3, [](Bootstrap& bootstrap) {
    bootstrap.barrier();
    if (bootstrap.rank() != 1) bootstrap.all_gather({}, "plan");
  });
  EXPECT_EQ(errors[1], std::nullopt);
  EXPECT_THAT(errors[0], error_with(ErrorCode::destroyed, "plan", "rank 1 has left"));
  EXPECT_THAT(errors[2], error_with(ErrorCode::destroyed, "plan", "rank 1 has left"));
}

TEST(InProcessFaults, DifferentCallsAreAMismatch) {
  const auto errors = run_threads(
      2, [](Bootstrap& bootstrap) { bootstrap.all_gather({}, bootstrap.rank() == 0 ? "sizes" : "handles"); });
  for (const auto& error : errors) EXPECT_THAT(error, error_with(ErrorCode::mismatch, "'sizes'", "'handles'"));
}

TEST(InProcessFaults, WrongSizesAreRefused) {
  EXPECT_THAT(testing::error_of([] { in_process(0, 1s); }), error_with(ErrorCode::usage, "size is 0", "1 to 128"));
  EXPECT_THAT(testing::error_of([] { in_process(129, 1s); }), error_with(ErrorCode::usage, "size is 129"));
  EXPECT_THAT(testing::error_of([] { in_process(1, 0s); }), error_with(ErrorCode::usage, "deadline is 0 ns"));
}

TEST(InProcessBytes, OutliveTheirSender) {
  const auto errors = run_threads(2, [](Bootstrap& bootstrap) {
    Bytes mine = text(bootstrap.rank() == 0 ? "zero" : "one");
    const auto all = bootstrap.all_gather(mine);
    mine.clear();
    EXPECT_EQ(all[0], text("zero"));
    EXPECT_EQ(all[1], text("one"));
  });
  EXPECT_THAT(errors, NoneFailed());
}

}  // namespace
}  // namespace heddle
