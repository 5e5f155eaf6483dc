#include "memory/heap_hooks.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

constexpr int64_t kLimit = 1 << 20;

/// body(heap) with this thread's heap chosen, on the only rank.
template <class Body>
void with_heap(const Body& body) {
  const auto errors = testing::run_threads(1, [&](Bootstrap& bootstrap) {
    const auto heap = std::make_shared<SymmetricHeap>(bootstrap, host_segments(), kLimit);
    const HeapOfThread chosen(std::make_shared<HeapPool>(heap, 1 << 16));
    body(*heap);
  });
  EXPECT_FALSE(errors[0]) << errors[0]->what();
}

TEST(HeapHooks, MemoryIsOfTheThreadsHeap) {
  with_heap([](SymmetricHeap& heap) {
    void* memory = heddle_heap_malloc(1000, 0, nullptr);
    ASSERT_NE(memory, nullptr);
    EXPECT_TRUE(heap.offset_of(memory, 1000));
    std::memset(memory, 1, 1000);
    std::thread([&] {
      EXPECT_EQ(heddle_heap_malloc(1000, 0, nullptr), nullptr) << "this thread has chosen none";
      heddle_heap_free(memory, 1000, 0, nullptr);
    }).join();
    void* again = heddle_heap_malloc(1000, 0, nullptr);
    EXPECT_EQ(again, memory);
    heddle_heap_free(again, 1000, 0, nullptr);
  });
  EXPECT_EQ(heddle_heap_malloc(1000, 0, nullptr), nullptr);
}

TEST(HeapHooks, AFullHeapGivesNull) {
  with_heap([](SymmetricHeap&) {
    void* whole = heddle_heap_malloc(kLimit, 0, nullptr);
    EXPECT_NE(whole, nullptr);
    EXPECT_EQ(heddle_heap_malloc(1, 0, nullptr), nullptr);
    heddle_heap_free(whole, kLimit, 0, nullptr);
    void* again = heddle_heap_malloc(kLimit, 0, nullptr);
    EXPECT_EQ(again, whole);
    heddle_heap_free(again, kLimit, 0, nullptr);
  });
}

TEST(HeapHooks, ChoicesNest) {
  with_heap([](SymmetricHeap& outer) {
    with_heap([](SymmetricHeap&) {});  // of another thread
    {
      const HeapOfThread none(nullptr);
      EXPECT_EQ(heddle_heap_malloc(1, 0, nullptr), nullptr);
    }
    void* memory = heddle_heap_malloc(1, 0, nullptr);
    EXPECT_TRUE(outer.offset_of(memory, 1));
    heddle_heap_free(memory, 1, 0, nullptr);
  });
}

// A framework may free when the buffer, its heap and the thread are gone.
TEST(HeapHooks, BlocksOutliveTheHeap) {
  void* memory = nullptr;
  with_heap([&](SymmetricHeap&) { memory = heddle_heap_malloc(100, 0, nullptr); });
  ASSERT_NE(memory, nullptr);
  std::memset(memory, 1, 100);
  heddle_heap_free(memory, 100, 0, nullptr);
  int other = 0;
  heddle_heap_free(&other, 4, 0, nullptr);    // says so, and goes on
  heddle_heap_free(nullptr, 0, 0, nullptr);
}

}  // namespace
}  // namespace heddle
