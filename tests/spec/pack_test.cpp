// Narrow results, by numbers worked out by hand.
#include "spec/pack.hpp"

#include <gmock/gmock.h>

#include <bit>
#include <cmath>

#include "spec/combine.hpp"
#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using ::testing::ElementsAre;

TEST(Pack, Fp8HasTheLargestAt448) {
  const PackedRow packed = pack(Pack::fp8, {7.0f, -3.5f, 0.0f});
  EXPECT_THAT(packed.codes, ElementsAre(0x7E, 0xF6, 0));
  EXPECT_THAT(packed.marks, ElementsAre(std::bit_cast<std::uint32_t>(7.0f * (1.0f / 448.0f))));
  EXPECT_THAT(unpack(Pack::fp8, packed), ElementsAre(7.0f, -3.5f, 0.0f));
}

// 1 is 0x3F800000, 4 is 0x40800000: 2^24 apart, so a step has 1 + 2^24 / 4080 = 4113 units of 8.
TEST(Pack, Logfmt10CountsStepsFromTheSmallest) {
  const PackedRow packed = pack(Pack::logfmt10, {1.0f, -1.0f, 4.0f, 2.0f, 0.0f});
  EXPECT_THAT(packed.marks, ElementsAre(0x3F80 + 4113 * 65536));
  EXPECT_THAT(packed.codes, ElementsAre(1, 513, 511, 256, 0));
  EXPECT_FLOAT_EQ(unpack(Pack::logfmt10, packed)[2], std::bit_cast<float>(0x3F800000u + 510 * 8 * 4113));
  EXPECT_EQ(unpack(Pack::logfmt10, packed)[1], -1.0f);
}

TEST(Pack, Logfmt10ReachesSixteenOctaves) {
  const std::vector<float> back = unpack(Pack::logfmt10, pack(Pack::logfmt10, {1.0f, 0x1p-16f, 0x1p-17f, 0x1p-18f}));
  EXPECT_NEAR(back[0], 1.0f, 0.017f);
  EXPECT_EQ(back[1], 0x1p-16f);
  EXPECT_EQ(back[2], 0x1p-16f);  // as near as zero
  EXPECT_EQ(back[3], 0.0f);
}

TEST(Pack, AShortBlockAtTheEndIsItsOwn) {
  std::vector<float> row(129, 1.0f);
  row[128] = 1024.0f;
  EXPECT_EQ(pack(Pack::fp8, row).marks.size(), 2u);
  EXPECT_EQ(unpack(Pack::fp8, pack(Pack::fp8, row))[128], 1024.0f);
}

}  // namespace
}  // namespace heddle::spec
