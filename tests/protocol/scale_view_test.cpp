// Where scales lie is what kernels that multiply rows expect, so it is written down here a second time, by bytes.
#include "protocol/scale_view.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace heddle::testing {
namespace {

constexpr int64_t kExperts = 3, kGroup = 300, kWords = 5;

int64_t place_of(const ScaleView& view, int64_t row, int64_t word) {
  return view.row(row) - view.words + word * view.col_stride;
}

TEST(ScaleView, TilesAreThoseOfGroupedGemms) {
  std::vector<uint32_t> words(static_cast<size_t>(kExperts * 384 * kWords));
  ScaleView view = ScaleView::by_tiles(kWords, kGroup);
  view.words = words.data();
  const int64_t tiles = 3, bytes_of_tiles = tiles * kWords * 512;
  for (int64_t expert = 0; expert < kExperts; ++expert) {
    for (int64_t t = 0; t < kGroup; ++t) {
      for (int64_t block = 0; block < 4 * kWords; ++block) {
        const int64_t byte = expert * bytes_of_tiles + t / 128 * kWords * 512 + block / 4 * 512 + t % 32 * 16 +
                             t % 128 / 32 * 4 + block % 4;
        ASSERT_EQ(4 * place_of(view, expert * kGroup + t, block / 4) + block % 4, byte) << expert << ", " << t;
      }
    }
  }
}

TEST(ScaleView, ColumnsLieTogetherInEachGroup) {
  std::vector<uint32_t> words(static_cast<size_t>(kExperts * kGroup * kWords));
  ScaleView view = ScaleView::by_columns(kWords, kGroup);
  view.words = words.data();
  EXPECT_EQ(place_of(view, 0, 1), kGroup);
  EXPECT_EQ(place_of(view, kGroup + 7, 4), kGroup * kWords + 4 * kGroup + 7);
}

TEST(ScaleView, RowsAreDense) {
  std::vector<uint32_t> words(static_cast<size_t>(10 * kWords));
  ScaleView view = ScaleView::by_rows(kWords);
  view.words = words.data();
  EXPECT_EQ(place_of(view, 9, 4), 9 * kWords + 4);
}

}  // namespace
}  // namespace heddle::testing
