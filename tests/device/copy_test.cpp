#include "device/copy.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/coop.hpp"

namespace heddle {
namespace {

TEST(Copy, MovesAndFillsExactlyTheBytes) {
  std::vector<uint8_t> from(300);
  std::iota(from.begin(), from.end(), 1);
  for (size_t skew : {0, 1, 4, 16}) {
    for (size_t bytes : {0, 1, 15, 16, 17, 250}) {
      std::vector<uint8_t> to(300, 0xEE);
      copy_bytes(Solo{}, to.data() + skew, from.data() + 3, bytes);
      for (size_t i = 0; i < to.size(); ++i) {
        ASSERT_EQ(to[i], i >= skew && i < skew + bytes ? from[i - skew + 3] : 0xEE) << skew << ' ' << bytes << ' ' << i;
      }
      zero_bytes(Solo{}, to.data() + skew, bytes);
      fill_bytes(Solo{}, to.data() + skew, 0xEE, bytes / 2);
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(to[skew + i], i < bytes / 2 ? 0xEE : 0);
    }
  }
}

// A token without payload has null pointers, which memcpy must not see.
TEST(Copy, NothingToOrFromNowhere) {
  copy_bytes(Solo{}, nullptr, nullptr, 0);
  zero_bytes(Solo{}, nullptr, 0);
  copy_strided_words(Solo{}, {nullptr, 1}, {nullptr, 1}, 0);
}

// Scales come column-major and leave row-major, or the other way.
TEST(Copy, StridedWordsTransposeATable) {
  constexpr int kRows = 3, kColumns = 5;
  std::vector<uint32_t> rows(kRows * kColumns), columns(kRows * kColumns), back(kRows * kColumns);
  std::iota(rows.begin(), rows.end(), 100u);
  for (int row = 0; row < kRows; ++row) {
    copy_strided_words(Solo{}, {columns.data() + row, kRows}, {rows.data() + row * kColumns, 1}, kColumns);
  }
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      EXPECT_EQ(columns[column * kRows + row], rows[row * kColumns + column]);
    }
    copy_strided_words(Solo{}, {back.data() + row * kColumns, 1}, {columns.data() + row, kRows}, kColumns);
  }
  EXPECT_EQ(back, rows);
}

}  // namespace
}  // namespace heddle
