// Rows in place through the public API: buffers with a heap, of threads and of processes.
#include <heddle/heddle.hpp>

#include <gtest/gtest.h>

#include <deque>
#include <thread>

#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"

#ifdef __SANITIZE_THREAD__
// A peer's segment is mapped by a thread beside, and rows are stored there once the peer has heard of it: an order through
// another process, which ThreadSanitizer does not see.
extern "C" const char* __tsan_default_suppressions() { return "race:mmap"; }
#endif

namespace heddle {
namespace {

using std::chrono::seconds;

constexpr int kExperts = 6;
constexpr int kTopk = 2;
constexpr int kHidden = 256;

Config config_with(int64_t heap_bytes) {
  return {.experts = kExperts, .max_tokens = 64, .timeout = seconds(60), .heap_bytes = heap_bytes};
}

/// Not owned: the test's ranks keep their bootstrap longer than the buffer.
std::shared_ptr<Bootstrap> borrowed(Bootstrap& bootstrap) {
  return {std::shared_ptr<void>(), &bootstrap};
}

float value(int rank, int round, int token, int column) { return static_cast<float>(rank * 1000 + round * 100 + token + column); }

void expect_rows(const Received& received, int round) {
  for (int64_t row = 0; row < received.num_rows; ++row) {
    const int source = received.row_source.data<int32_t>()[row];
    if (source < 0) continue;
    const int token = received.row_token.data<int32_t>()[row];
    for (int column = 0; column < kHidden; ++column) {
      ASSERT_EQ(received.x.data<float>()[row * kHidden + column], value(source, round, token, column))
          << "row " << row << " of rank " << source << " token " << token;
    }
  }
}

/// Many dispatches whose outputs are held for a while, as training does. Rounds of this rank that came in place.
int play(Bootstrap& bootstrap, const Config& config, Layout layout, int rounds) {
  Buffer buffer(borrowed(bootstrap), config);
  const int rank = bootstrap.rank();
  std::deque<std::pair<int, Received>> held;
  int in_place = 0;
  for (int round = 0; round < rounds; ++round) {
    const int tokens = 20 + (round * 7 + rank * 3) % 40;
    std::vector<float> x(static_cast<size_t>(tokens * kHidden));
    std::vector<int32_t> ids(static_cast<size_t>(tokens * kTopk));
    for (int t = 0; t < tokens; ++t) {
      for (int k = 0; k < kTopk; ++k) ids[static_cast<size_t>(t * kTopk + k)] = (t + round + 3 * k) % kExperts;
      for (int h = 0; h < kHidden; ++h) x[static_cast<size_t>(t * kHidden + h)] = value(rank, round, t, h);
    }
    const Plan plan = buffer.plan(view_of(ids.data(), DType::i32, {tokens, kTopk}));
    const uint64_t before = buffer.metrics().dispatch.rows_in_place;
    Received received = buffer.dispatch(plan, {.x = view_of(x.data(), DType::f32, {tokens, kHidden}), .scales = {}, .weights = {}},
                                        {.layout = layout});
    in_place += buffer.metrics().dispatch.rows_in_place > before;
    held.emplace_back(round, std::move(received));
    if (held.size() > 5) held.pop_front();
    for (const auto& [of_round, output] : held) expect_rows(output, of_round);
  }
  bootstrap.barrier("all have looked");
  return in_place;
}

class WithHeap : public ::testing::TestWithParam<Layout> {};

INSTANTIATE_TEST_SUITE_P(Layouts, WithHeap, ::testing::Values(Layout::token_major, Layout::expert_major, Layout::slab),
                         [](const auto& tested) -> std::string {
                           if (tested.param == Layout::slab) return "slab";
                           return tested.param == Layout::token_major ? "token_major" : "expert_major";
                         });

TEST_P(WithHeap, ThreadsWriteIntoOneAnothersOutputs) {
  const auto errors = testing::run_threads(3, [](Bootstrap& bootstrap) {
    EXPECT_EQ(play(bootstrap, config_with(64 << 20), GetParam(), 20), 20);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST_P(WithHeap, ProcessesWriteIntoOneAnothersOutputs) {
  testing::expect_all_ok(testing::run_tcp_ranks(3, [](Bootstrap& bootstrap) {
    EXPECT_GT(play(bootstrap, config_with(64 << 20), GetParam(), 60), 0) << "the first may be staged, not all";
  }));
}

// Six outputs of some 100 rows do not fit: those without a place are staged, and nothing else changes.
TEST_P(WithHeap, ASmallHeapIsUsedWhereItFits) {
  const auto errors = testing::run_threads(2, [](Bootstrap& bootstrap) {
    const int in_place = play(bootstrap, config_with(300'000), GetParam(), 20);
    EXPECT_LT(in_place, 20);
    EXPECT_TRUE(in_place > 0 || GetParam() == Layout::slab);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(Heap, RanksMustAgreeOnIt) {
  const auto errors = testing::run_threads(2, [](Bootstrap& bootstrap) {
    Buffer buffer(borrowed(bootstrap), config_with(bootstrap.rank() == 0 ? 0 : 1 << 20));
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    EXPECT_NE(std::string(error->what()).find("heap_bytes"), std::string::npos) << error->what();
  }
}

TEST(Heap, MasksByDeadlineStageAllRows) {
  const auto errors = testing::run_threads(2, [](Bootstrap& bootstrap) {
    Config config = config_with(1 << 20);
    config.mask_late_peers = true;
    EXPECT_EQ(play(bootstrap, config, Layout::token_major, 3), 0);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

/// An allocator of the caller's is asked for all outputs; none of its memory is in the heap.
TEST(Heap, TheCallersAllocatorComesFirst) {
  testing::run_threads(1, [](Bootstrap& bootstrap) {
    Buffer buffer(borrowed(bootstrap), config_with(1 << 20));
    int made = 0;
    buffer.set_allocator([&](DType dtype, std::vector<int64_t> shape) {
      ++made;
      return allocate_host(dtype, std::move(shape));
    });
    std::vector<float> x(kHidden);
    int32_t id = 0;
    const auto in = view_of(x.data(), DType::f32, {1, kHidden});
    buffer.dispatch(buffer.plan(view_of(&id, DType::i32, {1, 1})), {.x = in, .scales = {}, .weights = {}});
    EXPECT_GT(made, 0);
    EXPECT_EQ(buffer.metrics().dispatch.rows_in_place, 0u);
  });
}

}  // namespace
}  // namespace heddle
