// Which groups are left out of training, and what a config may write of it.

#include "scheduler/group_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

using testing::HasSubstr;

Group Graded(const std::vector<double>& rewards) {
  Group g;
  for (const double reward : rewards) {
    Sample s{
        .phase = SamplePhase::kReady, .reward = reward, .rewards = {{"exact", reward > 0.5 ? 1.0 : 0.0}}};
    s.enq.response_len = 10 * static_cast<int64_t>(g.samples.size() + 1);
    g.samples.push_back(s);
  }
  return g;
}

std::string Left(const Group& g, const std::vector<std::string>& conditions, bool equal = false) {
  BatchOptions options{.drops_equal_rewards = equal};
  for (const std::string& text : conditions) options.keep_groups.push_back(*ParseGroupCondition(text));
  return WhyLeftOut(g, options);
}

TEST(GroupFilterTest, EachConditionIsOfTheSamplesThatAreLeft) {
  Group g = Graded({0.2, 0.8, 0.5});
  EXPECT_EQ(Left(g, {}), "");
  EXPECT_EQ(Left(g, {"reward >= 0.5", "reward <= 0.5", "reward_std >= 0.244", "reward_std <= 0.245"}), "");
  EXPECT_THAT(Left(g, {"reward >= 0.6"}), HasSubstr("reward 0.500000 below 0.6"));
  EXPECT_THAT(Left(g, {"reward<=0.4"}), HasSubstr("reward 0.500000 above 0.4"));
  EXPECT_EQ(Left(g, {"response_tokens <= 20", "response_tokens >= 20"}), "");
  EXPECT_THAT(Left(g, {"exact >= 0.4"}), HasSubstr("exact 0.333333 below"));
  EXPECT_EQ(Left(g, {"nobody_gives_it >= 1"}), "");
  g.samples[0].phase = SamplePhase::kDropped;
  EXPECT_EQ(Left(g, {"reward >= 0.6", "response_tokens >= 25", "exact >= 0.5"}), "");
}

TEST(GroupFilterTest, EqualRewardsAreOfTwoSamplesOrMore) {
  EXPECT_EQ(Left(Graded({1, 1}), {}, true), "equal rewards");
  EXPECT_EQ(Left(Graded({1, 1}), {}, false), "");
  EXPECT_EQ(Left(Graded({1}), {}, true), "");
}

TEST(GroupFilterTest, WhatIsNoConditionIsRefused) {
  for (const char* text : {"", "reward", "reward > 1", "reward >= ", "reward >= x", "reward >= 1 2", ">= 1",
                           "reward >= nan", "reward >= inf", "reward = 1"})
    EXPECT_EQ(ParseGroupCondition(text).status().code(), StatusCode::kInvalidArgument) << text;
  const auto read = ParseGroupCondition(" a name  <=  -1e-3 ");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->value, "a name");
  EXPECT_FALSE(read->at_least);
  EXPECT_EQ(read->bound, -1e-3);
}

// The modelled cluster's rewards are 0 or 1.
TEST(GroupFilterTest, OthersTakeThePlacesOfGroupsThatAreLeftOut) {
  SimOptions o{.controller = SmallJob(PlacementKind::kColocated), .seed = 3, .faults = {}};
  o.controller.batch.keep_groups = {{.value = "reward", .at_least = true, .bound = 0.3},
                                    {.value = "reward", .at_least = false, .bound = 0.8}};
  o.equal_rewards = 0.3;
  SimCluster cluster(o);
  const SimResult r = cluster.Run();
  ASSERT_EQ(r.code, 0) << r.why;
  int64_t filtered = 0;
  for (const command::StepReport& step : cluster.reports()) filtered += step.filtered;
  EXPECT_GT(filtered, 0);
}

TEST(GroupFilterTest, ARunInWhichNoGroupPassesEndsWithTheReason) {
  SimOptions o{.controller = SmallJob(PlacementKind::kColocated), .seed = 3, .faults = {}};
  o.controller.batch.keep_groups = {{.value = "reward", .at_least = true, .bound = 2}};
  o.controller.batch.filter_rounds = 3;
  SimCluster cluster(o);
  const SimResult r = cluster.Run();
  EXPECT_NE(r.code, 0);
  EXPECT_THAT(r.why, HasSubstr("groups in a row were left out"));
  EXPECT_THAT(r.why, HasSubstr("below 2.0"));
}

}  // namespace
}  // namespace tidepool::scheduler
