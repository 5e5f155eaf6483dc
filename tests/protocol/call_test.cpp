// Lanes, credits, headers and refusals, one rank at a time (I2, I5-I7).
#include "protocol/call.hpp"
#include "protocol/call_header.hpp"
#include "protocol/call_rows.hpp"

#include "protocol/scripted_rank.hpp"

namespace heddle::testing {
namespace {

class CallOf : public ScriptedRank {
 protected:
  /// All peers' headers are there.
  void send_headers() {
    for (int source = 0; source < kRanks; ++source) {
      header(Kind::dispatch, state_.lane, source) = fitting_header();
      counter(source, Awaited::header) = state_.headers_wanted;
    }
  }
};

TEST_F(CallOf, LanesOfAKindTakeTurnsAndSeqRunsOn) {
  const auto next = [&](Kind kind) {
    call_.shape.kind = kind;
    begin(call_);
    ledger_.unreceived[static_cast<int>(kind)][state_.lane] = 0;
    return state_.lane;
  };
  EXPECT_EQ(next(Kind::dispatch), 0);
  EXPECT_EQ(next(Kind::dispatch), 1);
  EXPECT_EQ(next(Kind::combine), 0) << "kinds are independent (I4)";
  EXPECT_EQ(next(Kind::dispatch), 0);
  EXPECT_EQ(state_.seq, 4u);
  EXPECT_EQ(state_.headers_wanted, 2u) << "the second of its lane";
}

// I6 on the device, where no host looks: the lane's call before was not received.
TEST_F(CallOf, ASendIntoAnUnreceivedLaneFaults) {
  begin(call_);
  begin(call_);
  EXPECT_FALSE(ledger_.is_faulted()) << "two may be in flight";
  begin(call_);
  EXPECT_TRUE(ledger_.is_faulted());
  EXPECT_EQ(ledger_.fault.code, FaultCode::unreceived);
  EXPECT_EQ(ledger_.fault.seen, 1u);
}

// Before a lane is written again all its rounds have been read: as many credits as rounds were sent.
TEST_F(CallOf, OpeningALaneWaitsForAllCreditsOfIt) {
  for (int peer = 0; peer < kRanks; ++peer) ledger_.rounds_sent[0][0][peer] = 3;
  int looks = 0;
  port_.on_look = [&] {
    EXPECT_TRUE(port_.puts.empty());
    if (++looks == 5) {
      for (int peer = 0; peer < kRanks; ++peer) cells(peer).credits[0][0] = 3;
    }
  };
  EXPECT_TRUE(open_lane(Solo{}, port_, call_));
  EXPECT_EQ(looks, 5);
}

TEST_F(CallOf, ALaneWithoutItsCreditIsNotOpened) {
  ledger_.rounds_sent[0][0][2] = 3;
  cells(2).credits[0][0] = 2;
  EXPECT_FALSE(open_lane(Solo{}, port_, call_));
  EXPECT_EQ(ledger_.fault.awaited, Awaited::credit);
  EXPECT_EQ(ledger_.fault.peer, 2);
}

TEST_F(CallOf, AHeaderGoesToItsOwnCellWithItsTableInOnePut) {
  begin(call_);
  const HeaderCounts counts{.count = 5, .slots = 2, .rounds = 3, .tokens = 8};
  note_rounds(call_, 2, counts.rounds);
  put_header(Solo{}, port_, call_, 2, counts, [](uint32_t* table) { table[0] = 77; });
  ASSERT_EQ(port_.puts.size(), 1u);
  const NotedPut& put = port_.puts[0];
  EXPECT_EQ(put.offset, call_.ctx.window.range(Kind::dispatch, 0, kOwn));
  EXPECT_EQ(put.counter, counter_at(call_, kOwn, Awaited::header));
  const Range range = range_of(call_);
  ASSERT_EQ(static_cast<int64_t>(put.bytes.size()), range.slots);
  const auto& sent = *reinterpret_cast<const Header*>(put.bytes.data());
  EXPECT_EQ(sent.seq, 1u);
  EXPECT_EQ(sent.hash, call_.shape.hash());
  EXPECT_EQ(sent.count, 5);
  EXPECT_EQ(sent.rounds, 3);
  EXPECT_EQ(*reinterpret_cast<const uint32_t*>(put.bytes.data() + range.table), 77u);
  EXPECT_EQ(ledger_.rounds_sent[0][0][2], 3u);
}

TEST_F(CallOf, NothingIsSentToAMaskedPeer) {
  ledger_.mask[2] = static_cast<uint64_t>(Mask::suspect);
  begin(call_);
  put_header(Solo{}, port_, call_, 2, {}, [](uint32_t*) {});
  give_credit(port_, call_, 2);
  EXPECT_TRUE(port_.puts.empty());
}

// A VOID header travels without a table: the range may have no room for one.
TEST_F(CallOf, ARefusalTravelsAlone) {
  begin(call_);
  call_.refusal.code = 1;
  put_header(Solo{}, port_, call_, 0, {}, [](uint32_t*) { FAIL() << "no table"; });
  ASSERT_EQ(port_.puts.size(), 1u);
  EXPECT_EQ(port_.puts[0].bytes.size(), sizeof(Header));
}

TEST_F(CallOf, FittingHeadersAreAccepted) {
  begin(call_);
  send_headers();
  header(Kind::dispatch, 0, 2).count = 6;
  header(Kind::dispatch, 0, 2).rounds = 2;
  EXPECT_TRUE(read_headers(Solo{}, port_, call_));
  EXPECT_EQ(state_.count[2], 6);
  EXPECT_EQ(state_.rounds[2], 2);
  EXPECT_EQ(most_rounds(call_), 2);
  EXPECT_EQ(state_.refused_by, -1);
}

struct Spoiled {
  const char* what;
  void (*spoil)(Header&);
};

TEST_F(CallOf, AHeaderOfAnotherCallIsAMismatch) {
  const Spoiled all[] = {{"seq", [](Header& h) { ++h.seq; }},
                         {"incarnation", [](Header& h) { ++h.incarnation; }},
                         {"hash", [](Header& h) { ++h.hash; }}};
  begin(call_);
  for (const Spoiled& one : all) {
    send_headers();
    one.spoil(header(Kind::dispatch, 0, 2));
    EXPECT_FALSE(read_headers(Solo{}, port_, call_)) << one.what;
    EXPECT_EQ(ledger_.fault.code, FaultCode::mismatch) << one.what;
    EXPECT_EQ(ledger_.fault.peer, 2) << one.what;
    ledger_.fault_claimed = 0;
  }
}

// A peer in another call puts its header elsewhere: found there by its seq, it is a mismatch at once, not a timeout.
TEST_F(CallOf, AHeaderInAnotherCellIsFound) {
  begin(call_);
  send_headers();
  counter(2, Awaited::header) = 0;
  header(Kind::combine, 1, 2) = fitting_header();
  header(Kind::combine, 1, 2).kind = static_cast<uint32_t>(Kind::combine);
  cells(2).headers[1][1] = 1;
  EXPECT_FALSE(read_headers(Solo{}, port_, call_));
  EXPECT_EQ(ledger_.fault.code, FaultCode::mismatch);
  EXPECT_EQ(ledger_.fault.peer_kind, static_cast<uint32_t>(Kind::combine));
  EXPECT_LT(port_.time, 1000 + kTimeout);
}

// The other lane still holds the header of the call before, which this rank has read: old, not elsewhere.
TEST_F(CallOf, AnOldHeaderIsNotFoundElsewhere) {
  begin(call_);
  ledger_.unreceived[0][0] = 0;
  send_headers();
  begin(call_);
  for (int source = 0; source < kRanks; ++source) {
    header(Kind::dispatch, 0, source).seq = state_.seq;  // were it looked at, it would seem to be this call's
    EXPECT_FALSE(finds_header_elsewhere(port_.local(), call_, source));
  }
}

TEST_F(CallOf, AHeaderThatMasksItsReaderClosesThePair) {
  begin(call_);
  send_headers();
  header(Kind::dispatch, 0, 0).mask.add(kOwn);
  EXPECT_TRUE(read_headers(Solo{}, port_, call_));
  EXPECT_FALSE(ledger_.is_open(0));
  EXPECT_FALSE(is_live(state_, 0));
  EXPECT_TRUE(is_live(state_, 2));
}

TEST_F(CallOf, TheLowestRefusalIsEverybodysReason) {
  begin(call_);
  send_headers();
  for (const int source : {0, 2}) {
    Header& refused = header(Kind::dispatch, 0, source);
    refused.hash = 99;  // a refused call has no arguments to compare
    refused.refusal.code = 1;
    refused.refusal.value = 10 + source;
  }
  EXPECT_TRUE(read_headers(Solo{}, port_, call_));
  EXPECT_EQ(state_.refused_by, 0);
  EXPECT_EQ(state_.refusal.value, 10);
}

/// This rank refuses; source 0 sends 5 rows in 3 rounds, the others none.
class Discard : public CallOf {
 protected:
  Discard() {
    begin(call_);
    call_.refusal.code = 1;
    send_headers();
    Header& many = header(Kind::dispatch, 0, 0);
    many.count = 5;
    many.slots = 2;
    many.rounds = 3;
    EXPECT_TRUE(read_headers(Solo{}, port_, call_));
  }
};

// The last credit frees the lane, so it may be given only when all rows have landed; those before are needed for them to.
TEST_F(Discard, GivesTheLastCreditOnlyAfterTheLastRow) {
  port_.on_look = [&] {
    EXPECT_EQ(added(0, Awaited::credit), 2);
    ++counter(0, Awaited::rows);
  };
  EXPECT_TRUE(discard_rows(Solo{}, port_, call_));
  EXPECT_EQ(counter(0, Awaited::rows), 5u);
  EXPECT_EQ(added(0, Awaited::credit), 3);
  EXPECT_EQ(added(2, Awaited::credit), 1) << "one round also without rows";
}

TEST_F(Discard, OfRowsThatDoNotComeFaults) {
  EXPECT_FALSE(discard_rows(Solo{}, port_, call_));
  EXPECT_EQ(ledger_.fault.awaited, Awaited::rows);
  EXPECT_EQ(ledger_.fault.peer, 0);
  EXPECT_EQ(ledger_.fault.wanted, 5u);
}

TEST_F(Discard, TheTotalsGoOnAsIfTheRowsHadBeenRead) {
  counter(0, Awaited::rows) = 5;
  EXPECT_TRUE(discard_rows(Solo{}, port_, call_));
  close_call(Solo{}, call_);
  EXPECT_EQ(ledger_.rows_seen[0][0][0], 5u);
  EXPECT_EQ(ledger_.unreceived[0][0], 0u);
}

TEST_F(CallOf, ARowStoredInPlaceCountsTwice) {
  begin(call_);
  state_.count[2] = 4;
  state_.direct_from[2] = 1;
  close_call(Solo{}, call_);
  EXPECT_EQ(ledger_.rows_seen[0][0][2], 8u);
}

TEST(Tables, HoldWhatTheirCallNeeds) {
  const Shape shape{.topk = 4, .experts = 10, .max_tokens = 6};
  const auto with = [&](auto change) {
    Shape changed = shape;
    change(changed);
    return table_bytes(changed, 3);
  };
  EXPECT_EQ(with([](Shape&) {}), 4 * (3 + 10));
  EXPECT_EQ(with([](Shape& s) { s.layout = Layout::expert_major; }), 4 * 10);
  EXPECT_EQ(with([](Shape& s) { s.layout = Layout::slab; }), 4 * 10);
  EXPECT_EQ(with([](Shape& s) { s.kind = Kind::combine; }), 0);
  EXPECT_EQ(with([](Shape& s) {
              s.kind = Kind::combine;
              s.weights = Weights::late;
            }),
            4 * 6 * 4);
}

// A row in place needs no room for its payload, so many more fit one round.
TEST_F(CallOf, SlotsOfRowsInPlaceAreSmaller) {
  EXPECT_EQ(range_of(call_).stride, 96);
  EXPECT_EQ(range_of(call_, true).stride, 32);
  EXPECT_GT(range_of(call_, true).count, range_of(call_).count);
}

}  // namespace
}  // namespace heddle::testing
