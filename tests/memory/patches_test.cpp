#include "memory/patches.hpp"

#include <gtest/gtest.h>

namespace heddle {
namespace {

constexpr std::size_t kUnit = 4096;
constexpr std::size_t kBytes = 1 << 20;
constexpr int kRanks = 3;

constexpr Window kWindow(kRanks, kBytes);

const Patch& patch_at(const std::vector<Patch>& patches, int64_t offset) {
  const auto at = static_cast<std::size_t>(offset);
  for (const Patch& patch : patches) {
    if (at >= patch.first && at < patch.first + patch.bytes) return patch;
  }
  ADD_FAILURE() << "nothing at " << offset;
  return patches.front();
}

RankPairs apart(int a, int b) {
  RankPairs pairs;
  pairs.add(a, b);
  return pairs;
}

TEST(Patches, PairsHaveNoOrder) {
  EXPECT_TRUE(apart(2, 0).contains(0, 2));
  EXPECT_FALSE(apart(2, 0).contains(0, 1));
}

TEST(Patches, OneIfAllReachOneAnother) {
  const auto patches = patches_of(kWindow, kRanks, 0, apart(1, 2), kBytes, kUnit);
  ASSERT_EQ(patches.size(), 1u);
  EXPECT_FALSE(patches[0].is_pinned);
  EXPECT_EQ(patches[0].bytes, kBytes);
}

TEST(Patches, CoverTheWindowInWholeUnits) {
  std::size_t end = 0;
  for (const Patch& patch : patches_of(kWindow, kRanks, 0, apart(0, 2), kBytes + 1, kUnit)) {
    EXPECT_EQ(patch.first, end);
    EXPECT_EQ(patch.bytes % kUnit, 0u);
    end += patch.bytes;
  }
  EXPECT_EQ(end, kBytes + kUnit);
}

// Where a rank without access stored into GPU memory, its kernel would end in an error that takes the process along.
TEST(Patches, AllThatARankApartWritesIsPinnedAndMostOfTheOthersIsNot) {
  const auto patches = patches_of(kWindow, kRanks, 0, apart(0, 2), kBytes, kUnit);
  EXPECT_TRUE(patch_at(patches, kWindow.cells(2)).is_pinned);
  EXPECT_TRUE(patch_at(patches, kWindow.cells(3) - 1).is_pinned);
  for (const Kind kind : {Kind::dispatch, Kind::combine}) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t first = kWindow.range(kind, lane, 2), tags = kWindow.tags(kind, lane, 2);
      const int64_t last = tags + kWindow.num_tags() * int64_t{sizeof(uint64_t)} - 1;
      for (int64_t at = first; at <= last; at += 512) EXPECT_TRUE(patch_at(patches, at).is_pinned) << at;
      EXPECT_TRUE(patch_at(patches, last).is_pinned);
      EXPECT_FALSE(patch_at(patches, kWindow.range(kind, lane, 1) + kWindow.range_bytes() / 2).is_pinned);
    }
  }
}

TEST(Patches, OfRangesSmallerThanAUnitAreAllPinned) {
  const Window small(kRanks, 64 << 10);
  const auto patches = patches_of(small, kRanks, 1, apart(1, 0), 64 << 10, 64 << 10);
  ASSERT_EQ(patches.size(), 1u);
  EXPECT_TRUE(patches[0].is_pinned);
}

}  // namespace
}  // namespace heddle
