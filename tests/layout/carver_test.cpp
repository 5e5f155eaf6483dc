#include "layout/carver.hpp"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(Carver, PartsAreAlignedAndTheEndIsTheTotal) {
  Carver carver(3);
  EXPECT_EQ(carver.take(10), kCellAlign);
  EXPECT_EQ(carver.take(6, 4), kCellAlign + 12);
  EXPECT_EQ(carver.take(0, 16), kCellAlign + 32);
  EXPECT_EQ(carver.end(), kCellAlign + 32);
}

static_assert(Carver(0).take(5) == 0, "usable while compiling");

}  // namespace
}  // namespace heddle
