#include "memory/heap_pool.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "memory/mapping.hpp"
#include "support/dice.hpp"
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using testing::run_threads;

constexpr int64_t kStep = 1 << 16;
constexpr int64_t kLimit = 1 << 20;

std::shared_ptr<HeapPool> pool_of(const std::shared_ptr<SymmetricHeap>& heap) {
  return std::make_shared<HeapPool>(heap, kStep);
}

/// body(pool, heap) for the only rank.
template <class Body>
void with_pool(const Body& body) {
  const auto errors = run_threads(1, [&](Bootstrap& bootstrap) {
    const auto heap = std::make_shared<SymmetricHeap>(bootstrap, host_segments(), kLimit);
    const auto pool = pool_of(heap);
    body(*pool, *heap);
  });
  EXPECT_FALSE(errors[0]) << errors[0]->what();
}

TEST(HeapPool, BlocksLieInTheHeapAndApart) {
  with_pool([](HeapPool& pool, SymmetricHeap& heap) {
    const auto a = pool.take(100), b = pool.take(1), c = pool.take(0);
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(heap.offset_of(a->memory.get(), 100), a->offset);
    EXPECT_EQ(std::vector<int64_t>({a->offset, b->offset, c->offset}), std::vector<int64_t>({0, 256, 512}));
    EXPECT_EQ(heap.mapped(), kStep);
  });
}

TEST(HeapPool, WhatIsGivenBackIsUsedAgain) {
  with_pool([](HeapPool& pool, SymmetricHeap& heap) {
    for (int i = 0; i < 1000; ++i) {
      auto a = pool.take(kStep / 4), b = pool.take(kStep / 4), c = pool.take(kStep / 4);
      ASSERT_TRUE(a && b && c);
      (i % 2 == 0 ? b : a).reset();  // in any order: neighbours are joined
    }
    EXPECT_EQ(heap.mapped(), kStep);
    EXPECT_TRUE(pool.take(kStep));
    EXPECT_EQ(heap.mapped(), kStep);
  });
}

TEST(HeapPool, AFullHeapGivesNothingUntilABlockComesBack) {
  with_pool([](HeapPool& pool, SymmetricHeap& heap) {
    auto whole = pool.take(kLimit);
    ASSERT_TRUE(whole);
    EXPECT_FALSE(pool.take(1));
    EXPECT_FALSE(pool.take(kLimit + 1));
    whole.reset();
    EXPECT_TRUE(pool.take(1));
    EXPECT_EQ(heap.mapped(), kLimit);
  });
}

TEST(HeapPool, BlocksOutliveThePool) {
  std::optional<HeapPool::Block> block;
  with_pool([&](HeapPool& pool, SymmetricHeap&) { block = pool.take(100); });
  std::memset(block->memory.get(), 1, 100);
}

TEST(HeapPool, ManyBlocksNeverOverlap) {
  with_pool([](HeapPool& pool, SymmetricHeap&) {
    testing::Dice dice(5);
    std::vector<std::pair<HeapPool::Block, std::vector<std::byte>>> held;
    for (int i = 0; i < 3000; ++i) {
      if (held.size() > 20 || (!held.empty() && dice.one_in(3))) {
        const auto at = static_cast<size_t>(dice.below(static_cast<int>(held.size())));
        ASSERT_EQ(std::memcmp(held[at].first.memory.get(), held[at].second.data(), held[at].second.size()), 0);
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        continue;
      }
      const int bytes = 1 + dice.below(40'000);
      auto block = pool.take(bytes);
      if (!block) continue;  // full
      std::memset(block->memory.get(), i, static_cast<size_t>(bytes));
      held.emplace_back(std::move(*block), std::vector<std::byte>(static_cast<size_t>(bytes), std::byte(i)));
    }
  });
}

// The first block of a new segment waits until the peers have mapped it.
TEST(HeapPool, GrownMemoryIsGivenOnceAllHaveMappedIt) {
  testing::expect_all_ok(testing::run_tcp_ranks(2, [](Bootstrap& bootstrap) {
    const auto heap = std::make_shared<SymmetricHeap>(bootstrap, host_segments(), kLimit);
    const auto pool = pool_of(heap);
    const std::uint64_t deadline = now_ns() + 60'000'000'000;
    std::optional<HeapPool::Block> block;
    while (!block && now_ns() < deadline) {
      block = pool->take(100);
      if (!block) std::this_thread::yield();
    }
    ASSERT_TRUE(block);
    EXPECT_LE(block->offset + 100, heap->imported());
    EXPECT_EQ(heap->mapped(), kStep) << "it does not grow again while the first is on its way";
    bootstrap.barrier("both have a block");
  }));
}

}  // namespace
}  // namespace heddle
