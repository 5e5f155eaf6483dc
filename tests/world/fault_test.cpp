// I9: ranks that make different calls, come late, die or go away. Every live rank raises soon, names the rank that it began
// with, and goes on after reset(). A deadline may be exceeded tenfold here; nothing else is timed.
#include <chrono>
#include <functional>
#include <thread>

#include "support/errors.hpp"
#include "support/fork_ranks.hpp"
#include "world/cases.hpp"
#include "world/compare.hpp"
#include "world/hows.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kDeadline = 700ms;

Case small_case(int ranks) {
  Case c;
  c.world = {.routing = Routing::uniform, .ranks = ranks, .tokens = 9, .topk = 3, .experts = 7, .hidden = 16, .seed = 5};
  c.layout = Layout::expert_major;
  c.sum = Sum::at_owner;
  c.slots = 4;
  c.in_dtype = c.out_dtype = DType::bf16;
  return c;
}

WorldSettings impatient(const Case& c, std::chrono::nanoseconds deadline = kDeadline) {
  WorldSettings settings = settings_for(c);
  settings.config.timeout = deadline;
  return settings;
}

Received dispatch(Rank& r, const Inputs& in) {
  return r.buffer().dispatch(in.plan(r.buffer()), in.dispatch_input(), in.dispatch_options());
}

/// What the call throws, within ten deadlines.
template <class Call>
std::optional<Error> late_error(const Call& call, std::chrono::nanoseconds deadline = kDeadline) {
  const auto start = std::chrono::steady_clock::now();
  std::optional<Error> error = error_of(call);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10 * deadline);
  return error;
}

void expect_usable_after_reset(Rank& r, const Case& c, const Meaning& m) {
  const Inputs in(c, m, r.index());
  EXPECT_THAT(error_of([&] { dispatch(r, in); }), error_with(ErrorCode::faulted, "reset()"));
  r.buffer().reset();
  play(r, c, m);
}

class Mismatch : public InEveryCell {};

// One rank makes another call than the other: both see it, and each message names the other rank.
TEST_P(Mismatch, OfOperationsNamesBothSides) {
  Case c = small_case(2);
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Handle handle = dispatch(r, in).handle;
    const auto error = error_of([&] {
      if (r.index() == 0) dispatch(r, in);
      else r.buffer().combine(handle, in.combine_input(), in.combine_options());
    });
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "rank 0", "rank 1", "dispatch", "combine"));
    r.barrier();
    expect_usable_after_reset(r, c, m);
  });
}

struct Difference {
  const char* what;
  std::function<void(Case&)> make;
};

const std::vector<Difference>& differences() {
  static const std::vector<Difference> all = {
      {"hidden", [](Case& c) { c.world.hidden = 24; }},
      {"dtype of the same size", [](Case& c) { c.world.dtype = DType::f16; }},
      {"topk", [](Case& c) { c.world.topk = 2; }},
      {"layout", [](Case& c) { c.layout = Layout::slab; }},
      {"alignment", [](Case& c) { c.alignment = 8; }},
      {"max_tokens", [](Case& c) { c.world.tokens = c.max_tokens = 7; }},
      {"quantise", [](Case& c) { c.quantise = Quantise::fp8; }},
      {"weights", [](Case& c) { c.with_weights = false; c.sum = Sum::plain; }},
  };
  return all;
}

/// Rank 1 differs. Every rank says so, also one that sees first that others have left the call.
void expect_difference_found(const How& how, int ranks, const Difference& difference) {
  Case c = small_case(ranks);
  c.slots = 0;
  c.world.tokens = 8;
  Case other = c;
  difference.make(other);
  const Meaning m = meaning_of(c);
  const Meaning differs = meaning_of(other);
  WorldSettings settings = settings_for(c);
  settings.window_bytes = std::max(settings.window_bytes, settings_for(other).window_bytes);
  settings.story = difference.what;
  World(how, settings).run([&](Rank& r) {
    const bool odd = r.index() == 1;
    const Inputs in(odd ? other : c, odd ? differs : m, r.index());
    const auto error = error_of([&] { dispatch(r, in); });
    EXPECT_THAT(error, error_with(ErrorCode::mismatch, "rank 1", "rank " + std::to_string(r.index())));
    r.barrier();
    expect_usable_after_reset(r, c, m);
  });
}

TEST_P(Mismatch, OfArgumentsNamesBothSides) {
  for (const Difference& difference : differences()) expect_difference_found(GetParam(), 2, difference);
}

TEST_P(Mismatch, IsFoundByAllOfFourRanks) { expect_difference_found(GetParam(), 4, differences()[0]); }

// A combine with the handle of another batch would leave ranks waiting for rows that nobody sends.
TEST_P(Mismatch, OfHandlesIsNoHang) {
  Case c = small_case(2);
  c.world.routing = Routing::ragged;
  Case other = c;
  other.world.seed = 6;
  other.world.routing = Routing::one_rank;
  const Meaning m = meaning_of(c);
  const Meaning of_other = meaning_of(other);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Inputs in_other(other, of_other, r.index());
    const Handle handle = dispatch(r, in).handle;
    const Handle wrong = dispatch(r, in_other).handle;
    const Inputs& used = r.index() == 0 ? in : in_other;
    const auto error = error_of([&] {
      r.buffer().combine(r.index() == 0 ? handle : wrong, used.combine_input(), used.combine_options());
    });
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error, error_with(error->code(), "rank " + std::to_string(1 - r.index())));
    EXPECT_TRUE(error->code() == ErrorCode::mismatch || error->code() == ErrorCode::timeout) << error->what();
    r.barrier();
    expect_usable_after_reset(r, c, m);
  });
}

