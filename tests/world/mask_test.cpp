// I10, I11: masks by hand and by deadline close a pair both ways; reset() opens it again, or removes a rank for good.
#include <chrono>

#include "support/errors.hpp"
#include "world/cases.hpp"
#include "world/compare.hpp"
#include "world/hows.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

using namespace std::chrono_literals;

constexpr Layout kLayouts[] = {Layout::token_major, Layout::expert_major, Layout::slab};

Case case_of(Layout layout, Sum sum = Sum::at_owner) {
  Case c;
  c.world = {.routing = Routing::holes, .ranks = 4, .tokens = 9, .topk = 4, .experts = 10, .hidden = 16,
             .values = Values::random, .seed = 21};
  c.layout = layout;
  c.sum = layout == Layout::token_major ? Sum::plain : sum;
  c.row_weights = true;
  c.biases = 1;
  c.slots = 3;
  return c;
}

/// Rank 0 masks rank 2.
spec::Mask one_pair() {
  spec::Mask mask(4, std::vector<bool>(4, false));
  mask[0][2] = true;
  return mask;
}

class ByHand : public InEveryCell {};

// One end masks: neither hears of the other, all else goes on, until reset() opens the pair.
TEST_P(ByHand, APairIsClosedBothWaysUntilReset) {
  for (const Layout layout : kLayouts) {
    const Case c = case_of(layout);
    const Meaning m = meaning_of(c);
    const Meaning closed = meaning_of(c, one_pair());
    World(GetParam(), settings_for(c)).run([&](Rank& r) {
      play(r, c, m);
      if (r.index() == 0) {
        r.buffer().mask(2);
        EXPECT_EQ(r.buffer().masked(), std::vector<int>{2});
      }
      for (int i = 0; i < 3; ++i) play(r, c, closed);
      EXPECT_EQ(r.buffer().masked(), r.index() == 0   ? std::vector<int>{2}
                                     : r.index() == 2 ? std::vector<int>{0}
                                                      : std::vector<int>{});
      r.buffer().reset();
      EXPECT_EQ(r.buffer().masked(), std::vector<int>{});
      play(r, c, m);
    });
  }
}

// Masked after its dispatch: its part is absent from the combine, in every form of the sum.
TEST_P(ByHand, AMaskBetweenDispatchAndCombineCounts) {
  for (const Layout layout : kLayouts) {
    for (const Sum sum : {Sum::at_owner, Sum::late, Sum::alone}) {
      if (layout == Layout::token_major && sum != Sum::at_owner) continue;
      Case c = case_of(layout, sum);
      c.split_combine = sum == Sum::alone;
      if (c.split_combine) c.slots = 0;
      const Meaning m = meaning_of(c, {}, one_pair());
      World(GetParam(), settings_for(c)).run([&](Rank& r) {
        const Inputs in(c, m, r.index());
        const Received received = r.buffer().dispatch(in.plan(r.buffer()), in.dispatch_input(), in.dispatch_options());
        expect_received(received, m.received[r.index()], c, m, r.index());
        if (r.index() == 0) r.buffer().mask(2);
        const CombineInput input = in.combine_input();
        if (!c.split_combine) {
          const Combined combined = r.buffer().combine(received.handle, input, in.combine_options());
          return expect_combined(combined, m.combined[r.index()]);
        }
        const auto split = r.buffer().combine_send(received.handle, input, in.combine_options());
        split.receive();
        expect_combined(*split.result, m.combined[r.index()]);
      });
    }
  }
}

// Offers are for calls in which all agree on the members: with a mask rows are staged, and still exact.
TEST_P(ByHand, NoRowsInPlaceWhileSomebodyIsMasked) {
  Case c = case_of(Layout::expert_major);
  c.heap = Heap::ample;
  const Meaning m = meaning_of(c);
  const Meaning closed = meaning_of(c, one_pair());
  const Meaning rest = meaning_of(c, without(4, {3}));
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    play(r, c, m);
    if (r.index() == 0) r.buffer().mask(2);
    for (int i = 0; i < 3; ++i) play(r, c, closed);
    if (r.index() == 3) return;
    r.buffer().reset({0, 1, 2});
    for (int i = 0; i < 3; ++i) play(r, c, rest);  // removed by agreement: offers again
  });
}

TEST_P(ByHand, OnlyAPeerCanBeMasked) {
  const Case c = case_of(Layout::slab);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    for (const int rank : {-1, 4, r.index()}) {
      EXPECT_THAT(error_of([&] { r.buffer().mask(rank); }), error_with(ErrorCode::usage, "mask", std::to_string(rank)));
    }
  });
}

