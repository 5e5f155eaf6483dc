// I7: a rank that refuses its own arguments still makes the call, so that nobody waits for it: it gets a usage error, every
// other rank gets the same reason, and the next call works.
#include <algorithm>
#include <functional>
#include <string>

#include "support/errors.hpp"
#include "world/cases.hpp"
#include "world/compare.hpp"
#include "world/hows.hpp"
#include "world/inputs.hpp"

namespace heddle::testing {
namespace {

struct Arguments {
  DispatchInput dispatch;
  DispatchOptions dispatch_options;
  CombineInput combine;
  CombineOptions combine_options;
};

/// A wrong argument, and what messages say of it.
struct Wrong {
  const char* name;
  std::function<void(Arguments&)> spoil;
  std::string argument;
};

float numbers[4096] = {};

TensorView floats(int64_t rows, int64_t columns) { return view_of(numbers, DType::f32, {rows, columns}); }

const std::vector<Wrong>& wrong_dispatches() {
  static const std::vector<Wrong> wrongs = {
      {"rows of x", [](Arguments& a) { ++a.dispatch.x.shape[0]; }, "x.shape[0] = 10"},
      {"dimensions of x", [](Arguments& a) { a.dispatch.x.shape = {9 * 16}; }, "x.ndim = 1"},
      {"row of 6 bytes", [](Arguments& a) { a.dispatch.x.shape[1] = 3; }, "hidden = 3"},
      {"x without elements", [](Arguments& a) { a.dispatch.x.shape[1] = 0; }, "hidden"},
      {"x column-major", [](Arguments& a) { a.dispatch.x.strides = {1, 9}; }, "x.stride(1)"},
      {"weights of other shape", [](Arguments& a) { a.dispatch.weights = floats(9, 3); }, "weights.shape"},
      {"weights of other dtype", [](Arguments& a) { a.dispatch.weights.dtype = DType::i32; }, "weights.dtype"},
      {"scales and quantise", [](Arguments& a) {
         a.dispatch_options.quantise = Quantise::fp8;
         a.dispatch.scales = floats(9, 1);
       }, "scales"},
      {"scales of too few tokens", [](Arguments& a) { a.dispatch.scales = floats(2, 1); }, "scales"},
      {"quantised bytes", [](Arguments& a) {
         a.dispatch_options.quantise = Quantise::fp8;
         a.dispatch.x.dtype = DType::u8;
       }, "x.dtype"},
      {"no such quantise", [](Arguments& a) { a.dispatch_options.quantise = Quantise{9}; }, "quantise = 9"},
      {"global scale without nvfp4", [](Arguments& a) { a.dispatch.global_scale = floats(1, 1); }, "global_scale"},
      {"global scales for each token", [](Arguments& a) {
         a.dispatch_options.quantise = Quantise::nvfp4;
         a.dispatch.x.dtype = DType::bf16;
         a.dispatch.global_scale = floats(9, 1);
       }, "global_scale = 9"},
      {"tiles of FP32 scales", [](Arguments& a) {
         a.dispatch_options.quantise = Quantise::fp8_row;
         a.dispatch.x.dtype = DType::bf16;
         a.dispatch_options.scale_layout = ScaleLayout::tiles;
       }, "scale_layout"},
      {"alignment 0", [](Arguments& a) { a.dispatch_options.alignment = 0; }, "alignment = 0"},
      {"too many tokens", [](Arguments& a) { a.dispatch_options.max_tokens = 4; }, "tokens = 9"},
      {"max_tokens above the buffer's", [](Arguments& a) { a.dispatch_options.max_tokens = 1000; }, "max_tokens = 1000"},
      {"capacity of an exact output", [](Arguments& a) { a.dispatch_options.capacity = 3; }, "capacity = 3"},
      {"rows beyond the window", [](Arguments& a) { a.dispatch.x.shape[1] = 1 << 20; }, "window_bytes"},
  };
  return wrongs;
}

const std::vector<Wrong>& wrong_combines() {
  static const std::vector<Wrong> wrongs = {
      {"rows of x", [](Arguments& a) { ++a.combine.x.shape[0]; }, "x.rows"},
      {"x of bytes", [](Arguments& a) { a.combine.x.dtype = DType::u8; }, "x.dtype"},
      {"output of bytes", [](Arguments& a) { a.combine_options.out_dtype = DType::e4m3; }, "out_dtype"},
      {"bias of other shape", [](Arguments& a) { a.combine.bias0 = floats(8, 16); }, "bias0"},
      {"second bias alone", [](Arguments& a) {
         a.combine.bias1 = a.combine.bias0;
         a.combine.bias0 = {};
       }, "bias1"},
      {"row weights of other shape", [](Arguments& a) { a.combine.row_weights = floats(2, 2); }, "row_weights"},
      {"weights twice", [](Arguments& a) { a.combine.weights = floats(9, 4); }, "weights"},
      {"weights of other shape", [](Arguments& a) {
         a.combine_options.weighted = false;
         a.combine.weights = floats(9, 5);
       }, "weights.shape"},
      {"out of other shape", [](Arguments& a) { a.combine_options.out = floats(9, 8); }, "out"},
  };
  return wrongs;
}

/// Three ranks of nine tokens, several rounds.
Case small_case(Heap heap = Heap::none) {
  Case c;
  c.world = {.routing = Routing::duplicates, .ranks = 3, .tokens = 9, .topk = 4, .experts = 7, .hidden = 16, .seed = 11};
  c.layout = Layout::expert_major;
  c.sum = Sum::at_owner;
  c.biases = 1;
  c.in_dtype = c.out_dtype = DType::f32;
  c.slots = 3;
  c.heap = heap;
  return c;
}

Arguments arguments_of(const Inputs& in) {
  return {.dispatch = in.dispatch_input(), .dispatch_options = in.dispatch_options(), .combine = in.combine_input(),
          .combine_options = in.combine_options()};
}

/// A call that ranks in `refusing` spoil: they get a usage error, the others the lowest one's reason.
template <class Call>
void expect_refusal(Rank& r, const Wrong& wrong, const std::vector<int>& refusing, const Call& call) {
  const bool refuses = std::find(refusing.begin(), refusing.end(), r.index()) != refusing.end();
  const std::optional<Error> error = error_of([&] { call(refuses); });
  if (refuses) {
    const std::string name = wrong.argument.substr(0, wrong.argument.find_first_of(".[ "));
    EXPECT_THAT(error, error_with(ErrorCode::usage, name)) << wrong.name;
  } else {
    EXPECT_THAT(error, error_with(ErrorCode::refused, "rank " + std::to_string(refusing[0]), wrong.argument))
        << wrong.name;
  }
}

void refuse_dispatches(Rank& r, const Case& c, const Meaning& m, const std::vector<int>& refusing, size_t most = 99) {
  const Inputs in(c, m, r.index());
  const Plan plan = in.plan(r.buffer());
  for (size_t i = 0; i < std::min(most, wrong_dispatches().size()); ++i) {
    const Wrong& wrong = wrong_dispatches()[i];
    expect_refusal(r, wrong, refusing, [&](bool refuses) {
      Arguments a = arguments_of(in);
      if (refuses) wrong.spoil(a);
      r.buffer().dispatch(plan, a.dispatch, a.dispatch_options);
    });
    play(r, c, m);
  }
}

void refuse_combines(Rank& r, const Case& c, const Meaning& m, const std::vector<int>& refusing, size_t most = 99) {
  const Inputs in(c, m, r.index());
  const Plan plan = in.plan(r.buffer());
  for (size_t i = 0; i < std::min(most, wrong_combines().size()); ++i) {
    const Wrong& wrong = wrong_combines()[i];
    const Handle handle = r.buffer().dispatch(plan, in.dispatch_input(), in.dispatch_options()).handle;
    expect_refusal(r, wrong, refusing, [&](bool refuses) {
      Arguments a = arguments_of(in);
      if (refuses) wrong.spoil(a);
      r.buffer().combine(handle, a.combine, a.combine_options);
    });
    play(r, c, m);
  }
}

class Refusal : public InEveryCell {};

TEST_P(Refusal, OfOneRankIsEverybodysReason) {
  const Case c = small_case();
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    refuse_dispatches(r, c, m, {1});
    refuse_combines(r, c, m, {1});
  });
}

