#include "bootstrap/tcp_store.hpp"

#include "bootstrap/agree.hpp"
#include "bootstrap/frame.hpp"
#include "support/errors.hpp"
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"

#include <sys/mman.h>

#include <atomic>

namespace heddle {
namespace {

using namespace std::chrono_literals;
using testing::die_now;
using testing::expect_all_ok;
using testing::RankOutcome;
using testing::run_tcp_ranks;

void expect_tells(const RankOutcome& rank, const std::vector<std::string>& words) {
  EXPECT_EQ(rank.exit_code, 1) << rank;
  for (const auto& word : words) EXPECT_NE(rank.message.find(word), std::string::npos) << rank << " lacks " << word;
}

class TcpStore : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Sizes, TcpStore, ::testing::Values(1, 2, 3, 8, 64));

TEST_P(TcpStore, EveryRankGetsEveryonesBytes) {
  expect_all_ok(run_tcp_ranks(GetParam(), [](Bootstrap& bootstrap) {
    for (int round = 0; round < 10; ++round) {
      const auto all = bootstrap.all_gather(Bytes(bootstrap.rank(), std::byte(round)));
      ASSERT_EQ(static_cast<int>(all.size()), bootstrap.size());
      for (int peer = 0; peer < bootstrap.size(); ++peer) ASSERT_EQ(all[peer], Bytes(peer, std::byte(round)));
      bootstrap.barrier();
    }
  }));
}

// More than sockets buffer, so that reads and writes of different ranks must go on side by side.
TEST(TcpStoreBytes, LargeContributionsPass) {
  expect_all_ok(run_tcp_ranks(4, [](Bootstrap& bootstrap) {
    const std::size_t bytes = 3 << 20;
    const auto all = bootstrap.all_gather(Bytes(bytes, std::byte(bootstrap.rank())));
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      ASSERT_EQ(all[peer].size(), bytes);
      EXPECT_EQ(all[peer].front(), std::byte(peer));
      EXPECT_EQ(all[peer].back(), std::byte(peer));
    }
  }));
}

TEST(TcpStoreBytes, TooLargeAContributionIsRefusedHere) {
  for (const auto& rank :
       run_tcp_ranks(2, [](Bootstrap& bootstrap) { bootstrap.all_gather(Bytes(kMaxContribution + 1)); })) {
    expect_tells(rank, {"contributes 16777217 bytes, at most 16777216"});
  }
}

TEST(TcpStoreBytes, SettingsAreAgreedOn) {
  for (const auto& rank : run_tcp_ranks(3, [](Bootstrap& bootstrap) {
         agree(bootstrap, std::vector<Setting>{{"bytes", bootstrap.rank() == 1 ? "1" : "2"}});
       })) {
    expect_tells(rank, {"bytes is 2 on ranks 0, 2, 1 on ranks 1"});
  }
}

// The deadline is far away: that the ranks end at all shows that the death was noticed.
TEST(TcpStoreFaults, DeadPeerIsNamedAtOnce) {
  const auto ranks = run_tcp_ranks(
      4,
      [](Bootstrap& bootstrap) {
        bootstrap.barrier();
        if (bootstrap.rank() == 2) die_now();
        bootstrap.all_gather({}, "plan");
      },
      1h);
  for (const int rank : {0, 1, 3}) expect_tells(ranks[rank], {"plan: rank 2 died or left"});
}

TEST(TcpStoreFaults, DeadRankZeroIsNamedAtOnce) {
  const auto ranks = run_tcp_ranks(
      3,
      [](Bootstrap& bootstrap) {
        bootstrap.barrier();
        if (bootstrap.rank() == 0) die_now();
        bootstrap.all_gather({}, "plan");
      },
      1h);
  for (const int rank : {1, 2}) expect_tells(ranks[rank], {"plan: rank 0 died or left"});
}

TEST(TcpStoreFaults, DeathWhileJoiningIsNamedAtOnce) {
  const TcpListener listener = tcp_listen();
  testing::ForkedRanks ranks(3, [&](int rank) {
    if (rank == 2) die_now();  // before it joined: only the deadline can tell
    tcp_store({.rank = rank, .size = 3, .secret = "s", .listener = listener, .deadline = 1500ms});
    return Bytes{};
  });
  ::close(listener.descriptor);
  const auto outcomes = ranks.wait();
  for (const int rank : {0, 1}) expect_tells(outcomes[rank], {"join: rank", "waited 1500 ms for ranks 2"});
}

// Counts the ranks that are done, so that one can stay away just until then. Shared by ranks forked later.
class Done {
 public:
  Done() : page_(map(4096)) {}
  void report() { counter()->fetch_add(1); }
  void await(int ranks) {
    while (counter()->load() < ranks) std::this_thread::sleep_for(5ms);
  }

