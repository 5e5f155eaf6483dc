#include "memory/symmetric_heap.hpp"

#include <gmock/gmock.h>

#include <cstring>
#include <thread>

#include "memory/mapping.hpp"
#include "memory_checks.hpp"
#include "support/errors.hpp"
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"

namespace heddle {
namespace {

using testing::error_of;
using testing::error_with;
using testing::expect_all_ok;
using testing::run_tcp_ranks;
using testing::run_threads;

constexpr int64_t kLimit = 64 << 20;

/// Waits until all peers have mapped what this rank has.
void await_imports(const SymmetricHeap& heap) {
  const std::uint64_t deadline = now_ns() + 60'000'000'000;
  while (heap.imported() < heap.mapped()) {
    ASSERT_LT(now_ns(), deadline) << heap.imported() << " of " << heap.mapped() << " bytes imported";
    std::this_thread::yield();
  }
}

std::byte mark(int from, int to, int segment) { return std::byte(1 + from * 5 + to * 3 + segment); }

/// Every rank grows its heap some times, and all write where the owner says; the owner finds it there.
void expect_all_write(SymmetricHeap& heap, Bootstrap& bootstrap) {
  const int ranks = bootstrap.size();
  const int me = bootstrap.rank();
  for (int segment = 0; segment < 3; ++segment) {
    const std::shared_ptr<std::byte> mine = heap.grow(1000 + segment * page_bytes());
    ASSERT_NO_FATAL_FAILURE(await_imports(heap));
    const auto offset = heap.offset_of(mine.get(), 1000);
    ASSERT_TRUE(offset);
    const auto all = bootstrap.all_gather(testing::to_bytes(*offset), "offsets");
    for (int peer = 0; peer < ranks; ++peer) {
      const auto at = testing::from_bytes<int64_t>(all[static_cast<size_t>(peer)]);
      heap.view().peer(peer)[at + me] = mark(me, peer, segment);
    }
    bootstrap.barrier("written");
    for (int peer = 0; peer < ranks; ++peer) EXPECT_EQ(mine.get()[peer], mark(peer, me, segment)) << "from " << peer;
    bootstrap.barrier("read");
  }
}

TEST(SymmetricHeap, ThreadsWriteIntoEverySegment) {
  const auto errors = run_threads(4, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), kLimit);
    EXPECT_EQ(heap.view().local(), heap.view().peer(bootstrap.rank()));
    expect_all_write(heap, bootstrap);
  });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

TEST(SymmetricHeap, ProcessesWriteIntoEverySegment) {
  expect_all_ok(run_tcp_ranks(4, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), kLimit);
    expect_all_write(heap, bootstrap);
  }));
}

// Many at once: they may come in another order than they were made in.
TEST(SymmetricHeap, ManySegmentsAtOnceKeepTheirPlaces) {
  expect_all_ok(run_tcp_ranks(3, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), kLimit);
    std::vector<std::shared_ptr<std::byte>> segments;
    for (int i = 0; i < 100; ++i) {
      segments.push_back(heap.grow(static_cast<int64_t>(page_bytes()) * (1 + i % 3)));
      std::memcpy(segments.back().get(), &i, sizeof i);
    }
    await_imports(heap);
    const int64_t last = *heap.offset_of(segments.back().get(), 4);
    bootstrap.barrier("all imported");
    for (int peer = 0; peer < bootstrap.size(); ++peer) {
      int seen = 0;
      std::memcpy(&seen, heap.view().peer(peer) + last, sizeof seen);
      EXPECT_EQ(seen, 99) << "of rank " << peer;
    }
    bootstrap.barrier("all read");
  }));
}

// Rows go in place only where all can write.
TEST(SymmetricHeap, MemoryThatAPeerHasNotMappedHasNoOffset) {
  const auto ranks = run_tcp_ranks(2, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), kLimit);
    const auto first = heap.grow(100);
    await_imports(heap);
    bootstrap.barrier("imported");
    if (bootstrap.rank() == 1) testing::die_now();
    EXPECT_ANY_THROW(bootstrap.barrier());  // it is dead
    const auto second = heap.grow(100);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(heap.offset_of(first.get(), 100));
    EXPECT_FALSE(heap.offset_of(second.get(), 100));
    EXPECT_FALSE(heap.offset_of(first.get(), heap.unit() + 1)) << "reaches into the second";
    EXPECT_LT(heap.imported(), heap.mapped());
  });
  EXPECT_TRUE(ranks[0].ok()) << ranks[0];
}

TEST(SymmetricHeap, OtherMemoryHasNoOffset) {
  run_threads(1, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), kLimit);
    const auto segment = heap.grow(100);
    int elsewhere = 0;
    EXPECT_FALSE(heap.offset_of(&elsewhere, sizeof elsewhere));
    EXPECT_FALSE(heap.offset_of(nullptr, 1));
    EXPECT_EQ(heap.offset_of(segment.get() + 40, 60), 40);
  });
}

TEST(SymmetricHeap, AFullHeapSaysSoAndStaysUsable) {
  run_threads(1, [](Bootstrap& bootstrap) {
    SymmetricHeap heap(bootstrap, host_segments(), 4 * static_cast<int64_t>(page_bytes()));
    const auto segment = heap.grow(3 * static_cast<int64_t>(page_bytes()));
    EXPECT_THAT(error_of([&] { heap.grow(2 * static_cast<int64_t>(page_bytes())); }),
                error_with(ErrorCode::system, "full", std::to_string(2 * page_bytes()), std::to_string(page_bytes())));
    EXPECT_THAT(error_of([&] { heap.grow(0); }), error_with(ErrorCode::usage, "0 bytes"));
    EXPECT_TRUE(heap.offset_of(heap.grow(1).get(), 1));
  });
}

TEST(SymmetricHeap, BlocksOutliveTheHeap) {
  run_threads(2, [](Bootstrap& bootstrap) {
    std::shared_ptr<std::byte> block;
    {
      SymmetricHeap heap(bootstrap, host_segments(), kLimit);
      block = heap.grow(100);
      bootstrap.barrier("both have one");
    }
    block.get()[99] = std::byte{7};
    EXPECT_EQ(block.get()[99], std::byte{7});
    bootstrap.barrier("written");
  });
}

TEST(SymmetricHeap, NothingIsLeft) {
  expect_all_ok(run_tcp_ranks(2, [](Bootstrap& bootstrap) {
    testing::expect_nothing_left(kLimit, [&] {
      SymmetricHeap heap(bootstrap, host_segments(), kLimit);
      const auto block = heap.grow(100);
      await_imports(heap);
      bootstrap.barrier("imported");
    });
  }));
}

}  // namespace
}  // namespace heddle
