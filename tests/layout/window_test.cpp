#include "layout/window.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "layout/golden.hpp"

namespace heddle {
namespace {

struct Part {
  int64_t first;
  int64_t end;
};

std::vector<Part> parts_of(const Window& window, int ranks) {
  std::vector<Part> parts;
  for (int source = 0; source < ranks; ++source) {
    parts.push_back({window.cells(source), window.cells(source) + int64_t{sizeof(Cells)}});
    for (const Kind kind : {Kind::dispatch, Kind::combine}) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t at = window.range(kind, lane, source);
        parts.push_back({at, at + window.range_bytes()});
        const int64_t tags = window.tags(kind, lane, source);
        parts.push_back({tags, tags + window.num_tags() * int64_t{sizeof(uint64_t)}});
      }
    }
  }
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.first < b.first; });
  return parts;
}

// One remote writer a byte: were two ranges to share one, two shapes could overwrite each other's rows.
TEST(Window, PartsNeverOverlapAndFillTheWindow) {
  for (const int ranks : {1, 2, 3, 7, 8, 64, kMaxRanks}) {
    for (const int64_t bytes : {window_bytes_for(ranks, 1), window_bytes_for(ranks, 4096), int64_t{100000000}}) {
      const Window window(ranks, bytes);
      const auto parts = parts_of(window, ranks);
      for (size_t i = 1; i < parts.size(); ++i) EXPECT_LE(parts[i - 1].end, parts[i].first) << ranks << " ranks";
      EXPECT_EQ(parts.back().end, window.end());
      EXPECT_LE(window.end(), bytes);
      EXPECT_LT(bytes - window.end(), int64_t{kKinds} * kLanes * ranks * kCellAlign + kCellAlign) << "room is lost";
      for (const Part& part : parts) EXPECT_EQ(part.first % kCellAlign, 0);
    }
  }
}

TEST(Window, BytesForARangeAreEnoughAndTheLeast) {
  for (const int ranks : {1, 2, 5, 8}) {
    for (const int64_t range : {int64_t{1}, int64_t{128}, int64_t{1000}, int64_t{5} << 30}) {
      const int64_t bytes = window_bytes_for(ranks, range);
      EXPECT_GE(Window(ranks, bytes).range_bytes(), range);
      EXPECT_LT(Window(ranks, bytes - 1).range_bytes(), range);
    }
  }
}

// A piece of a row has at least 1 KiB, or is a row: there is a tag for each.
TEST(Window, ATagForEachKiBOfARange) {
  for (const int64_t range : {int64_t{128}, int64_t{1000}, int64_t{100000}, int64_t{1} << 30}) {
    const Window window(3, window_bytes_for(3, range));
    EXPECT_GE(window.num_tags() * 1024, window.range_bytes());
  }
}

// A slot is carved behind the header and the table, and the last one ends inside the range.
TEST(Range, SlotsLieBehindTheTableAndEndInside) {
  for (const int64_t bytes : {512, 1000, 4096, 65536}) {
    for (const int64_t table : {0, 4, 128, 500}) {
      for (const int64_t stride : {16, 48, 336}) {
        const Range range = Range::of(bytes, table, stride);
        EXPECT_GE(range.table, int64_t{sizeof(Header)});
        EXPECT_GE(range.slots, range.table + table);
        EXPECT_TRUE(range.count == 0 || range.slot(range.count) <= bytes);
        EXPECT_GT(range.slot(range.count + 1), bytes) << "one more slot would fit";
      }
    }
  }
}

TEST(Range, WithoutRoomItHasNoSlotsAndIsNotNegative) {
  EXPECT_EQ(Range::of(100, 4096, 16).count, 0);
  EXPECT_EQ(Range::of(sizeof(Header), 0, 16).count, 0);
}

// A slot of no bytes (nothing travels beside a row in place) fits any number of times.
TEST(Range, SlotsOfNoBytesNeverRunOut) { EXPECT_EQ(Range::of(1024, 0, 0).count, INT32_MAX); }

TEST(Range, ManySlotsAreCappedNotWrapped) { EXPECT_EQ(Range::of(int64_t{1} << 40, 0, 16).count, INT32_MAX); }

TEST(Rounds, AreAtLeastOneAndCoverAllRows) {
  EXPECT_EQ(rounds_of(0, 0), 1);
  EXPECT_EQ(rounds_of(0, 3), 1);
  for (int rows = 1; rows < 20; ++rows) {
    for (int slots = 1; slots < 7; ++slots) {
      EXPECT_GE(rounds_of(rows, slots) * slots, rows);
      EXPECT_LT((rounds_of(rows, slots) - 1) * slots, rows);
    }
  }
}

TEST(RankSet, HoldsAnyRankUpToTheLast) {
  RankSet set;
  EXPECT_TRUE(set.empty());
  for (const int rank : {0, 1, 63, 64, kMaxRanks - 1}) {
    EXPECT_FALSE(set.has(rank));
    set.add(rank);
    EXPECT_TRUE(set.has(rank));
  }
  EXPECT_FALSE(set.has(2));
  EXPECT_FALSE(set.empty());
}

}  // namespace
}  // namespace heddle
