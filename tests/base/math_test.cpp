#include "base/math.hpp"

#include <gtest/gtest.h>

namespace heddle {

TEST(Math, RoundsUpBeyond32Bits) {
  EXPECT_EQ(ceil_div(0, 8), 0);
  EXPECT_EQ(ceil_div(1, 8), 1);
  EXPECT_EQ(ceil_div(8, 8), 1);
  EXPECT_EQ(round_up(300'000LL * 7168 + 1, 128), 300'000LL * 7168 + 128);
  static_assert(round_up(17, 16) == 32);
}

}  // namespace heddle