 private:
  static std::shared_ptr<void> map(std::size_t bytes) {
    void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return {page, [bytes](void* first) { ::munmap(first, bytes); }};
  }
  std::atomic<int>* counter() { return static_cast<std::atomic<int>*>(page_.get()); }

  std::shared_ptr<void> page_;
};

// Who comes early gives up early, and still learns from rank 0 who is missing.
TEST(TcpStoreFaults, MissingRankIsNamedOnEveryRank) {
  Done done;
  const auto ranks = run_tcp_ranks(
      4,
      [&](Bootstrap& bootstrap) {
        if (bootstrap.rank() == 3) return done.await(3);
        if (bootstrap.rank() == 0) std::this_thread::sleep_for(500ms);
        const auto error = testing::error_of([&] { bootstrap.all_gather({}, "plan"); });
        done.report();
        if (error) throw *error;
      },
      1500ms);
  for (const int rank : {0, 1, 2}) expect_tells(ranks[rank], {"plan: rank", "waited 1500 ms for ranks 3, which"});
}

TEST(TcpStoreFaults, MissingRankZeroIsNamed) {
  Done done;
  const auto ranks = run_tcp_ranks(
      2,
      [&](Bootstrap& bootstrap) {
        if (bootstrap.rank() == 0) return done.await(1);
        const auto error = testing::error_of([&] { bootstrap.all_gather({}, "plan"); });
        done.report();
        if (error) throw *error;
      },
      1500ms);
  expect_tells(ranks[1], {"plan: rank 1 waited 1500 ms for rank 0"});
}

TEST(TcpStoreFaults, BrokenGroupStaysBroken) {
  const auto ranks = run_tcp_ranks(2, [](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 1) return;
    EXPECT_THAT(testing::error_of([&] { bootstrap.all_gather({}, "plan"); }),
                testing::error_with(ErrorCode::destroyed, "rank 1"));
    EXPECT_THAT(testing::error_of([&] { bootstrap.barrier(); }),
                testing::error_with(ErrorCode::faulted, "broke earlier: plan: rank 1"));
  });
  expect_all_ok(ranks);
}

TEST(TcpStoreFaults, DifferentCallsAreAMismatch) {
  const auto ranks = run_tcp_ranks(
      2, [](Bootstrap& bootstrap) { bootstrap.all_gather({}, bootstrap.rank() == 0 ? "sizes" : "handles"); });
  for (const auto& rank : ranks) expect_tells(rank, {"rank 0 calls 'sizes' while rank 1 calls 'handles'"});
}

TEST(TcpStoreFaults, NobodyListeningIsNamed) {
  const TcpListener gone = tcp_listen();
  ::close(gone.descriptor);
  EXPECT_THAT(testing::error_of(
                  [&] { tcp_store({.rank = 1, .size = 2, .port = gone.port, .secret = "s", .deadline = 100ms}); }),
              testing::error_with(ErrorCode::timeout, "rank 1 waited 100 ms for rank 0 at 127.0.0.1", "refused"));
}

TEST(TcpStoreArguments, AreChecked) {
  const auto refused = [](TcpGroup group) { return testing::error_of([&] { tcp_store(group); }); };
  EXPECT_THAT(refused({.size = 129, .port = 1, .secret = "s"}), testing::error_with(ErrorCode::usage, "size is 129"));
  EXPECT_THAT(refused({.rank = 2, .size = 2, .port = 1, .secret = "s"}),
              testing::error_with(ErrorCode::usage, "rank is 2"));
  EXPECT_THAT(refused({.size = 2, .port = 1}),
              testing::error_with(ErrorCode::usage, "secret is empty", "HEDDLE_SECRET"));
  EXPECT_THAT(refused({.size = 2, .secret = "s"}), testing::error_with(ErrorCode::usage, "port is 0"));
  EXPECT_THAT(refused({.size = 2, .secret = "s", .listener = {.descriptor = 0, .port = 1}}),
              testing::error_with(ErrorCode::usage, "listener.descriptor is 0"));
}

TEST(TcpStoreArguments, SecretMayComeFromTheEnvironment) {
  ::setenv("HEDDLE_SECRET", "from outside", 1);
  EXPECT_EQ(tcp_store({.size = 1})->size(), 1);
  ::unsetenv("HEDDLE_SECRET");
}

TEST(TcpStoreArguments, PortInUseIsASystemError) {
  const TcpListener taken = tcp_listen();
  EXPECT_THAT(testing::error_of([&] { tcp_listen("127.0.0.1", taken.port); }),
              testing::error_with(ErrorCode::system, std::to_string(taken.port)));
  ::close(taken.descriptor);
}

TEST(TcpStoreArguments, SecretsDiffer) {
  EXPECT_EQ(make_secret().size(), 64u);
  EXPECT_NE(make_secret(), make_secret());
}

}  // namespace
}  // namespace heddle
