// What ends a wait, in which order, and what is left behind (I9, I10).
#include "protocol/await.hpp"

#include "protocol/scripted_rank.hpp"

namespace heddle::testing {
namespace {

class Await : public ScriptedRank {
 protected:
  Await() {
    begin(call_);
    deadline_ = port_.time + kTimeout;
  }

  Arrival wait(int peer, uint64_t wanted = 2) {
    return await(port_, call_, Wait{.peer = peer, .awaited = Awaited::rows, .wanted = wanted, .deadline = deadline_});
  }

  uint64_t deadline_ = 0;
};

TEST_F(Await, EndsWhenTheTotalIsThere) {
  port_.on_look = [&] { ++counter(2, Awaited::rows); };
  EXPECT_EQ(wait(2), Arrival::here);
  EXPECT_EQ(counter(2, Awaited::rows), 2u);
  EXPECT_FALSE(ledger_.is_faulted());
}

// Totals are absolute: more than wanted is there too.
TEST_F(Await, MoreThanWantedIsEnough) {
  counter(2, Awaited::rows) = 9;
  EXPECT_EQ(wait(2), Arrival::here);
  EXPECT_EQ(port_.time, 1000u) << "it need not look twice";
}

// What has arrived counts, whatever became of its sender since.
TEST_F(Await, WhatIsThereCountsMoreThanAnySign) {
  counter(2, Awaited::rows) = 2;
  cells(2).closed = cells(2).destroyed = cells(0).faults = 1;
  port_.time = deadline_ + 1;
  EXPECT_EQ(wait(2), Arrival::here);
}

TEST_F(Await, ADeadlineIsAFaultThatSaysWhatWasAwaited) {
  counter(2, Awaited::rows) = 1;
  EXPECT_EQ(wait(2), Arrival::fault);
  EXPECT_GT(port_.time, deadline_);
  const Fault& fault = ledger_.fault;
  EXPECT_EQ(fault.code, FaultCode::timeout);
  EXPECT_EQ(fault.awaited, Awaited::rows);
  EXPECT_EQ(fault.peer, 2);
  EXPECT_EQ(fault.seq, 1u);
  EXPECT_EQ(fault.wanted, 2u);
  EXPECT_EQ(fault.seen, 1u);
  EXPECT_EQ(fault.hash, call_.shape.hash());
}

TEST_F(Await, ADeadlineMasksWhereTheBufferSaysSo) {
  call_.ctx.mask_late_peers = true;
  EXPECT_EQ(wait(2), Arrival::masked);
  EXPECT_FALSE(ledger_.is_faulted());
  EXPECT_EQ(ledger_.mask[2], static_cast<uint64_t>(Mask::suspect));
  ASSERT_EQ(port_.puts.size(), 1u) << "the peer is told";
  EXPECT_EQ(port_.puts[0].peer, 2);
  EXPECT_EQ(port_.puts[0].counter, call_.ctx.window.cells(kOwn) + static_cast<int64_t>(offsetof(Cells, closed)));
}

// The pair closes both ways: who is told tells.
TEST_F(Await, APeerThatClosedThePairIsMaskedAndTold) {
  port_.on_look = [&] { cells(2).closed = 1; };
  EXPECT_EQ(wait(2), Arrival::masked);
  EXPECT_FALSE(ledger_.is_open(2));
  EXPECT_EQ(port_.puts.size(), 1u);
  EXPECT_EQ(wait(2), Arrival::masked);
  EXPECT_EQ(port_.puts.size(), 1u) << "once";
}

TEST_F(Await, AClosedPairIsNotWaitedFor) {
  ledger_.mask[2] = static_cast<uint64_t>(Mask::removed);
  EXPECT_EQ(wait(2), Arrival::masked);
  EXPECT_EQ(port_.time, 1000u);
  EXPECT_TRUE(port_.puts.empty());
}

// The fault of any open peer ends every wait, with the own wait as the reason.
TEST_F(Await, AnotherPeersFaultEndsTheWait) {
  port_.on_look = [&] { cells(0).faults = 1; };
  EXPECT_EQ(wait(2), Arrival::fault);
  EXPECT_EQ(ledger_.fault.code, FaultCode::peer_fault);
  EXPECT_EQ(ledger_.fault.peer, 2);
}

TEST_F(Await, TheFaultOfAMaskedPeerIsNotHeard) {
  ledger_.mask[0] = static_cast<uint64_t>(Mask::suspect);
  cells(0).faults = 1;
  port_.on_look = [&] { counter(2, Awaited::rows) = 2; };
  EXPECT_EQ(wait(2), Arrival::here);
}

// Masks by deadline are no cure for ranks that have parted.
TEST_F(Await, APeersFaultIsAFaultAlsoWhereDeadlinesMask) {
  call_.ctx.mask_late_peers = true;
  cells(0).faults = 1;
  EXPECT_EQ(wait(2), Arrival::fault);
  EXPECT_TRUE(ledger_.is_open(2));
}

TEST_F(Await, ADestroyedPeerIsSaidToBe) {
  cells(2).destroyed = 1;
  EXPECT_EQ(wait(2), Arrival::fault);
  EXPECT_EQ(ledger_.fault.code, FaultCode::peer_destroyed);
}

TEST_F(Await, ADestroyedPeerIsMaskedWhereDeadlinesMask) {
  call_.ctx.mask_late_peers = true;
  cells(2).destroyed = 1;
  EXPECT_EQ(wait(2), Arrival::masked);
}

// Its last rows landed between the look at the counter and the look at the sign: they count. The clock stands for the moment.
TEST_F(Await, WhatCameBeforeTheSignIsNotMissed) {
  class Between : public ScriptedPort {
   public:
    using ScriptedPort::ScriptedPort;
    uint64_t now() {
      on_look();
      return time;
    }
  };
  Between port(kWindow);
  port.time = deadline_ + 1;
  auto* rows = reinterpret_cast<uint64_t*>(port.local() + counter_at(call_, 2, Awaited::rows));
  port.on_look = [&] { *rows = 2; };
  const Wait waited{.peer = 2, .awaited = Awaited::rows, .wanted = 2, .deadline = deadline_};
  EXPECT_EQ(await(port, call_, waited), Arrival::here);
  EXPECT_FALSE(ledger_.is_faulted());
}

TEST_F(Await, AProbeThatFindsAFaultEndsTheWait) {
  int asked = 0;
  const Wait waited{.peer = 2, .awaited = Awaited::rows, .wanted = 2, .deadline = deadline_};
  EXPECT_EQ(await(port_, call_, waited, [&] { return ++asked == 3; }), Arrival::fault);
  EXPECT_EQ(asked, 3);
}

// The first reason is the one that is told: what follows is its consequence.
TEST_F(Await, TheFirstFaultIsKept) {
  EXPECT_EQ(wait(2), Arrival::fault);
  EXPECT_EQ(wait(0, 7), Arrival::fault);
  EXPECT_EQ(ledger_.fault.peer, 2);
}

}  // namespace
}  // namespace heddle::testing
