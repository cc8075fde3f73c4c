#include "core/train/shaping.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/train/step_plan.h"

namespace tidepool::train {
namespace {

Row Sample(int64_t gid, double reward, std::vector<int32_t> response, bool truncated = false) {
  Row r;
  r.gid = GroupId{gid};
  r.prompt = {1};
  r.response = std::move(response);
  r.logprobs.assign(r.response.size(), -1.0F);
  r.reward = reward;
  r.truncated = truncated;
  return r;
}

TEST(ShapingTest, NothingIsDoneUnlessAsked) {
  algorithms::RunningMoments moments;
  const std::vector<Row> rows = {Sample(0, 1, {1, 1, 1, 1}, true), Sample(0, -3, {2})};
  EXPECT_EQ(ShapedRewards({}, rows, {}, moments), (std::vector<double>{1, -3}));
  EXPECT_EQ(moments.count(), 0);
}

TEST(ShapingTest, EachPartByHand) {
  algorithms::RunningMoments moments;
  const std::vector<Row> rows = {Sample(0, 1, {1, 1, 1, 1}, true), Sample(0, 0, {2, 3}),
                                 Sample(1, 1, {4, 5, 6})};
  const auto shaped = [&](const ShapingOptions& o) {
    return ShapedRewards(o, rows, RepetitionPenalties(o, rows), moments);
  };
  EXPECT_EQ(shaped({{.truncated = 0.5}}), (std::vector<double>{0.5, 0, 1}));
  EXPECT_EQ(shaped({{.truncated = -2.0}}), (std::vector<double>{-2, 0, 1}));
  // Limit 4, the last 2 tokens: 4 tokens cost 1, 3 cost half of it.
  EXPECT_EQ(shaped({{}, /*max_new_tokens=*/4, /*overlong_buffer=*/2, /*overlong_factor=*/1}),
            (std::vector<double>{0, 0, 0.5}));
  // Two-grams of (1, 1, 1, 1): one of three is unique.
  EXPECT_NEAR(shaped({{.repetition_penalty = 0.3, .repetition_ngram = 2}})[0], 1 - 0.3 * 2 / 3, 1e-12);
  EXPECT_EQ(shaped({{.repetition_penalty = 0.3, .repetition_ngram = 2}})[2], 1);
  // Group 0 has a mean of 0.5: 0.5 * 0.4 * 4/4 and 2/4 are taken off, the group's mean stays.
  const std::vector<double> length = shaped({{.length_penalty = 0.4}});
  EXPECT_NEAR(length[0] + length[1], 1, 1e-12);
  EXPECT_NEAR(length[0] - length[1], 1 - 0.5 * 0.4 * (1 - 0.5), 1e-12);
  EXPECT_EQ(shaped({{.bias = 1, .scale = 100}}), (std::vector<double>{20, 20, 20}));
  const std::vector<double> normal = shaped({{.mean = Scope::kBatch, .deviation = Scope::kBatch}});
  EXPECT_NEAR(normal[0] + normal[1] + normal[2], 0, 1e-9);
}

TEST(ShapingTest, RunningMomentsRememberEarlierSteps) {
  algorithms::RunningMoments moments;
  const ShapingOptions o{{.running = true}};
  (void)ShapedRewards(o, std::vector<Row>{Sample(0, 0, {1}), Sample(0, 2, {1})}, {}, moments);
  const std::vector<double> second =
      ShapedRewards(o, std::vector<Row>{Sample(0, 4, {1}), Sample(0, 6, {1})}, {}, moments);
  EXPECT_EQ(moments.count(), 4);
  EXPECT_EQ(moments.mean(), 3);
  const double deviation = std::sqrt((9 + 1 + 1 + 9) / 3.0);
  EXPECT_NEAR(second[1], 3 / (deviation + 1e-5), 1e-9);
}

TEST(StepPlanTest, TheGreedySampleIsABaselineAndIsNotTrained) {
  AlgorithmConfig c;
  c.name = "remax";
  const algorithms::ResolvedAlgorithm a = algorithms::Resolve(c, 8).value();
  Batch b;
  for (int32_t k = 0; k < 3; ++k) {
    b.rows.push_back(Sample(0, k == 0 ? 0.25 : k, {1, 2}));
    b.rows.back().tid = {0, 0, k};
  }
  StepPlan plan = PlanRows(b, a, /*policy=*/true);
  plan.scores = {0.25, 1, 2};
  ASSERT_EQ(FillAdvantages(b, a, {}, 0, plan), OkStatus());
  EXPECT_EQ(plan.cells.mask, (std::vector<uint8_t>{0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(plan.advantages, (std::vector<double>{0, 0, 0.75, 0.75, 1.75, 1.75}));
}

TEST(StepPlanTest, KlInTheRewardReachesEveryEstimator) {
  for (const char* name : {"grpo", "rloo", "reinforce_pp"}) {
    AlgorithmConfig c;
    c.name = name;
    const algorithms::ResolvedAlgorithm a = algorithms::Resolve(c, 8).value();
    Batch b;
    for (int32_t k = 0; k < 3; ++k) b.rows.push_back(Sample(0, k, {1, 2}));
    StepPlan plan = PlanRows(b, a, true);
    plan.scores = {0, 1, 2};
    ASSERT_EQ(FillAdvantages(b, a, {}, 0, plan), OkStatus());
    const std::vector<double> without = plan.advantages;
    plan.kl = {0, 0, 0, 0, 3, 1};
    ASSERT_EQ(FillAdvantages(b, a, {}, 0.5, plan), OkStatus());
    EXPECT_LT(plan.advantages[4], without[4]) << name;
  }
}

// One lake, two walks: both begin on tile 0; the second hits the edge first and comes to tile 0 again.
TEST(StepPlanTest, TurnsInTheSameStateAreCompared) {
  AlgorithmConfig c;
  c.name = "gigpo";
  c.options = {{"advantage_gamma", "0.5"}, {"advantage_step_weight", "2"}};
  const algorithms::ResolvedAlgorithm a = algorithms::Resolve(c, 8).value();
  Batch b;
  b.rows.push_back(Sample(0, 1, {1, 2, 3}));
  b.rows[0].loss_mask = {1, 0, 1};
  b.rows[0].turns = {{0, 70, 0}, {2, 71, 0}, {3, 72, 0.25}};  // no room was left for a third turn
  b.rows.push_back(Sample(0, -1, {1, 2, 3, 4}));
  b.rows[1].loss_mask = {1, 0, 1, 1};
  b.rows[1].turns = {{0, 70, 0}, {2, 70, -0.5}};
  StepPlan plan = PlanRows(b, a, true);
  plan.scores = {1, -1};
  ASSERT_EQ(FillAdvantages(b, a, {}, 0, plan), OkStatus());
  // R: row 0 (0.5, 1), row 1 (-0.5 - 0.25, -0.5). In state 70: 0.5, -0.75, -0.5, mean -0.25; state 71 stands
  // alone.
  EXPECT_EQ(plan.advantages,
            (std::vector<double>{1 + 2 * 0.75, 0, 1, -1 + 2 * -0.5, 0, -1 + 2 * -0.25, -1 + 2 * -0.25}));
  EXPECT_EQ(SharedStates(plan), 0.75);

  b.rows[1].gid = {9};  // of another lake: the same tile there is another state
  plan = PlanRows(b, a, true);
  plan.scores = {1, -1};
  ASSERT_EQ(FillAdvantages(b, a, {}, 0, plan), OkStatus());
  EXPECT_EQ(plan.advantages, (std::vector<double>{0, 0, 0, 2 * -0.125, 0, 2 * 0.125, 2 * 0.125}));

  plan = PlanRows(b, a, true);
  plan.scores = {1, std::nan("")};
  ASSERT_EQ(FillAdvantages(b, a, {}, 0, plan), OkStatus());
  EXPECT_EQ(plan.advantages, std::vector<double>(7, 0.0)) << "without a verdict a row counts nowhere";

  b.rows[1].turns.clear();
  plan = PlanRows(b, a, true);
  plan.scores = {1, -1};
  EXPECT_EQ(FillAdvantages(b, a, {}, 0, plan).code(), StatusCode::kInvalidArgument);
}

TEST(StepPlanTest, RejectionKeepsTheCounts) {
  AlgorithmConfig c;
  c.reject = "token_ratio";
  c.reject_low = 0.5;
  c.reject_high = 2;
  const algorithms::ResolvedAlgorithm a = algorithms::Resolve(c, 8).value();
  Batch b;
  b.rows.push_back(Sample(0, 1, {1, 2}));
  StepPlan plan = PlanRows(b, a, true);
  plan.old = {-1, 1};  // behaviour is -1: the second token's ratio is e^2
  FillRejection(a, plan);
  EXPECT_EQ(plan.keep, (std::vector<double>{1, 0}));
  EXPECT_EQ(plan.masked_fraction, 0.5);
  EXPECT_EQ(plan.cells.Tokens(), 2);
}

}  // namespace
}  // namespace tidepool::train