class Late : public InEveryCell {};

// Less than the deadline is no fault.
TEST_P(Late, ARankThatComesInTimeDisturbsNobody) {
  const Case c = small_case(3);
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    for (int i = 0; i < 3; ++i) {
      if (r.index() == i) std::this_thread::sleep_for(50ms);
      play(r, c, m);
    }
  });
}

// A rank stalls past the deadline: the others raise; it finds their faults when it wakes. All reset, and go on.
TEST_P(Late, AStalledRankIsNamedAndResetRepairs) {
  const Case c = small_case(3);
  const Meaning m = meaning_of(c);
  World(GetParam(), impatient(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    play(r, c, m);
    r.barrier();
    if (r.index() == 1) std::this_thread::sleep_for(3 * kDeadline);
    const auto error = late_error([&] { dispatch(r, in); });
    if (r.index() == 1) EXPECT_TRUE(error.has_value());
    else EXPECT_THAT(error, error_with(ErrorCode::timeout, "dispatch", "rank 1", "header"));
    r.barrier();
    expect_usable_after_reset(r, c, m);
  });
}

// One more, after a reset that went wrong: it names who is missing, and can be held again.
TEST_P(Late, AResetThatSomebodyMissesCanBeHeldAgain) {
  const Case c = small_case(3);
  const Meaning m = meaning_of(c);
  World(GetParam(), impatient(c)).run([&](Rank& r) {
    play(r, c, m);
    r.barrier();
    if (r.index() != 2) {
      EXPECT_THAT(late_error([&] { r.buffer().reset(); }), error_with(ErrorCode::timeout, "reset", "2"));
    }
    r.barrier();
    r.buffer().reset();
    play(r, c, m);
  });
}

class Dead : public InEveryCell {};

// A rank that never calls again: survivors raise, name it, leave it out, and go on with exact results.
TEST_P(Dead, IsNamedByAllAndLeftOut) {
  const Case c = small_case(4);
  const Meaning m = meaning_of(c);
  const Meaning rest = meaning_of(c, without(4, {2}));
  World(GetParam(), impatient(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    play(r, c, m);
    r.barrier();
    if (r.index() == 2) r.die();
    EXPECT_THAT(late_error([&] { dispatch(r, in); }), error_with(ErrorCode::timeout, "rank 2"));
    r.barrier();
    r.buffer().reset({0, 1, 3});
    EXPECT_EQ(r.buffer().masked(), std::vector<int>{2});
    for (int i = 0; i < 3; ++i) play(r, c, rest);
  });
}

class Killed : public InEveryCell {};

/// Kills its process after a while, wherever it then is.
void die_after(std::chrono::microseconds time) {
  std::thread([time] {
    std::this_thread::sleep_for(time);
    die_now();
  }).detach();
}

// Killed in mid-loop: survivors may wait for one another then, but all name the one that is gone.
TEST_P(Killed, InMidLoopIsNamedByAll) {
  const Case c = small_case(4);
  const Meaning m = meaning_of(c);
  const Meaning rest = meaning_of(c, without(4, {1}));
  for (const auto time : {100us, 3000us, 20000us}) {
    World world(GetParam(), impatient(c));
    world.run([&](Rank& r) {
      if (r.index() == 1) {
        r.will_die();
        die_after(time);
      }
      const Inputs in(c, m, r.index());
      const auto error = error_of([&] {
        for (;;) {
          const Handle handle = dispatch(r, in).handle;
          r.buffer().combine(handle, in.combine_input(), in.combine_options());
        }
      });
      if (r.index() == 1) std::this_thread::sleep_for(1h);  // the others' faults may come first
      EXPECT_THAT(error, error_with(ErrorCode::timeout, "rank 1"));
      r.barrier();
      r.buffer().reset({0, 2, 3});
      for (int i = 0; i < 3; ++i) play(r, c, rest);
    });
  }
}

class Destroyed : public InEveryCell {};

// Destroying is local: what was sent before arrives, and only a call that waits in vain ends, with an error that says so.
TEST_P(Destroyed, PeersAreToldAtOnce) {
  const Case c = small_case(3);
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    play(r, c, m);
    if (r.index() == 0) {
      r.buffer().destroy();
      r.buffer().destroy();
      EXPECT_TRUE(r.buffer().is_destroyed());
      EXPECT_THAT(error_of([&] { dispatch(r, in); }), error_with(ErrorCode::destroyed, "destroyed"));
    } else {
      const auto error = error_of([&] { dispatch(r, in); });
      ASSERT_TRUE(error.has_value());
      EXPECT_THAT(error, error_with(error->code(), "rank 0"));
      EXPECT_TRUE(error->code() == ErrorCode::destroyed || error->code() == ErrorCode::timeout) << error->what();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Mismatch, ::testing::ValuesIn(all_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, Late, ::testing::ValuesIn(all_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, Dead, ::testing::ValuesIn(all_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, Killed, ::testing::ValuesIn(process_hows()), cell_name);
INSTANTIATE_TEST_SUITE_P(All, Destroyed, ::testing::ValuesIn(all_hows()), cell_name);

}  // namespace
}  // namespace heddle::testing