class ByDeadline : public InEveryCell {};

WorldSettings masking(const Case& c) {
  WorldSettings settings = settings_for(c);
  settings.config.mask_late_peers = true;
  settings.config.timeout = 700ms;
  return settings;
}

// A rank that never calls again is masked, its part is zero, and the result says so.
TEST_P(ByDeadline, TheCallCompletesWithoutADeadRank) {
  const Case c = case_of(kLayouts[GetParam().port == Wire::plain ? 1 : 2]);
  const Meaning m = meaning_of(c);
  const Meaning rest = meaning_of(c, without(4, {1}));
  World(GetParam(), masking(c)).run([&](Rank& r) {
    play(r, c, m);
    r.barrier();
    if (r.index() == 1) {
      r.land_all();
      r.die();
    }
    for (int i = 0; i < 20; ++i) play(r, c, rest);
    EXPECT_EQ(r.buffer().masked(), std::vector<int>{1});
  });
}

// It comes back: all reset, and its part is there again.
TEST_P(ByDeadline, ALateRankReturnsByReset) {
  const Case c = case_of(Layout::slab);
  const Meaning m = meaning_of(c);
  const Meaning rest = meaning_of(c, without(4, {1}));
  World(GetParam(), masking(c)).run([&](Rank& r) {
    play(r, c, m);
    r.barrier();
    if (r.index() != 1) play(r, c, rest);
    r.barrier();
    r.buffer().reset();
    play(r, c, m);
  });
}

class Membership : public InEveryCell {};

// A rank leaves by a reset of the others and returns by a reset of all, also if it missed more than one.
TEST_P(Membership, ARankLeavesAndReturns) {
  const Case c = case_of(Layout::expert_major);
  const Meaning m = meaning_of(c);
  const Meaning rest = meaning_of(c, without(4, {3}));
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    play(r, c, m);
    if (r.index() != 3) {
      for (int i = 0; i < 2; ++i) {
        r.buffer().reset({0, 1, 2});
        EXPECT_EQ(r.buffer().masked(), std::vector<int>{3});
        play(r, c, rest);
      }
    }
    r.barrier();
    r.buffer().reset();
    for (int i = 0; i < 3; ++i) play(r, c, m);
  });
}

// A handle tells where rows lie at ranks that may be gone: it ends with the incarnation. A plan is local and lives on.
TEST_P(Membership, PlansSurviveAResetAndHandlesDoNot) {
  const Case c = case_of(Layout::expert_major);
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Plan plan = in.plan(r.buffer());
    const Handle handle = r.buffer().dispatch(plan, in.dispatch_input(), in.dispatch_options()).handle;
    r.buffer().reset();
    EXPECT_THAT(error_of([&] { r.buffer().combine(handle, in.combine_input(), in.combine_options()); }),
                error_with(ErrorCode::usage, "handle", "reset()"));
    const Received received = r.buffer().dispatch(plan, in.dispatch_input(), in.dispatch_options());
    expect_received(received, m.received[r.index()], c, m, r.index());
  });
}

TEST_P(Membership, ResetNeedsTheOwnRankAndLegalOnes) {
  const Case c = case_of(Layout::slab);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const int other = (r.index() + 1) % 4;
    EXPECT_THAT(error_of([&] { r.buffer().reset({other}); }), error_with(ErrorCode::usage, "reset", "own rank"));
    EXPECT_THAT(error_of([&] { r.buffer().reset({r.index(), 4}); }), error_with(ErrorCode::usage, "reset", "4"));
  });
}

// Calls in flight are given up by reset(): their hooks do nothing, and their lanes start afresh.
TEST_P(Membership, ResetForgetsCallsInFlight) {
  Case c = case_of(Layout::expert_major);
  c.slots = 0;
  c.split_dispatch = true;
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Plan plan = in.plan(r.buffer());
    const auto first = r.buffer().dispatch_send(plan, in.dispatch_input(), in.dispatch_options());
    const auto second = r.buffer().dispatch_send(plan, in.dispatch_input(), in.dispatch_options());
    if (r.index() == 0) second.receive();
    r.buffer().reset();
    play(r, c, m);
    EXPECT_THAT(error_of(first.receive), error_with(ErrorCode::faulted, "reset()"));
    play(r, c, m);
  });
}

INSTANTIATE_TEST_SUITE_P(All, ByHand, ::testing::ValuesIn(all_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, ByDeadline, ::testing::ValuesIn(all_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, Membership, ::testing::ValuesIn(all_hows()), cell_name);

}  // namespace
}  // namespace heddle::testing
