#include "layout/words.hpp"

#include <gtest/gtest.h>

#include "layout/window.hpp"

namespace heddle {
namespace {

Shape dispatch_of(int hidden, int tokens, int topk, int experts) {
  return {.layout = Layout::slab, .quantise = Quantise::fp8, .dtype = DType::bf16, .wire = DType::e4m3, .payload_bytes = hidden,
          .scale_words = hidden / 128, .topk = topk, .experts = experts, .max_tokens = tokens};
}

Shape combine_of(int hidden, int tokens, int topk, int experts, Weights weights) {
  return {.kind = Kind::combine, .layout = Layout::slab, .weights = weights, .dtype = DType::bf16, .wire = DType::bf16,
          .payload_bytes = 2 * hidden, .topk = topk, .experts = experts, .max_tokens = tokens};
}

TEST(Words, ARouteComesBackFromItsBits) {
  for (const WordRoute route : {WordRoute{0, -1, -1}, WordRoute{1023, 2045, 1023}, WordRoute{61, 0, 0}, WordRoute{7, 255, -1}}) {
    const WordRoute back = WordRoute::of(route.packed());
    EXPECT_EQ(back.token, route.token);
    EXPECT_EQ(back.expert, route.expert);
    EXPECT_EQ(back.ordinal, route.ordinal);
  }
}

// Tagged words are never cleared. A row of another shape there would never be empty.
TEST(Words, NoShapesTaggedWordsLieWhereAnothersRowsDo) {
  const Window window(4, int64_t{256} << 20, true);
  const int64_t bytes = window.word_bytes();
  int fitting = 0;
  for (const int tokens : {1, 61, 128, 1024}) {
    for (const int topk : {1, 8, 32}) {
      for (const int hidden : {16, 512, 528, 7168}) {
        for (const Shape& shape : {dispatch_of(hidden, tokens, topk, 256), combine_of(hidden, tokens, topk, 256, Weights::late),
                                   combine_of(hidden, tokens, topk, 256, Weights::at_owner)}) {
          if (!fits_words(shape, 4, bytes)) continue;
          ++fitting;
          const WordRegion region = WordRegion::of(shape, 4, bytes);
          EXPECT_LE(region.tagged_end, WordRegion::rows_at(bytes));
          EXPECT_EQ(region.rows, WordRegion::rows_at(bytes));
          EXPECT_LE(region.end, bytes);
          EXPECT_EQ(region.rows % kWordBytes, 0);
        }
      }
    }
  }
  EXPECT_GT(fitting, 100);
}

TEST(Words, PartsMakeARow) {
  for (const int hidden : {16, 496, 512, 528, 1024, 1296, 7168}) {
    for (const Shape& shape : {dispatch_of(hidden, 8, 2, 8), combine_of(hidden, 8, 2, 8, Weights::none)}) {
      const WordRegion region = WordRegion::of(shape, 2, int64_t{8} << 20);
      int payload = 0;
      for (int part = 0; part < region.parts; ++part) payload += region.payload_words(part);
      EXPECT_EQ(payload * kWordBytes, shape.payload_bytes) << hidden;
      EXPECT_EQ(region.row_words - payload, shape.kind == Kind::dispatch ? region.parts : 0);
    }
  }
}

TEST(Words, OnlyCallsThatAllRanksKnowToFit) {
  const int64_t bytes = int64_t{8} << 20;
  EXPECT_TRUE(fits_words(dispatch_of(7168, 128, 8, 256), 2, bytes));
  EXPECT_TRUE(fits_words(combine_of(7168, 128, 8, 256, Weights::late), 2, bytes));
  EXPECT_FALSE(fits_words(dispatch_of(7168, 128, 8, 256), 2, 0));
  EXPECT_FALSE(fits_words(dispatch_of(7168, 1025, 8, 256), 2, int64_t{1} << 30));
  EXPECT_FALSE(fits_words(dispatch_of(7168, 0, 8, 256), 2, bytes)) << "no limit of tokens";
  EXPECT_FALSE(fits_words(dispatch_of(7176, 128, 8, 256), 2, bytes)) << "half a word";
  EXPECT_FALSE(fits_words(combine_of(7168, 128, 8, 256, Weights::at_source), 2, bytes));
  Shape raw = dispatch_of(7168, 128, 8, 256);
  raw.quantise = Quantise::none;
  EXPECT_FALSE(fits_words(raw, 2, bytes)) << "the caller's scales";
  raw.scale_words = 0;
  EXPECT_TRUE(fits_words(raw, 2, bytes));
  Shape fp4 = dispatch_of(3584, 128, 8, 256);
  fp4.quantise = Quantise::nvfp4;
  EXPECT_FALSE(fits_words(fp4, 2, bytes)) << "four words of scales a part";
  Shape exact = dispatch_of(7168, 128, 8, 256);
  exact.layout = Layout::expert_major;
  EXPECT_FALSE(fits_words(exact, 2, bytes)) << "another rank may ask for the exact size";
  exact.split = true;
  EXPECT_TRUE(fits_words(exact, 2, bytes));
}

// A word region comes on top: ranges must not become smaller by it.
TEST(Words, TakeNothingFromRanges) {
  for (const int ranks : {1, 2, 8, 64}) {
    for (const int64_t bytes : {int64_t{1} << 20, int64_t{64} << 20, int64_t{256} << 20, int64_t{999999999}}) {
      const int64_t with = Window::bytes_with_words(ranks, bytes);
      EXPECT_GE(Window(ranks, with, true).range_bytes(), Window(ranks, bytes).range_bytes());
      EXPECT_LE(Window(ranks, with, true).end(), with);
    }
  }
}

}  // namespace
}  // namespace heddle
