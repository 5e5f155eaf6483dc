// Freed outputs are kept for the next call, within bounds.
#include "base/host_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace heddle {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(HostBlocks, TheNextCallGetsTheLastOnesBlock) {
  HostBlocks blocks(16 * kMiB);
  auto first = blocks.take(5 * kMiB);
  const void* memory = first.get();
  first.reset();
  EXPECT_GE(blocks.kept(), 5 * kMiB);
  EXPECT_EQ(blocks.take(5 * kMiB - 100).get(), memory);
}

TEST(HostBlocks, ABlockThatIsInUseIsNotGivenAgain) {
  HostBlocks blocks(16 * kMiB);
  const auto first = blocks.take(kMiB);
  const auto second = blocks.take(kMiB);
  EXPECT_NE(first.get(), second.get());
  std::memset(first.get(), 1, kMiB);
  std::memset(second.get(), 2, kMiB);
  EXPECT_EQ(static_cast<uint8_t*>(first.get())[kMiB - 1], 1);
}

TEST(HostBlocks, KeepsNoMoreThanItMay) {
  HostBlocks blocks(3 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const auto a = blocks.take(2 * kMiB);
    const auto b = blocks.take(2 * kMiB);
  }
  EXPECT_LE(blocks.kept(), 3 * kMiB);
}

TEST(HostBlocks, AMuchLargerBlockIsNotWasted) {
  HostBlocks blocks(64 * kMiB);
  blocks.take(32 * kMiB).reset();
  const size_t kept = blocks.kept();
  const auto small = blocks.take(kMiB);
  EXPECT_EQ(blocks.kept(), kept);
}

TEST(HostBlocks, EveryBlockIsAligned) {
  HostBlocks blocks(16 * kMiB);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{65}, 100'000 * size_t{1}, 5 * kMiB}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.take(bytes).get()) % 64, 0u) << bytes;
  }
}

}  // namespace
}  // namespace heddle
