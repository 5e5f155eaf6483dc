// Buffer's calls of one launch (cuda/dispatch_pump.hpp, combine_pump.hpp) where something goes wrong: what the steps do then,
// one launch must do, too. That their results are right is shown by the world's tests, Streams and Parity.
#include <thread>

#include "base/word_watch.hpp"
#include "cuda/gpu_rank.hpp"

namespace heddle::testing {
namespace {

using std::chrono::milliseconds;

class WholeCalls : public ::testing::Test {
 protected:
  void SetUp() override { HEDDLE_NEEDS_GPU(); }
};

/// A call whose sizes are known that everybody awaits.
Received dispatch(GpuRank& r, const Plan& plan) { return r.buffer().dispatch(plan, r.input(), GpuRank::fixed({})); }

TEST_F(WholeCalls, AreOneLaunch) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    const uint64_t before = r.backend().steps_begun();
    const Received received = dispatch(r, plan);
    EXPECT_EQ(r.backend().steps_begun() - before, 1u);
    r.buffer().combine(received.handle, {.x = received.x.view});
    EXPECT_EQ(r.backend().steps_begun() - before, 2u);
    // The host has to know the sizes between these steps.
    r.buffer().dispatch(plan, r.input());
    EXPECT_EQ(r.backend().steps_begun() - before, 5u);
  });
}

void expect_rows_back(GpuRank& r, const Plan& plan, const std::set<int>& members, const std::vector<int>& masked) {
  r.expect_rows_of(members);
  r.fill(7);
  r.stream().wait();
  const Received received = dispatch(r, plan);
  EXPECT_EQ(received.masked, masked);
  const Combined combined = r.buffer().combine(received.handle, {.x = received.x.view});
  EXPECT_EQ(combined.masked, masked);
  r.count_wrong(combined.x.view.data, 7, r.stream());
  EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
}

/// Rank 2 makes no call. The others name it, go on without it, and later with it.
void leave_out_rank_2(bool in_combine) {
  on_gpus(3, {.timeout = milliseconds(400)}, [in_combine](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    Received received;
    if (in_combine) received = dispatch(r, plan);
    group.barrier("rank 2 is gone");
    if (r.index() != 2) {
      const auto error = error_of([&] {
        if (in_combine) r.buffer().combine(received.handle, {.x = received.x.view});
        else dispatch(r, plan);
      });
      EXPECT_THAT(error, error_with(ErrorCode::timeout, in_combine ? "combine" : "dispatch", "rank 2"));
      r.buffer().reset({0, 1});
      expect_rows_back(r, plan, {0, 1}, {2});
    }
    group.barrier("rank 2 is back");
    r.buffer().reset();
    r.expect_rows_of({0, 1, 2});
    r.expect_usable();
  });
}

TEST_F(WholeCalls, WhoIsGoneInADispatchIsNamedAndLeftOut) { leave_out_rank_2(false); }
TEST_F(WholeCalls, WhoIsGoneInACombineIsNamedAndLeftOut) { leave_out_rank_2(true); }

// A buffer that masks by deadline goes on in the same call.
TEST_F(WholeCalls, WhoIsLateIsMasked) {
  on_gpus(3, {.timeout = milliseconds(800), .mask_late_peers = true}, [](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() != 2) expect_rows_back(r, plan, {0, 1}, {2});
    group.barrier("too late");
    r.buffer().reset();
    r.expect_rows_of({0, 1, 2});
    r.expect_usable();
  });
}

TEST_F(WholeCalls, WhoIsMaskedByHandIsLeftOut) {
  on_gpus(3, {}, [](GpuRank& r, Bootstrap& group) {
    const Plan plan = r.buffer().plan(r.ids_view());
    if (r.index() != 2) r.buffer().mask(2);
    group.barrier("masked");
    if (r.index() != 2) expect_rows_back(r, plan, {0, 1}, {2});
  });
}

// A replay or an enqueued call may be the last for long, so its fault is told without a next call.
TEST_F(WholeCalls, AFaultThatNobodyWaitsForIsLogged) {
  ::testing::internal::CaptureStderr();
  on_gpus(2, {.timeout = milliseconds(400)}, [](GpuRank& r, Bootstrap& group) {
    if (r.index() == 0) {
      const Plan plan = r.buffer().plan(r.ids_view());
      r.buffer().dispatch(plan, r.input(), GpuRank::fixed(r.here()));
      r.stream().wait();
      std::this_thread::sleep_for(4 * WordWatch::kPatience);
    }
    group.barrier("it is told");
    r.buffer().reset();
    r.expect_usable();
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("rank 0: a call on GPU"));
}

// The one that refuses makes the call step by step, the others in one launch.
TEST_F(WholeCalls, ARefusalIsHeardByAll) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    DispatchOptions options = GpuRank::fixed({});
    if (r.index() == 1) options.alignment = 0;
    const auto error = error_of([&] { r.buffer().dispatch(plan, r.input(), options); });
    if (r.index() == 1) EXPECT_THAT(error, error_with(ErrorCode::usage, "alignment = 0"));
    else EXPECT_THAT(error, error_with(ErrorCode::refused, "dispatch", "rank 1", "alignment = 0"));

    const Received received = dispatch(r, plan);
    const TensorView x = r.index() == 1 ? r.x() : received.x.view;
    const auto second = error_of([&] { r.buffer().combine(received.handle, {.x = x}); });
    if (r.index() == 1) EXPECT_THAT(second, error_with(ErrorCode::usage, "x has"));
    else EXPECT_THAT(second, error_with(ErrorCode::refused, "combine", "rank 1", "x.rows"));
    r.expect_usable();
  });
}

// A whole call, steps that the host looks into, and split calls share lanes and tags.
TEST_F(WholeCalls, MixWithStepsAndSplitCalls) {
  on_gpus(2, {}, [](GpuRank& r, Bootstrap&) {
    const Plan plan = r.buffer().plan(r.ids_view());
    for (int round = 0; round < 30; ++round) {
      r.fill(round);
      r.stream().wait();
      const bool splits = round % 3 == 2;
      const auto split = splits ? r.buffer().dispatch_send(plan, r.input(), {}) : Split<Received>{};
      if (splits) split.receive();
      const Received received = splits ? *split.result
                                : round % 3 == 1 ? r.buffer().dispatch(plan, r.input())
                                                 : dispatch(r, plan);
      const bool sends = round % 2 == 1;
      const auto back = sends ? r.buffer().combine_send(received.handle, {.x = received.x.view}) : Split<Combined>{};
      if (sends) back.receive();
      const Combined combined = sends ? *back.result : r.buffer().combine(received.handle, {.x = received.x.view});
      r.count_wrong(combined.x.view.data, round, r.stream());
    }
    EXPECT_EQ(r.wrong(), 0) << "rank " << r.index();
  });
}

}  // namespace
}  // namespace heddle::testing