TEST_P(Refusal, OfTwoRanksNamesTheLowest) {
  const Case c = small_case();
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) { refuse_dispatches(r, c, m, {0, 2}); });
}

TEST_P(Refusal, OfAllRanksGivesEachItsOwn) {
  const Case c = small_case();
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    refuse_dispatches(r, c, m, {0, 1, 2});
    refuse_combines(r, c, m, {0, 1, 2});
  });
}

// A peer's rows may wait for what another peer sends once it has its credits: the refuser gives credits to all before it
// waits for anybody.
TEST_P(Refusal, LetsPeersGoOnThroughManyRounds) {
  Case c = small_case();
  c.slots = 1;
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    refuse_dispatches(r, c, m, {2}, 1);
    refuse_combines(r, c, m, {2}, 1);
  });
}

// A rank that refuses offers nothing and takes nothing; its lanes' offers must count on as if it had.
TEST_P(Refusal, WithRowsInPlace) {
  for (const Heap heap : {Heap::ample, Heap::empty_once, Heap::nowhere}) {
    const Case c = small_case(heap);
    const Meaning m = meaning_of(c);
    World(GetParam(), settings_for(c)).run([&](Rank& r) {
      refuse_dispatches(r, c, m, {1}, 3);
      refuse_combines(r, c, m, {2}, 1);
    });
  }
}

