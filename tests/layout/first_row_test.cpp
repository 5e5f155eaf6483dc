#include "layout/first_row.hpp"

#include <gtest/gtest.h>

#include <array>

namespace heddle {
namespace {

// Three sources, four columns.
constexpr std::array<std::array<int64_t, 4>, 3> kTable = {{{1, 0, 2, 3}, {4, 5, 0, 0}, {0, 6, 7, 1}}};

int64_t count(int source, int column) { return kTable[source][column]; }

// I14: what every sender finds for its first row must be what the receiver finds.
TEST(FirstRow, IsTheRowsOfEarlierSources) {
  EXPECT_EQ(first_row(count, 0, 0), 0);
  EXPECT_EQ(first_row(count, 0, 1), 1);
  EXPECT_EQ(first_row(count, 0, 2), 5);
  EXPECT_EQ(first_row(count, 1, 2), 5);
  EXPECT_EQ(first_row(count, 2, 1), 2);
}

TEST(FirstRow, GroupsHoldTheRowsOfAllSources) {
  EXPECT_EQ(group_rows(count, 3, 0), 5);
  EXPECT_EQ(group_rows(count, 3, 1), 11);
  EXPECT_EQ(group_rows(count, 3, 3), 4);
}

TEST(Groups, AreRoundedUpToTheAlignment) {
  const Groups groups{.layout = Layout::expert_major, .alignment = 4};
  EXPECT_EQ(groups.next(0, 0), 0);
  EXPECT_EQ(groups.next(8, 1), 12);
  EXPECT_EQ(groups.next(8, 4), 12);
  EXPECT_EQ(groups.next(8, 5), 16);
}

// A slab's groups have one size, so a row never moves when the counts do.
TEST(Groups, OfASlabAreTheSameForAnyCount) {
  const Groups groups{.layout = Layout::slab, .alignment = 4, .slab_rows = 24};
  EXPECT_EQ(groups.next(0, 0), 24);
  EXPECT_EQ(groups.next(24, 23), 48);
}

// Past 2^31 rows nothing wraps.
TEST(FirstRow, AddsIn64Bits) {
  const auto many = [](int, int) { return int64_t{2'000'000'000}; };
  EXPECT_EQ(first_row(many, 0, 3), 6'000'000'000);
}

}  // namespace
}  // namespace heddle
