// Whom a combine waits for before it reads rows that a kernel still makes, and how such a wait ends.
#include "protocol/signals.hpp"

#include <array>

#include "protocol/scripted_rank.hpp"

namespace heddle::testing {
namespace {

class Signals : public ScriptedRank {
 protected:
  /// 3 experts with words for 4 blocks of 2 rows each; the first has 3 rows, the last one 1.
  Signals() : view_{.words = words_.data(), .counts = counts_.data(), .experts = 3, .pitch = 4, .rows_each = 2, .wanted = 5} {
    begin(call_);
  }

  bool wait(int lane = 0, int lanes = 1) { return await_signals(port_, call_.ctx, view_, lane, lanes); }

  std::array<uint32_t, 12> words_{};
  std::array<int32_t, 3> counts_{3, 0, 1};
  SignalView view_;
};

TEST_F(Signals, OnlyBlocksWithRowsAreAwaited) {
  words_[0] = words_[1] = words_[8] = 5;
  EXPECT_TRUE(wait());
  EXPECT_FALSE(ledger_.is_faulted());
}

TEST_F(Signals, EachOfThemIs) {
  for (const int missing : {0, 1, 8}) {
    words_[0] = words_[1] = words_[8] = 6;  // more than wanted is there, too
    words_[static_cast<size_t>(missing)] = 4;
    port_.on_look = [&] { words_[static_cast<size_t>(missing)] = 5; };
    const uint64_t before = port_.time;
    EXPECT_TRUE(wait());
    EXPECT_GT(port_.time, before) << "it looked once more for word " << missing;
  }
}

TEST_F(Signals, LanesShareThem) {
  words_[0] = words_[8] = 5;
  EXPECT_TRUE(wait(0, 4)) << "words 0, 4 and 8";
  port_.on_look = [&] { words_[1] = 5; };
  EXPECT_TRUE(wait(1, 4)) << "words 1, 5 and 9";
}

TEST_F(Signals, WithoutCountsAnExpertHasOne) {
  view_.counts = nullptr;
  view_.pitch = 1;
  words_[0] = words_[1] = words_[2] = 5;
  EXPECT_TRUE(wait());
  words_[1] = 0;
  EXPECT_FALSE(wait());
  EXPECT_EQ(ledger_.fault.word, 1);
}

TEST_F(Signals, ADeadlineIsAFaultThatSaysWhichWord) {
  words_[0] = words_[1] = 5;
  words_[8] = 3;
  const uint64_t began = port_.time;
  EXPECT_FALSE(wait());
  EXPECT_GT(port_.time, began + kTimeout);
  const Fault& fault = ledger_.fault;
  EXPECT_EQ(fault.code, FaultCode::unready);
  EXPECT_EQ(fault.peer, call_.ctx.topo.rank);
  EXPECT_EQ(fault.word, 8);
  EXPECT_EQ(fault.wanted, 5u);
  EXPECT_EQ(fault.seen, 3u);
}

TEST_F(Signals, TheHostMayBreakItOff) {
  port_.on_look = [&] { ledger_.interrupted = 1; };
  const uint64_t began = port_.time;
  EXPECT_FALSE(wait());
  EXPECT_LT(port_.time, began + kTimeout);
  EXPECT_EQ(ledger_.fault.code, FaultCode::interrupted);
}

}  // namespace
}  // namespace heddle::testing