/// A case of split calls.
Case split_case() {
  Case c = small_case();
  c.slots = 0;
  c.split_dispatch = c.split_combine = true;
  return c;
}

// The hook of a split call raises the reason, not the send, and not a later call.
TEST_P(Refusal, OfASplitCallIsRaisedByItsHook) {
  const Case c = split_case();
  const Meaning m = meaning_of(c);
  const Wrong& wrong = wrong_dispatches()[0];
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Plan plan = in.plan(r.buffer());
    for (int i = 0; i < 4; ++i) {
      std::function<void()> hook;
      const auto send = [&](bool refuses) {
        Arguments a = arguments_of(in);
        if (refuses) wrong.spoil(a);
        hook = r.buffer().dispatch_send(plan, a.dispatch, a.dispatch_options).receive;
      };
      if (r.index() == 1) {
        EXPECT_THAT(error_of([&] { send(true); }), error_with(ErrorCode::usage, "9"));
      } else {
        send(false);
      }
      if (i % 2 == 1) play(r, c, m);
      if (hook) {
        EXPECT_THAT(error_of(hook), error_with(ErrorCode::refused, "rank 1", wrong.argument)) << i;
        EXPECT_EQ(error_of(hook), std::nullopt) << "a hook works once";
      }
      play(r, c, m);
    }
  });
}

// The hook is dropped: its call is received before its lane is used again, and its error is lost, not somebody else's.
TEST_P(Refusal, OfADroppedSplitCallDisturbsNobody) {
  const Case c = split_case();
  const Meaning m = meaning_of(c);
  World(GetParam(), settings_for(c)).run([&](Rank& r) {
    const Inputs in(c, m, r.index());
    const Plan plan = in.plan(r.buffer());
    for (int i = 0; i < 3; ++i) {
      Arguments a = arguments_of(in);
      if (r.index() == 2) wrong_dispatches()[0].spoil(a);
      const auto error = error_of([&] { r.buffer().dispatch_send(plan, a.dispatch, a.dispatch_options); });
      EXPECT_EQ(error.has_value(), r.index() == 2);
      play(r, c, m);
      play(r, c, m);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, Refusal, ::testing::ValuesIn(all_hows()), cell_name);

}  // namespace
}  // namespace heddle::testing
