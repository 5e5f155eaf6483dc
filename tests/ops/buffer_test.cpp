// The facade on ranks that are threads: what a user's first program does. The world suite (tests/world) goes through options.
#include <heddle/heddle.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/dtype.hpp"

namespace heddle {
namespace {

using std::chrono::seconds;

constexpr int kRanks = 4;
constexpr int kExperts = 8;
constexpr int kTokens = 37;
constexpr int kTopk = 2;
constexpr int kHidden = 64;

template <class Body>
void on_ranks(int ranks, const Config& config, const Body& body) {
  auto bootstraps = in_process(ranks, seconds(60));
  std::vector<std::thread> threads;
  for (auto& bootstrap : bootstraps) {
    threads.emplace_back([&config, &body, own = std::shared_ptr<Bootstrap>(std::move(bootstrap))] {
      Buffer buffer(own, config);
      body(buffer, *own);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Row t of rank r is t + 100 r everywhere; its experts are t and t + 3.
struct Batch {
  explicit Batch(int rank) : x(kTokens * kHidden), ids(kTokens * kTopk) {
    for (int t = 0; t < kTokens; ++t) {
      for (int k = 0; k < kTopk; ++k) ids[t * kTopk + k] = (t + 3 * k) % kExperts;
      for (int h = 0; h < kHidden; ++h) x[t * kHidden + h] = static_cast<float>(t + 100 * rank);
    }
  }
  TensorView x_view() { return view_of(x.data(), DType::f32, {kTokens, kHidden}); }
  TensorView ids_view() { return view_of(ids.data(), DType::i32, {kTokens, kTopk}); }

  std::vector<float> x;
  std::vector<int32_t> ids;
};

int hit_ranks(const Topology& topo, int t) {
  return topo.owner_of(t % kExperts) == topo.owner_of((t + 3) % kExperts) ? 1 : 2;
}

// Without experts in between, a combine returns each row as many times as ranks held it.
TEST(Buffer, RoundTripOfTokenMajor) {
  on_ranks(kRanks, {.experts = kExperts, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(buffer.topology().rank);
    const Plan plan = buffer.plan(batch.ids_view());
    for (int round = 0; round < 5; ++round) {
      const Received received = buffer.dispatch(plan, {.x = batch.x_view(), .scales = {}, .weights = {}});
      CombineInput input;
      input.x = received.x.view;
      const Combined combined = buffer.combine(received.handle, input);
      for (int t = 0; t < kTokens; ++t) {
        const float wanted = batch.x[t * kHidden] * static_cast<float>(hit_ranks(buffer.topology(), t));
        ASSERT_EQ(combined.x.data<float>()[t * kHidden + kHidden - 1], wanted) << "token " << t;
      }
    }
  });
}

TEST(Buffer, RoundsWhenTheWindowHoldsThreeRowsAPeer) {
  const int64_t window = 40000;
  on_ranks(kRanks, {.experts = kExperts, .window_bytes = window, .timeout = seconds(60), .threads = 2},
           [](Buffer& buffer, Bootstrap&) {
             Batch batch(buffer.topology().rank);
             const Received received =
                 buffer.dispatch(buffer.plan(batch.ids_view()), {.x = batch.x_view(), .scales = {}, .weights = {}});
             CombineInput input;
             input.x = received.x.view;
             const Combined combined = buffer.combine(received.handle, input);
             EXPECT_GT(buffer.metrics().dispatch.rounds, 1u);
             EXPECT_GT(buffer.metrics().combine.rounds, 1u);
             for (int t = 0; t < kTokens; ++t) {
               const float wanted = batch.x[t * kHidden] * static_cast<float>(hit_ranks(buffer.topology(), t));
               ASSERT_EQ(combined.x.data<float>()[t * kHidden], wanted) << "token " << t;
             }
           });
}

// I7: a rank that refuses its own arguments tells the others why, and the next call works.
TEST(Buffer, OneRanksWrongArgumentReachesAllRanks) {
  on_ranks(kRanks, {.experts = kExperts, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    const int rank = buffer.topology().rank;
    Batch batch(rank);
    const Plan plan = buffer.plan(batch.ids_view());
    DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    if (rank == 2) input.x.shape[0] = kTokens - 1;
    try {
      buffer.dispatch(plan, input);
      ADD_FAILURE() << "rank " << rank << " heard nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), rank == 2 ? ErrorCode::usage : ErrorCode::refused) << error.what();
      const bool named = std::string(error.what()).find("rank 2 refused") != std::string::npos;
      EXPECT_EQ(named, rank != 2) << error.what();
    }
    input.x = batch.x_view();
    EXPECT_NO_THROW(buffer.dispatch(plan, input));
  });
}

// I6: an unsplit call takes a lane too, so the call to receive first is the one whose lane comes next.
TEST(Buffer, SplitAndUnsplitCallsShareLanes) {
  on_ranks(2, {.experts = kExperts, .max_tokens = kTokens, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(buffer.topology().rank);
    const Plan plan = buffer.plan(batch.ids_view());
    const DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    const auto split = buffer.dispatch_send(plan, input);
    const Received unsplit = buffer.dispatch(plan, input);
    EXPECT_NO_THROW(buffer.dispatch(plan, input));
    split.receive();
    ASSERT_EQ(split.result->num_rows, unsplit.num_rows);
    const auto size = static_cast<size_t>(unsplit.x.view.numel()) * sizeof(float);
    EXPECT_EQ(std::memcmp(split.result->x.view.data, unsplit.x.view.data, size), 0);
  });
}

// What an old call's receive throws belongs to its own hook: the send that ran it goes on, as it does on the other ranks.
TEST(Buffer, ALaterSendDoesNotSwallowTheErrorOfAnEarlierCall) {
  on_ranks(2, {.experts = kExperts, .max_tokens = kTokens, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    const int rank = buffer.topology().rank;
    Batch batch(rank);
    const Plan plan = buffer.plan(batch.ids_view());
    const DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    DispatchInput wrong = input;
    wrong.x.shape[0] -= 1;
    Split<Received> first;
    const auto send_first = [&] { first = buffer.dispatch_send(plan, rank == 1 ? wrong : input); };
    if (rank == 1) {
      EXPECT_THROW(send_first(), Error);
    } else {
      EXPECT_NO_THROW(send_first());
    }
    const auto second = buffer.dispatch_send(plan, input);
    const auto third = buffer.dispatch_send(plan, input);
    if (rank == 0) {
      EXPECT_THROW(first.receive(), Error);
    }
    EXPECT_NO_THROW(second.receive());
    EXPECT_NO_THROW(third.receive());
  });
}

TEST(Buffer, AHookOutlivesItsBufferAndSaysSo) {
  on_ranks(1, {.experts = kExperts, .max_tokens = kTokens, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(0);
    const DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    auto reset_too_early = buffer.dispatch_send(buffer.plan(batch.ids_view()), input);
    buffer.reset();
    EXPECT_THROW(reset_too_early.receive(), Error);
    auto split = buffer.dispatch_send(buffer.plan(batch.ids_view()), input);
    {
      const Buffer gone = std::move(buffer);
    }
    EXPECT_THROW(split.receive(), Error);
  });
}

}  // namespace
}  // namespace heddle
