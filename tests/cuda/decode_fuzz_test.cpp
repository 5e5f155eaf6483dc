// Calls of words of any size, form, routing, mask and way, drawn at random, against the plain steps on a CPU.
//   HEDDLE_ROUNDS   worlds, default 40
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "cuda/gpu_machine.hpp"
#include "protocol/context.hpp"
#include "support/dice.hpp"
#include "support/step_world.hpp"

namespace heddle::testing {
namespace {

int num_worlds() {
  const char* text = std::getenv("HEDDLE_ROUNDS");
  return text == nullptr ? 40 : std::atoi(text);
}

/// A case, and a pair of ranks that a mask closes, if any.
struct Drawn {
  StepCase played;
  int masks = -1;  // this rank
  int masked = -1;
  GpuOptions gpu;
};

StepCase draw_case(Dice& dice) {
  WorldOptions world{.routing = dice.one_of(kRoutings), .ranks = 1 + dice.below(4),
                     .tokens = dice.one_in(8) ? 1 : 1 + dice.below(150), .topk = 1 + dice.below(9),
                     .hidden = 16 * (1 + dice.below(dice.one_in(6) ? 448 : 100)), .values = Values::random,
                     .seed = dice.word()};
  world.experts = std::max(world.topk, world.ranks) + dice.below(30);
  const bool slab = dice.one_in(2);
  DispatchCase dispatch{
      .layout = slab ? Layout::slab : Layout::expert_major,
      .quantise = dice.one_of({Quantise::none, Quantise::fp8, Quantise::fp8_pow2, Quantise::fp8_ue8m0, Quantise::fp8_row,
                               Quantise::mxfp8}),
      .max_tokens = world.tokens + dice.below(20),
      .fixed_size = true,
      .zero_padding = dice.one_in(2),
      .split = !slab || dice.one_in(2),
      .tells_ready = dice.one_in(3)};
  if (dispatch.quantise == Quantise::none) world.ones = dice.below(20);
  if (!slab) dispatch.alignment = 1 + dice.below(17);
  if (!slab && dice.one_in(4)) dispatch.capacity = dice.below(2 * world.tokens);
  const std::vector<CombineCase> sums{{}, {.weights = Weights::at_owner}, {.weights = Weights::late}};
  StepCase played{"drawn", world, dispatch, {dice.one_of(sums), dice.one_of(sums)}};
  played.combines[0].biases = dice.below(3);
  played.rounds = 1 + dice.below(3);
  played.words = true;
  return played;
}

Drawn draw(uint64_t seed) {
  Dice dice(seed);
  Drawn drawn{.played = draw_case(dice)};
  const int ranks = drawn.played.world.ranks;
  if (ranks > 1 && dice.one_in(3)) {
    drawn.masks = dice.below(ranks);
    drawn.masked = (drawn.masks + 1 + dice.below(ranks - 1)) % ranks;
  }
  if (dice.one_in(3)) drawn.gpu.num_sms = 1 + dice.below(20);
  return drawn;
}

/// Receives run in another thread.
bool receive_elsewhere(const std::function<bool()>& receive) {
  bool ok = false;
  std::thread([&] { ok = receive(); }).join();
  return ok;
}

Trace play_drawn(StepRank& rank, const StepCase& played, bool by_words) {
  Trace trace;
  rank.take_plan();
  for (int round = 0; round < played.rounds; ++round) {
    if (played.dispatch.split) {
      if (round == 0) trace.push_back(rank.plan());
      EXPECT_TRUE(rank.send_dispatch(played.dispatch));
      EXPECT_TRUE(receive_elsewhere([&] { return rank.read_headers() && rank.receive_dispatch(); }));
    } else {
      EXPECT_TRUE(rank.whole_dispatch(played.dispatch, round == 0));
      if (round == 0) trace.push_back(rank.planned());
    }
    if (by_words) {
      EXPECT_TRUE(uses_words(rank.context(), rank.dispatch_args().call.shape));
    }
    trace.push_back(rank.dispatched());
    for (const CombineCase& combine : played.combines) {
      EXPECT_TRUE(rank.whole_combine(combine, static_cast<uint64_t>(round)));
      trace.push_back(rank.combined());
    }
  }
  return trace;
}

std::vector<Trace> play_all_drawn(const Drawn& drawn, const MakeMachine& make, bool by_words) {
  return play_all(drawn.played, make, [&](StepRank& rank, const StepCase& played) {
    if (rank.context().topo.rank == drawn.masks) rank.machine().backend().close_pair(rank.context(), drawn.masked);
    return play_drawn(rank, played, by_words);
  });
}

std::string describe(uint64_t seed, const Drawn& drawn) {
  const WorldOptions& world = drawn.played.world;
  const DispatchCase& dispatch = drawn.played.dispatch;
  return fmt::format("seed {}: {} ranks, {} tokens of at most {}, {}, topk {}, experts {}, hidden {}, quantise {}, {}{}{}, "
                     "{} masks {}",
                     seed, world.ranks, world.tokens, dispatch.max_tokens, name_of(world.routing), world.topk,
                     world.experts, world.hidden, static_cast<int>(dispatch.quantise),
                     dispatch.layout == Layout::slab ? "slab" : "expert-major", dispatch.split ? ", split" : "",
                     dispatch.tells_ready ? ", ready" : "", drawn.masks, drawn.masked);
}

TEST(DecodeFuzz, LeavesWhatThePlainStepsLeave) {
  HEDDLE_NEEDS_GPU();
  for (int i = 0; i < num_worlds() && !HasFailure(); ++i) {
    const auto seed = static_cast<uint64_t>(i) * 7919 + 11;
    const Drawn drawn = draw(seed);
    SCOPED_TRACE(describe(seed, drawn));
    expect_same_traces(drawn.played, play_all_drawn(drawn, make_cpu_machine, false),
                       play_all_drawn(drawn, gpu_machines(drawn.gpu), true));
  }
}

}  // namespace
}  // namespace heddle::testing
