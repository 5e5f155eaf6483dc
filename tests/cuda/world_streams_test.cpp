// A Buffer on GPUs as programs use it: calls on streams that nobody waits for, events, captured graphs, and what goes wrong
// there. That results are what the spec says is shown by the world's tests (tests/world) on GPUs.
#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "cuda/gpu_rank.hpp"

namespace heddle::testing {
namespace {

using std::chrono::milliseconds;

class Streams : public ::testing::Test {
 protected:
  void SetUp() override { HEDDLE_NEEDS_GPU(); }
};

// Nobody waits: x is written again behind each call, and results are dropped while they are still to be made.
TEST_F(Streams, CallsFollowTheirStream) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view(), r.here());
    for (int round = 0; round < 200; ++round) {
      r.fill(round);
      r.count_wrong(r.round_trip(plan, r.here()).x.view.data, round, r.stream());
      if (round % 16 == 15) r.stream().wait();  // a full queue would hold a lock that the other rank needs
    }
    EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
  });
}

TEST_F(Streams, EventsOrderCallsOnDifferentStreams) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    const Stream other;
    const Event dispatched, combined, checked;
    for (int round = 0; round < 100; ++round) {
      r.fill(round);
      const auto there = GpuRank::fixed({.stream = r.stream().get(), .after = round > 0 ? checked.get() : nullptr,
                                         .done = dispatched.get()});
      const Received received = r.buffer().dispatch(plan, r.input(), there);
      const Combined back = r.buffer().combine(
          received.handle, {.x = received.x.view},
          {.on = {.stream = other.get(), .after = dispatched.get(), .done = combined.get()}});
      r.count_wrong(back.x.view.data, round, other);
      checked.record(other);
      if (round % 8 == 7) other.wait();
    }
    other.wait();
    EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
  });
}

// What the capture took must not be given to other calls, though plan, handle and results are dropped.
TEST_F(Streams, AGraphKeepsWhatItNeedsAndMixesWithOtherCalls) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const void* result = nullptr;
    Plan plan = r.buffer().plan(r.ids_view(), r.here());
    {
      const Graph graph(r.stream().get(), [&] { result = r.round_trip(plan, r.here()).x.view.data; });
      plan = {};
      for (int round = 0; round < 60; ++round) {
        r.fill(round);
        if (round % 3 != 1) {
          graph.replay();
          r.count_wrong(result, round, r.stream());
        } else {
          const Plan another = r.buffer().plan(r.ids_view(), r.here());
          r.count_wrong(r.round_trip(another, r.here()).x.view.data, round, r.stream());
        }
        if (round % 8 == 7) r.stream().wait();
      }
      EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
    }
    r.expect_usable();
  });
}

// At a capture nothing is sent, so what is refused there is nobody else's business.
TEST_F(Streams, ACaptureRefusesExactSizesLocally) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() == 0) {
      const Graph graph(r.stream().get(), [&] {
        EXPECT_THAT(error_of([&] { r.buffer().dispatch(plan, r.input(), {.on = r.here()}); }),
                    error_with(ErrorCode::usage, "fixed_size"));
      });
    }
    r.expect_usable();
  });
}

TEST_F(Streams, ExactSizesNeedOnlyTheHeaders) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view(), r.here());
    for (int round = 0; round < 20; ++round) {
      r.fill(round);
      const Received received = r.buffer().dispatch(plan, r.input(), {.on = r.here()});
      EXPECT_EQ(received.num_rows, received.x.view.dim(0));
      EXPECT_EQ(received.handle.num_received(), received.num_rows);
      const Combined back = r.buffer().combine(received.handle, {.x = received.x.view}, {.on = r.here()});
      r.count_wrong(back.x.view.data, round, r.stream());
    }
    EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
  });
}

TEST_F(Streams, ATensorOnAnotherDeviceIsRefused) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    std::vector<uint16_t> rows(kTokens * kHidden);
    DispatchInput input = r.input();
    if (r.index() == 1) input.x = view_of(rows.data(), DType::bf16, {kTokens, kHidden});
    const auto error = error_of([&] { r.buffer().dispatch(plan, input); });
    if (r.index() == 1) EXPECT_THAT(error, error_with(ErrorCode::usage, "x is on cpu", "legal: cuda:"));
    else EXPECT_THAT(error, error_with(ErrorCode::refused, "rank 1", "x.device"));
    r.expect_usable();
  });
}

