#include "spec/dispatch.hpp"

#include "base/error.hpp"
#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::int64_t range(std::int64_t count, std::int64_t begin) { return begin << 32 | count; }

TEST(Dispatch, TokenMajorOrdersBySourceThenToken) {
  const auto received = dispatch(two_ranks(), {.alignment = 4});
  EXPECT_THAT(numbers(received[0].x), ElementsAre(0, 2, 12));
  EXPECT_THAT(received[0].ids, ElementsAre(0, -1, 1, 0, 0, -1));
  EXPECT_THAT(received[0].weights, ElementsAre(1, 0, 4, 5, 8, 0));
  EXPECT_THAT(received[0].counts, ElementsAre(3, 1));
  EXPECT_THAT(received[0].aligned_counts, ElementsAre(4, 4));
  EXPECT_THAT(received[0].recv_offset, ElementsAre(0, 2, 3));
  EXPECT_THAT(received[0].recv_token, ElementsAre(0, 2, 2));
  EXPECT_THAT(received[0].source_tokens, ElementsAre(3, 3));
  EXPECT_THAT(received[0].status, Each(Status::arrived));
  EXPECT_THAT(numbers(received[1].x), ElementsAre(0, 1, 10, 12));
  EXPECT_THAT(received[1].ids, ElementsAre(-1, 0, 1, -1, 0, 1, -1, 1));
  EXPECT_THAT(received[1].weights, ElementsAre(0, 2, 3, 0, 6, 7, 0, 9));
  EXPECT_THAT(received[1].counts, ElementsAre(2, 3));
}

TEST(Dispatch, ExpertMajorAlignsEachGroup) {
  const Received received = dispatch(two_ranks(), {.layout = Layout::expert_major, .alignment = 4})[0];
  EXPECT_EQ(received.rows, 8);
  EXPECT_THAT(received.counts, ElementsAre(3, 1));
  EXPECT_THAT(received.aligned_counts, ElementsAre(4, 4));
  EXPECT_THAT(received.expert_offsets, ElementsAre(0, 4, 8));
  EXPECT_THAT(received.row_source, ElementsAre(0, 0, 1, -1, 0, -1, -1, -1));
  EXPECT_THAT(received.row_token, ElementsAre(0, 2, 2, -1, 2, -1, -1, -1));
  EXPECT_THAT(received.row_weights, ElementsAre(1, 5, 8, 0, 4, 0, 0, 0));
  EXPECT_THAT(received.row_of, ElementsAre(0, -1, 4, 1, 2, -1));
  EXPECT_THAT(received.recv_weights, ElementsAre(1, 0, 4, 5, 8, 0));
  EXPECT_THAT(numbers(received.x), ElementsAre(0, 2, 12, 0, 2, 0, 0, 0));
  EXPECT_TRUE(received.ids.empty());
}

TEST(Dispatch, SlabGivesEachExpertRoomForAll) {
  const Received received = dispatch(two_ranks(), {.layout = Layout::slab, .max_tokens = 3})[0];
  EXPECT_EQ(received.rows, 12);
  EXPECT_THAT(received.counts, ElementsAre(3, 1));
  EXPECT_THAT(received.row_token, ElementsAre(0, 2, 2, -1, -1, -1, 2, -1, -1, -1, -1, -1));
  EXPECT_THAT(received.layout_range, ElementsAre(range(2, 0), range(1, 2), range(1, 0), range(0, 1)));
  EXPECT_THAT(received.row_of, ElementsAre(0, -1, 6, 1, 2, -1));
  EXPECT_THAT(numbers(received.x), ElementsAre(0, 2, 12, 0, 0, 0, 2, 0, 0, 0, 0, 0));
}

