#include "support/lost_rank.hpp"

#include <gmock/gmock.h>

#include "support/errors.hpp"
#include "support/held_rows.hpp"

namespace heddle::testing {
namespace {

constexpr int kReader = 0, kWriter = 2;

StepCase lost_case(const CombineCase& combine) {
  return {"lost rank",
          {.routing = Routing::uniform, .ranks = 3, .tokens = 20, .topk = 4, .experts = 7, .hidden = 1296,
           .values = Values::random},
          {.layout = Layout::slab, .quantise = Quantise::fp8, .max_tokens = 20},
          {combine}};
}

/// Returns when this rank's part has been done; the others' waits for it then have their whole time.
void there(StepRank& rank, const StepCase& played, Arrives arrives, bool words) {
  rank.prepare_dispatch(played.dispatch);
  EXPECT_TRUE(rank.machine().backend().dispatch(rank.dispatch_args()));
  if (rank.context().topo.rank != kWriter || arrives == Arrives::nothing) return;
  const HeldRows held(rank, rank.dispatch_args().call, words);
  held.deliver_headers();
  if (arrives == Arrives::some_rows) held.deliver_some(1);
  if (arrives >= Arrives::dispatch) held.deliver_rows();
}

void back(StepRank& rank, const StepCase& played, Arrives arrives, bool words) {
  rank.prepare_combine(played.combines.front(), 5);
  EXPECT_TRUE(rank.machine().backend().combine(rank.combine_args()));
  if (rank.context().topo.rank != kWriter || arrives < Arrives::some_results) return;
  const HeldRows held(rank, rank.combine_args().call, words);
  held.deliver_headers();
  if (arrives == Arrives::some_results) held.deliver_some(2);
  else held.deliver_rows();
}

}  // namespace

std::vector<Trace> play_with_lost_rank(const MakeMachine& make, Arrives arrives, const CombineCase& combine, bool words) {
  const StepCase played = lost_case(combine);
  const spec::World world = make_world(played.world);
  MachineOptions options{.window_bytes = size_t{32} << 20, .timeout = std::chrono::milliseconds(1500), .words = words,
                         .masks_late = true, .held_writer = kWriter, .held_reader = kReader};
  std::vector<Trace> traces(static_cast<size_t>(world.ranks));
  const Errors errors = StepWorld(world, make, options).run([&](StepRank& rank, Bootstrap& group) {
    Trace& trace = traces[static_cast<size_t>(rank.context().topo.rank)];
    trace.push_back(rank.plan());
    for (int round = 0; round < 2; ++round) {
      const Arrives now = round == 0 ? arrives : Arrives::nothing;  // the pair is closed, or all of the test has been seen
      if (round == 1 && arrives == Arrives::all) return;
      there(rank, played, now, words);
      group.barrier("there");  // who waits for a lost rank is late itself
      trace.push_back(rank.dispatched());
      back(rank, played, now, words);
      group.barrier("back");
      trace.push_back(rank.combined());
    }
  });
  EXPECT_THAT(errors, NoneFailed());
  return traces;
}

}  // namespace heddle::testing