TEST_F(Streams, ABadIdIsNamed) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const std::vector<int32_t> good = r.ids();
    if (r.index() == 0) r.ids()[7] = kExperts;
    if (r.index() == 0) {
      EXPECT_THAT(error_of([&] { r.buffer().plan(r.ids_view()); }), error_with(ErrorCode::usage, "ids[3][1] = 8"));
    }
    // On a stream the host does not wait; who uses the plan is told.
    const Plan plan = r.buffer().plan(r.ids_view(), r.here());
    r.stream().wait();
    const auto error = error_of([&] { r.buffer().dispatch(plan, r.input()); });
    if (r.index() == 0) EXPECT_THAT(error, error_with(ErrorCode::usage, "ids[3][1]"));
    else EXPECT_THAT(error, error_with(ErrorCode::refused, "rank 0", "ids"));
    // At once, the plan may be under way still: then its own rank hears of it when the call has ended.
    const auto at_once = error_of([&] { r.buffer().dispatch(r.buffer().plan(r.ids_view(), r.here()), r.input()); });
    if (r.index() == 0) {
      EXPECT_THAT(at_once, error_with(ErrorCode::usage, "ids[3][1]"));
    }
    r.ids() = good;
    r.expect_usable();
  });
}

bool is_poisoned(const TensorView& x) {
  const auto bytes = fetch(x);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0xFF}; });
}

// Nobody waits for the call that fails: its output is no result, and the next call says why.
TEST_F(Streams, AFaultIsRaisedByTheNextCall) {
  on_gpus(2, {.timeout = milliseconds(400)}, [](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() == 0) {
      const Received received = r.buffer().dispatch(plan, r.input(), GpuRank::fixed(r.here()));
      r.stream().wait();
      EXPECT_TRUE(is_poisoned(received.x.view));
      EXPECT_THAT(error_of([&] { r.buffer().dispatch(plan, r.input()); }), error_with(ErrorCode::timeout, "rank 1"));
      EXPECT_THAT(error_of([&] { r.buffer().dispatch(plan, r.input()); }), error_with(ErrorCode::faulted, "rank 1"));
    }
    group.barrier("a fault later");
    r.buffer().reset();
    r.expect_usable();
  });
}

// As the other ranks raise: nobody may take the output for a result.
TEST_F(Streams, ARefusedCallThatNobodyWaitsForLeavesNoResult) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() == 1) {
      r.buffer().refuse_dispatch("x");
    } else {
      const Received received = r.buffer().dispatch(plan, r.input(), GpuRank::fixed(r.here()));
      r.stream().wait();
      EXPECT_TRUE(is_poisoned(received.x.view));
    }
    r.expect_usable();
  });
}

TEST_F(Streams, InterruptEndsAWaitOnTheGpu) {
  on_gpus(2, {.timeout = std::chrono::seconds(50)}, [](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() == 0) {
      std::atomic<bool> ended = false;
      std::thread other([&] {
        while (!ended) r.buffer().interrupt();
      });
      EXPECT_THAT(error_of([&] { r.buffer().dispatch(plan, r.input()); }), error_with(ErrorCode::faulted, "interrupted"));
      ended = true;
      other.join();
    }
    group.barrier("interrupted");
    r.buffer().reset();
    r.expect_usable();
  });
}

// --- low latency: rows are self-announcing words ---

constexpr DispatchOptions kToSlab{.layout = Layout::slab, .quantise = Quantise::fp8};

/// The rows of the output that hold tokens, and whose they are.
std::vector<std::byte> placed(const Received& received) {
  const auto x = fetch(received.x.view), sources = fetch(received.row_source.view), tokens = fetch(received.row_token.view);
  const auto* source = reinterpret_cast<const int32_t*>(sources.data());
  std::vector<std::byte> rows(tokens);
  for (size_t row = 0; row < sources.size() / sizeof(int32_t); ++row) {
    if (source[row] >= 0) rows.insert(rows.end(), x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
  }
  return rows;
}

/// What the experts of the slab make, whatever came in: ones.
TensorView ones_for(const Received& received) {
  std::vector<uint16_t> ones(static_cast<size_t>(received.x.view.numel()), 0x3F80);
  return lend(view_of(ones.data(), DType::bf16, {received.x.view.numel() / kHidden, kHidden}));
}

// Each send launches the receive of its lane's last call just before itself, on all ranks at once: none may wait for credits
// that others give after it.
TEST_F(Streams, ReceivesOfWordsThatNobodyAsksFor) {
  on_gpus(2, {.timeout = milliseconds(4000)}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    r.fill(4);
    r.stream().wait();
    const Received first = r.buffer().dispatch(plan, r.input(), kToSlab);
    const TensorView experts = ones_for(first);
    const auto summed = fetch(r.buffer().combine(first.handle, {.x = experts}).x.view);
    DispatchOptions here = kToSlab;
    here.on = r.here();
    for (int call = 0; call < 5; ++call) r.buffer().dispatch_send(plan, r.input(), here);
    const Received last = r.buffer().dispatch(plan, r.input(), here);
    for (int call = 0; call < 5; ++call) r.buffer().combine_send(last.handle, {.x = experts}, {.on = r.here()});
    const Combined combined = r.buffer().combine(last.handle, {.x = experts}, {.on = r.here()});
    r.stream().wait();
    EXPECT_EQ(placed(last), placed(first)) << "rank " << r.index();
    EXPECT_EQ(fetch(combined.x.view), summed) << "rank " << r.index();
    r.expect_usable();
  });
}