// Case 25: token-major keeps both columns and counts both; the others hold one row with the weights added.
TEST(Dispatch, RepeatedExpertIsOneRowOrTwoColumns) {
  const World world = tiny_world(8, 4, {{3, 3, 7, -1}, {}}, {{1, 2, 4, kNan}, {}});
  const Received tokens = dispatch(world, {})[0];
  EXPECT_THAT(tokens.ids, ElementsAre(3, 3, -1, -1));
  EXPECT_THAT(tokens.weights, ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(tokens.counts, ElementsAre(0, 0, 0, 2));
  for (Layout layout : {Layout::expert_major, Layout::slab}) {
    const Received rows = dispatch(world, {.layout = layout, .max_tokens = 1})[0];
    EXPECT_THAT(rows.counts, ElementsAre(0, 0, 0, 1));
    const std::int32_t row = layout == Layout::slab ? 6 : 0;
    EXPECT_THAT(rows.row_of, ElementsAre(row, -1, -1, -1));
    EXPECT_EQ(rows.row_weights[row], 3);
    EXPECT_THAT(rows.recv_weights, ElementsAre(1, 2, 0, 0));
  }
}

// Case 5: the real count stands beside outputs of a fixed size, and what lies behind it chooses nothing.
TEST(Dispatch, FixedSizePadsBehindTheRealRows) {
  const Received tokens = dispatch(two_ranks(), {.max_tokens = 3, .fixed_size = true})[0];
  EXPECT_EQ(tokens.rows, 6);
  EXPECT_THAT(tokens.ids, ElementsAre(0, -1, 1, 0, 0, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(tokens.weights, ElementsAre(1, 0, 4, 5, 8, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(tokens.recv_offset.back(), 3);
  EXPECT_EQ(tokens.num_dropped, 0);
  // round_up(2 ranks * 3 tokens * min(2 columns, 2 experts) + 3 * 2 experts, 4) = 20
  const DispatchOptions experts{.layout = Layout::expert_major, .alignment = 4, .max_tokens = 3, .fixed_size = true};
  EXPECT_EQ(dispatch(two_ranks(), experts)[0].rows, 20);
  EXPECT_THAT(dispatch(two_ranks(), experts)[0].expert_offsets, ElementsAre(0, 4, 8));
}

TEST(Dispatch, RowsBeyondTheCapacityAreDroppedAndCounted) {
  const Received tokens = dispatch(two_ranks(), {.capacity = 2})[0];
  EXPECT_THAT(numbers(tokens.x), ElementsAre(0, 2));
  EXPECT_EQ(tokens.num_dropped, 1);
  EXPECT_THAT(tokens.counts, ElementsAre(2, 1)) << "counts and ids must agree";
  EXPECT_EQ(tokens.recv_offset.back(), 3) << "the handle knows of the dropped token";
  EXPECT_EQ(tokens.recv_token.size(), 3u);
}

// The gap of expert 0 takes room like a row does, so expert 1's row 4 is the one that falls out.
TEST(Dispatch, AlignmentGapsTakeCapacity) {
  const DispatchOptions options{.layout = Layout::expert_major, .alignment = 4, .capacity = 4};
  const Received received = dispatch(two_ranks(), options)[0];
  EXPECT_EQ(received.num_dropped, 1);
  EXPECT_THAT(received.counts, ElementsAre(3, 0));
  EXPECT_THAT(received.expert_offsets, ElementsAre(0, 4, 4));
  EXPECT_THAT(received.row_of, ElementsAre(0, -1, -1, 1, 2, -1));
}

// I10: it does not matter which end holds the mask, and a rank always has itself.
TEST(Dispatch, MaskClosesThePairBothWays) {
  for (const Mask& mask : {Mask{{false, true}, {false, false}}, Mask{{false, false}, {true, false}}}) {
    const auto received = dispatch(two_ranks(), {}, mask);
    EXPECT_THAT(numbers(received[0].x), ElementsAre(0, 2));
    EXPECT_THAT(received[0].status, ElementsAre(Status::arrived, Status::masked));
    EXPECT_THAT(received[0].source_tokens, ElementsAre(3, 0));
    EXPECT_THAT(numbers(received[1].x), ElementsAre(10, 12));
    EXPECT_THAT(received[1].status, ElementsAre(Status::masked, Status::arrived));
  }
}

// Cases 1 and 4.
TEST(Dispatch, NothingToSendIsStillAnAnswer) {
  for (const World& world : {tiny_world(4, 2, {{}, {}}), tiny_world(4, 2, {{-1, -1}, {-1, -1}})}) {
    for (Layout layout : {Layout::token_major, Layout::expert_major, Layout::slab}) {
      for (const Received& received : dispatch(world, {.layout = layout, .alignment = 8, .max_tokens = 1})) {
        EXPECT_THAT(received.counts, ElementsAre(0, 0));
        EXPECT_THAT(received.recv_offset, ElementsAre(0, 0, 0));
        EXPECT_EQ(received.rows, layout == Layout::slab ? 4 : 0);
        EXPECT_THAT(received.row_source, Each(-1));
      }
    }
  }
}

// A rank that owns no expert receives nothing; ids count from each owner's first expert.
TEST(Dispatch, UnevenExperts) {
  const auto received = dispatch(tiny_world(2, 2, {{0, 1}, {1, -1}, {0, 0}}), {});
  EXPECT_EQ(received[0].rows, 0);
  EXPECT_TRUE(received[0].counts.empty());
  EXPECT_THAT(numbers(received[1].x), ElementsAre(0, 20));
  EXPECT_THAT(received[1].ids, ElementsAre(0, -1, 0, 0));
  EXPECT_THAT(numbers(received[2].x), ElementsAre(0, 10));
  EXPECT_THAT(received[2].ids, ElementsAre(-1, 0, 0, -1));
}

TEST(Dispatch, ScalesTravelWithTheirRow) {
  World world = tiny_world(2, 1, {{1, 0}, {0, 0}});
  world.scale_words = 2;
  world.batches[0].scales = {1, 2, 3, 4};
  world.batches[1].scales = {5, 6, 7, 8};
  const auto received = dispatch(world, {.layout = Layout::expert_major});
  EXPECT_THAT(received[0].scales, ElementsAre(3, 4, 5, 6, 7, 8));
  EXPECT_THAT(received[1].scales, ElementsAre(1, 2));
}

TEST(Dispatch, RankMapCarriesNoIds) {
  World world = tiny_world(4, 1, {{0, 0}, {0}});
  world.topk = 0;
  for (Batch& batch : world.batches) batch.ids.clear();
  world.batches[0].rank_map = {1, 1, 0, 1};
  world.batches[1].rank_map = {1, 0};
  const auto received = dispatch(world, {});
  EXPECT_THAT(numbers(received[0].x), ElementsAre(0, 10));
  EXPECT_THAT(numbers(received[1].x), ElementsAre(0, 1));
  EXPECT_TRUE(received[0].ids.empty());
  EXPECT_THROW(dispatch(world, {.layout = Layout::expert_major}), Error);
}

TEST(Dispatch, RefusesOptionsThatDoNotFit) {
  EXPECT_THROW(dispatch(two_ranks(), {.max_tokens = 2}), Error);
  EXPECT_THROW(dispatch(two_ranks(), {.layout = Layout::slab}), Error);
  EXPECT_THROW(dispatch(two_ranks(), {.layout = Layout::slab, .max_tokens = 3, .capacity = 4}), Error);
  EXPECT_THROW(dispatch(two_ranks(), {.alignment = 0}), Error);
  EXPECT_THROW(dispatch(two_ranks(), {.quantise = Quantise::fp8}), Error) << "rows of one byte are not bf16";
}

}  // namespace
}  // namespace heddle::spec
