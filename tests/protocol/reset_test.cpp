// Meetings of reset (I11) that did not go as planned: who was left out, or came to a meeting that was broken off.
#include "protocol/reset.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

namespace heddle {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kWindow = 16384;

struct alignas(kCellAlign) Memory {
  std::byte bytes[kWindow] = {};
};

/// Three ranks in one process, met by threads.
class Reset : public testing::Test {
 protected:
  Reset() {
    PeerView view{};
    view.count = kRanks;
    for (int rank = 0; rank < kRanks; ++rank) {
      windows_[rank] = std::make_unique<Memory>();
      view.windows[rank] = windows_[rank]->bytes;
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      view.rank = rank;
      ports_.emplace_back(view, PeerView{});
      contexts_[rank] = {.topo = {.rank = rank, .world = kRanks, .experts = 3}, .window = Window(kRanks, kWindow),
                         .ledger = &ledgers_[rank], .timeout_ns = 200'000'000};
    }
  }

  bool reset_one(int rank, const std::vector<int>& members) {
    RankSet set;
    RankSet missing;
    for (int member : members) set.add(member);
    return heddle::reset(ports_[rank], contexts_[rank], set, missing);
  }

  std::vector<int> reset_all(const std::vector<int>& members) {
    std::vector<int> done(kRanks);
    std::vector<std::thread> threads;
    for (int rank : members) threads.emplace_back([&, rank] { done[rank] = reset_one(rank, members); });
    for (std::thread& thread : threads) thread.join();
    return done;
  }

  std::array<std::unique_ptr<Memory>, kRanks> windows_;
  std::array<Ledger, kRanks> ledgers_;
  std::array<Context, kRanks> contexts_;
  std::vector<DirectPort> ports_;
};

TEST_F(Reset, ARankThatWasLeftOutCatchesUp) {
  EXPECT_EQ(reset_all({0, 1}), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(reset_all({0, 1, 2}), (std::vector<int>{1, 1, 1}));
  for (const Ledger& ledger : ledgers_) EXPECT_EQ(ledger.incarnation, 2u);
}

// Rank 2 was called to a meeting and did not come; what the others' counters show it since then is old.
TEST_F(Reset, ARankThatMissedAMeetingDoesNotTakeItForTheNext) {
  EXPECT_FALSE(reset_one(0, {0, 1, 2}));
  EXPECT_FALSE(reset_one(1, {0, 1, 2}));
  EXPECT_EQ(reset_all({0, 1}), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(reset_all({0, 1, 2}), (std::vector<int>{1, 1, 1}));
  for (const Ledger& ledger : ledgers_) EXPECT_EQ(ledger.incarnation, 2u);
}

TEST_F(Reset, ABrokenMeetingCanBeHeldAgain) {
  EXPECT_FALSE(reset_one(0, {0, 1}));
  EXPECT_EQ(reset_all({0, 1}), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(ledgers_[0].incarnation, 1u);
  EXPECT_EQ(ledgers_[1].incarnation, 1u);
}

}  // namespace
}  // namespace heddle
