// The facade on ranks that are threads: what a user's first program does. The world suite (tests/world) goes through options.
#include <heddle/heddle.hpp>

#include <gmock/gmock.h>

#include <cstring>
#include <new>
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
// From ids, a dispatch is one with a plan of its own, which its handle keeps.
TEST(Buffer, ADispatchFromIdsMakesItsPlan) {
  on_ranks(kRanks, {.experts = kExperts, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(buffer.topology().rank);
    const DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    const Plan plan = buffer.plan(batch.ids_view());
    const Received by_plan = buffer.dispatch(plan, input), by_ids = buffer.dispatch(batch.ids_view(), input);
    ASSERT_EQ(by_ids.num_rows, by_plan.num_rows);
    EXPECT_EQ(std::memcmp(by_ids.x.data<float>(), by_plan.x.data<float>(),
                          static_cast<size_t>(by_plan.num_rows) * kHidden * sizeof(float)), 0);
    const Plan own = by_ids.handle.plan();
    EXPECT_EQ(std::memcmp(own.num_rows_per_expert().data, plan.num_rows_per_expert().data, kExperts * sizeof(int32_t)), 0);
    const Split<Received> split = buffer.dispatch_send(batch.ids_view(), input, {.max_tokens = kTokens});
    split.receive();
    EXPECT_EQ(split.result->handle.num_received(), by_ids.handle.num_received());
  });
}

TEST(Buffer, IdsThatAreNoneAreRefusedByADispatch) {
  on_ranks(2, {.experts = kExperts, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(buffer.topology().rank);
    const DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    if (buffer.topology().rank == 1) batch.ids[3] = kExperts;
    try {
      buffer.dispatch(batch.ids_view(), input);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), buffer.topology().rank == 1 ? ErrorCode::usage : ErrorCode::refused) << error.what();
      EXPECT_NE(std::string(error.what()).find("ids"), std::string::npos) << error.what();
    }
    batch.ids[3] = 0;
    EXPECT_GT(buffer.dispatch(batch.ids_view(), input).num_rows, 0);
  });
}

TEST(Buffer, StatisticsAddUp) {
  on_ranks(2, {.experts = kExperts, .timeout = seconds(60)}, [](Buffer& buffer, Bootstrap& group) {
    const int rank = buffer.topology().rank;
    Batch batch(rank);
    std::vector<int32_t> counts(kExperts / 2, 5), wanted = counts;
    std::vector<int64_t> waits(2), back(2);
    DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    input.counts_total = view_of(counts.data(), DType::i32, {kExperts / 2});
    input.waits_total = view_of(waits.data(), DType::i64, {2});
    for (int round = 0; round < 3; ++round) {
      group.barrier("round");
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const Received received = buffer.dispatch(batch.ids_view(), input);
      for (size_t e = 0; e < wanted.size(); ++e) wanted[e] += received.num_per_expert.data<int32_t>()[e];
      if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      CombineInput combine;
      combine.x = received.x.view;
      combine.waits_total = view_of(back.data(), DType::i64, {2});
      buffer.combine(received.handle, combine);
    }
    EXPECT_EQ(counts, wanted);
    const auto late = static_cast<size_t>(1 - rank);
    EXPECT_GT(rank == 0 ? waits[late] : back[late], 0);
    input.counts_total = view_of(counts.data(), DType::i32, {kExperts / 2 - 1});
    EXPECT_THROW(buffer.dispatch(batch.ids_view(), input), Error);
  });
}

TEST(Buffer, ExpertsAreToldAsReady) {
  on_ranks(2, {.experts = kExperts, .max_tokens = kTokens, .timeout = seconds(1)}, [](Buffer& buffer, Bootstrap&) {
    Batch batch(buffer.topology().rank);
    constexpr int64_t kCall = int64_t{1} << 32;
    std::vector<int64_t> ready(kExperts / 2);
    DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
    input.expert_ready = view_of(ready.data(), DType::i64, {kExperts / 2});
    const DispatchOptions grouped{.layout = Layout::expert_major};
    for (int64_t call = 1; call <= 3; ++call) {
      buffer.dispatch(batch.ids_view(), input, grouped);
      EXPECT_EQ(ready, std::vector<int64_t>(kExperts / 2, call * kCall));
    }
    const Split<Received> split = buffer.dispatch_send(batch.ids_view(), input, grouped);
    split.receive();
    EXPECT_EQ(ready, std::vector<int64_t>(kExperts / 2, 4 * kCall));
    EXPECT_THROW(buffer.dispatch(batch.ids_view(), input), Error);  // token-major
    input.expert_ready.shape = {kExperts / 2 - 1};
    EXPECT_THROW(buffer.dispatch(batch.ids_view(), input, grouped), Error);
    EXPECT_EQ(ready, std::vector<int64_t>(kExperts / 2, 4 * kCall));
    if (buffer.topology().rank == 1) return;
    input.expert_ready.shape = {kExperts / 2};
    EXPECT_THROW(buffer.dispatch(batch.ids_view(), input, grouped), Error);  // the other rank never comes
    EXPECT_THAT(ready, ::testing::Each(::testing::Ge(5 * kCall)));  // so that nobody waits for experts of it
  });
}

// What is received without memory for it counts as one call, also for an expert without rows.
TEST(Buffer, ExpertsOfACallWithoutMemoryAreToldOnce) {
  for (const bool has_rows : {false, true}) {
    on_ranks(2, {.experts = kExperts, .max_tokens = kTokens, .timeout = seconds(60)}, [has_rows](Buffer& buffer, Bootstrap&) {
      const int rank = buffer.topology().rank;
      Batch batch(rank);
      for (int32_t& id : batch.ids) id = id == kExperts - 1 ? 0 : id;  // the last expert gets no row
      constexpr int64_t kCall = int64_t{1} << 32;
      std::vector<int64_t> ready(kExperts / 2);
      DispatchInput input{.x = batch.x_view(), .scales = {}, .weights = {}};
      input.expert_ready = view_of(ready.data(), DType::i64, {kExperts / 2});
      const DispatchOptions grouped{.layout = Layout::expert_major};
      const Plan plan = buffer.plan(batch.ids_view());
      if (rank == 1) {
        buffer.set_allocator([has_rows, rows = false](DType dtype, std::vector<int64_t> shape) mutable {
          const bool is_x = dtype == DType::f32 && shape.size() == 2;
          if (has_rows ? rows : is_x) throw std::bad_alloc();  // the rows, or what comes after them
          rows = rows || is_x;
          return allocate_host(dtype, std::move(shape));
        });
        EXPECT_THROW(buffer.dispatch(plan, input, grouped), std::bad_alloc) << has_rows;
        buffer.set_allocator(allocate_host);
      } else {
        buffer.dispatch(plan, input, grouped);
      }
      EXPECT_EQ(ready, std::vector<int64_t>(kExperts / 2, kCall)) << "rank " << rank << ", has rows: " << has_rows;
      buffer.dispatch(plan, input, grouped);
      EXPECT_EQ(ready, std::vector<int64_t>(kExperts / 2, 2 * kCall)) << "rank " << rank;
    });
  }
}

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
