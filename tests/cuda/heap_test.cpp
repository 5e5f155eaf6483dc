// The symmetric heap in GPU memory: every rank writes into every rank's segments.
#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "cuda/gpu_machine.hpp"
#include "memory/cuda_driver.hpp"
#include "memory/cuda_segments.hpp"
#include "memory/symmetric_heap.hpp"
#include "support/tcp_ranks.hpp"
#include "support/thread_ranks.hpp"

namespace heddle::testing {
namespace {

std::vector<int> devices_of(int ranks) {
  std::vector<int> devices;
  for (int device = 0; device < std::min(ranks, count_gpus()); ++device) devices.push_back(device);
  return devices;
}

void await_imports(const SymmetricHeap& heap) {
  const uint64_t deadline = now_ns() + 60'000'000'000;
  while (heap.imported() < heap.mapped()) {
    ASSERT_LT(now_ns(), deadline) << heap.imported() << " of " << heap.mapped() << " bytes imported";
    std::this_thread::yield();
  }
}

int mark(int from, int to, int segment) { return 1 + from * 100 + to * 10 + segment; }

void expect_all_write(Bootstrap& bootstrap, const std::vector<int>& readers) {
  const int me = bootstrap.rank();
  const int ranks = bootstrap.size();
  const int device = me % count_gpus();
  const CudaDevice current(device);
  SymmetricHeap heap(bootstrap, cuda_segments(device, readers), int64_t{1} << 36);
  for (int segment = 0; segment < 3; ++segment) {
    const std::shared_ptr<std::byte> mine = heap.grow(5'000'000 * (segment + 1));
    ASSERT_NO_FATAL_FAILURE(await_imports(heap));
    const auto offset = heap.offset_of(mine.get(), 5'000'000);
    ASSERT_TRUE(offset);
    const auto all = bootstrap.all_gather(to_bytes(*offset), "offsets");
    for (int peer = 0; peer < ranks; ++peer) {
      std::byte* at = heap.view().peer(peer) + from_bytes<int64_t>(all[static_cast<size_t>(peer)]) + 4 * me;
      const int value = mark(me, peer, segment);
      check_cuda(cudaMemcpy(at, &value, sizeof value, cudaMemcpyDefault), "writing a mark");
    }
    check_cuda(cudaDeviceSynchronize(), "writing marks");
    bootstrap.barrier("written");
    for (int peer = 0; peer < ranks; ++peer) {
      int seen = 0;
      check_cuda(cudaMemcpy(&seen, mine.get() + 4 * peer, sizeof seen, cudaMemcpyDefault), "reading a mark");
      EXPECT_EQ(seen, mark(peer, me, segment)) << "from " << peer;
    }
    bootstrap.barrier("read");
  }
}

TEST(HeapOfThreads, IsWrittenByAll) {
  HEDDLE_NEEDS_GPU();
  const auto errors = run_threads(4, [](Bootstrap& bootstrap) { expect_all_write(bootstrap, devices_of(4)); });
  for (const auto& error : errors) EXPECT_FALSE(error) << error->what();
}

// The parent must not touch CUDA before it forks.
TEST(HeapOfProcesses, IsWrittenByAll) {
  const auto ranks = run_tcp_ranks(3, [](Bootstrap& bootstrap) {
    if (!cuda_problem().empty()) return Bytes{std::byte{1}};
    expect_all_write(bootstrap, {bootstrap.rank() % count_gpus()});
    return Bytes{};
  });
  expect_all_ok(ranks);
  if (ranks[0].ok() && !ranks[0].result.empty()) GTEST_SKIP() << "no GPU";
}

}  // namespace
}  // namespace heddle::testing