/// As torch lends a tensor of no rows: without an address.
TensorView no_rows_of(TensorView view) {
  view.data = nullptr;
  view.shape[0] = 0;
  view.strides.clear();
  return view;
}

// By words and by plain steps. Between, there are batches whose plans leave other numbers in the memory of plans.
TEST_F(Streams, ABatchWithoutTokensHasAPlan) {
  on_gpus(2, {.timeout = milliseconds(4000)}, [](GpuRank& r, Bootstrap&) {
    r.fill(6);
    const TensorView ids = r.ids_view();
    for (int round = 0; round < 16; ++round) {
      const bool all_speak = round % 2 == 0, is_empty = !all_speak && r.index() == 1;
      const DispatchOptions options{.layout = Layout::slab,
                                    .quantise = round % 4 < 2 ? Quantise::none : Quantise::fp8, .on = r.here()};
      const auto sent = r.buffer().dispatch_send(is_empty ? no_rows_of(ids) : ids,
                                                 {.x = is_empty ? no_rows_of(r.x()) : r.x()}, options);
      sent.receive();
      const TensorView experts = ones_for(*sent.result);
      const Combined back = r.buffer().combine(sent.result->handle, {.x = experts}, {.on = r.here()});
      r.stream().wait();
      EXPECT_EQ(back.x.view.dim(0), is_empty ? 0 : kTokens);
      const int32_t wanted = kTokens * kTopk / kExperts * (all_speak ? 2 : 1);
      const auto bytes = fetch(sent.result->num_per_expert.view);
      const auto* counts = reinterpret_cast<const int32_t*>(bytes.data());
      EXPECT_THAT(std::vector(counts, counts + kExperts / 2), ::testing::Each(wanted)) << "rank " << r.index();
    }
    r.expect_usable();
  });
}

// A rank that refuses sends no words, but must clear those that came, or the lane's next call would take them for its own.
TEST_F(Streams, ARankThatRefusesACallOfWordsClearsThem) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    r.fill(3);
    r.stream().wait();
    const auto wanted = placed(r.buffer().dispatch(plan, r.input(), kToSlab));
    EXPECT_GT(wanted.size(), size_t{kTokens} * kHidden);
    for (int round = 0; round < 4; ++round) {
      DispatchInput input = r.input();
      if (r.index() == round % 2) input.x.shape[0] = kTokens - 1;
      const auto error = error_of([&] { r.buffer().dispatch(plan, input, kToSlab); });
      if (r.index() == round % 2) EXPECT_THAT(error, error_with(ErrorCode::usage, "x has 47 rows"));
      else EXPECT_THAT(error, error_with(ErrorCode::refused, "x.shape[0] = 47"));
    }
    for (int round = 0; round < 4; ++round) {
      EXPECT_EQ(placed(r.buffer().dispatch(plan, r.input(), kToSlab)), wanted) << "rank " << r.index();
    }
  });
}

TEST_F(Streams, GraphsOfWordsMixWithOtherCalls) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    r.fill(5);
    r.stream().wait();
    const Received first = r.buffer().dispatch(plan, r.input(), kToSlab);
    const auto wanted = placed(first);
    const TensorView experts = ones_for(first);
    const auto summed = fetch(r.buffer().combine(first.handle, {.x = experts}).x.view);
    DispatchOptions here = kToSlab;
    here.on = r.here();
    std::optional<Received> received;
    std::optional<Combined> combined;
    const Graph graph(r.stream().get(), [&] {
      received = r.buffer().dispatch(plan, r.input(), here);
      combined = r.buffer().combine(received->handle, {.x = experts}, {.on = r.here()});
    });
    for (int round = 0; round < 90; ++round) {
      if (round % 3 != 1) graph.replay();
      else r.round_trip(plan, r.here());
      if (round % 8 != 7) continue;
      r.stream().wait();
      EXPECT_EQ(placed(*received), wanted) << "rank " << r.index();
      EXPECT_EQ(fetch(combined->x.view), summed) << "rank " << r.index();
    }
    r.stream().wait();
  });
}

// Also after a reset the words are empty, and what was owed before it is not paid.
TEST_F(Streams, WordsSurviveFaultsAndResets) {
  on_gpus(2, {.timeout = milliseconds(300)}, [](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    r.fill(9);
    r.stream().wait();
    const auto wanted = placed(r.buffer().dispatch(plan, r.input(), kToSlab));
    for (int round = 0; round < 2; ++round) {
      if (r.index() == 0) {
        EXPECT_THAT(error_of([&] { r.buffer().dispatch(plan, r.input(), kToSlab); }), error_with(ErrorCode::timeout, ""));
      }
      group.barrier("late");
      r.buffer().reset();
      for (int call = 0; call < 3; ++call) {
        EXPECT_EQ(placed(r.buffer().dispatch(plan, r.input(), kToSlab)), wanted) << "rank " << r.index();
      }
    }
  });
}

}  // namespace
}  // namespace heddle::testing
