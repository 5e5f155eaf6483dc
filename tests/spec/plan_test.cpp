#include "spec/plan.hpp"

#include "base/error.hpp"
#include "tiny_world.hpp"

namespace heddle::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Plan, SaysWhoGetsWhatInTokenOrder) {
  const Plan plan = spec::plan(two_ranks())[0];  // ids {0,2} {3,-1} {1,0}
  EXPECT_THAT(plan.ids, ElementsAre(0, 2, 3, -1, 1, 0));
  EXPECT_THAT(plan.in_rank, ElementsAre(1, 1, 0, 1, 1, 0));
  EXPECT_THAT(plan.send_offset, ElementsAre(0, 2, 4));
  EXPECT_THAT(plan.send_tokens, ElementsAre(0, 2, 0, 1));
  EXPECT_THAT(plan.pairs_per_expert, ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(plan.ordinal, ElementsAre(0, 0, 0, -1, 0, 1));
}

// Case 25: the pairs count both columns, the rows one, and the second column has no place of its own.
TEST(Plan, CountsARepeatedExpertTwiceAsPairsAndOnceAsRow) {
  const Plan plan = spec::plan(tiny_world(8, 4, {{3, 3, 7, -1, 3, -1, -1, 3}, {}}))[0];
  EXPECT_THAT(plan.pairs_per_expert, ElementsAre(0, 0, 0, 4, 0, 0, 0, 1));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(0, 0, 0, 2, 0, 0, 0, 1));
  EXPECT_THAT(plan.ordinal, ElementsAre(0, -1, 0, -1, 1, -1, -1, -1));
  EXPECT_THAT(plan.send_tokens, ElementsAre(0, 1, 0));
}

TEST(Plan, OfNoTokensIsAllZero) {
  const Plan plan = spec::plan(tiny_world(4, 2, {{}, {0, 1}}))[0];
  EXPECT_THAT(plan.send_offset, ElementsAre(0, 0, 0));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(plan.send_tokens.empty());
}

// A map of ranks says no experts, so there is nothing to count for them.
TEST(Plan, FollowsARankMap) {
  World world = tiny_world(4, 1, {{0, 0}, {0}});
  world.topk = 0;
  for (Batch& batch : world.batches) batch.ids.clear();
  world.batches[0].rank_map = {1, 1, 0, 1};
  world.batches[1].rank_map = {0, 0};
  const std::vector<Plan> plans = spec::plan(world);
  EXPECT_THAT(plans[0].send_offset, ElementsAre(0, 1, 3));
  EXPECT_THAT(plans[0].send_tokens, ElementsAre(0, 0, 1));
  EXPECT_THAT(plans[1].send_offset, ElementsAre(0, 0, 0));
  EXPECT_THAT(plans[0].rows_per_expert, ElementsAre(0, 0, 0, 0));
}

// Five experts on three ranks: 1, 2 and 2. Two on three: the first rank owns none.
TEST(Plan, DealsExpertsUnevenly) {
  const std::vector<Ids> ids(3, Ids{0, 1});
  const World five = tiny_world(5, 2, ids);
  EXPECT_EQ(local_experts(five, 0), 1);
  EXPECT_EQ(local_experts(five, 1), 2);
  EXPECT_EQ(local_experts(five, 2), 2);
  EXPECT_THAT(spec::plan(five)[0].in_rank, ElementsAre(1, 1, 0));
  EXPECT_THAT(spec::plan(tiny_world(2, 2, ids))[0].in_rank, ElementsAre(0, 1, 1));
}

TEST(Plan, NamesTheIdThatIsOutOfRange) {
  for (std::int32_t id : {4, -2}) {
    try {
      spec::plan(tiny_world(4, 2, {{0, 1, 2, id}}));
      FAIL() << "accepted " << id;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_THAT(error.what(), HasSubstr("token 1, column 1 is " + std::to_string(id) + ", legal: -1 to 3"));
    }
  }
}

}  // namespace
}  // namespace heddle::spec
