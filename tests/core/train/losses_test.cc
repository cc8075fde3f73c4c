#include "core/train/losses.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/base/rng.h"
#include "core/train/advantages.h"
#include "core/train/schedule.h"
#include "core/train/step_metrics.h"

namespace tidepool::train {
namespace {

std::vector<GroupId> Groups(std::initializer_list<int64_t> ids) {
  std::vector<GroupId> g;
  for (const int64_t i : ids) g.push_back(GroupId{i});
  return g;
}

TEST(AdvantagesTest, WorkedNumbersOfGrpo) {
  const std::vector<double> r = {1, 0, 0, 0};
  const auto a = GroupAdvantages(r, Groups({7, 7, 7, 7}), AdvantageScale::kGroupStd, 1e-6);
  EXPECT_NEAR(a[0], 1.499997, 1e-6);
  for (int i = 1; i < 4; ++i) EXPECT_NEAR(a[static_cast<size_t>(i)], -0.499999, 1e-6);
  const auto dr = GroupAdvantages(r, Groups({7, 7, 7, 7}), AdvantageScale::kNone, 1e-6);
  EXPECT_EQ(dr[0], 0.75);
  EXPECT_EQ(dr[1], -0.25);
}

TEST(AdvantagesTest, EqualRewardsAndSingletonsGetExactlyZero) {
  for (const AdvantageScale scale : {AdvantageScale::kGroupStd, AdvantageScale::kBatchStd, AdvantageScale::kNone}) {
    const double third = 0.1 + 0.2;  // a mean of three of these is off by an ulp
    const auto a = GroupAdvantages(std::vector<double>{third, third, third, 5, 1, 2}, Groups({1, 1, 1, 2, 3, 3}), scale, 1e-9);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(a[static_cast<size_t>(i)], 0.0);
    EXPECT_LT(a[4], 0);
  }
}

TEST(AdvantagesTest, GroupsMayBeUnevenAndInterleaved) {
  const auto a = GroupAdvantages(std::vector<double>{1, 10, 3, 20, 5}, Groups({1, 2, 1, 2, 1}), AdvantageScale::kNone, 0);
  EXPECT_EQ(a, (std::vector<double>{-2, -5, 0, 5, 2}));
  const auto b = GroupAdvantages(std::vector<double>{1, 10, 3, 20, 5}, Groups({1, 2, 1, 2, 1}), AdvantageScale::kBatchStd, 0);
  const double std = std::sqrt((6.8 * 6.8 + 2.2 * 2.2 + 4.8 * 4.8 + 12.2 * 12.2 + 2.8 * 2.8) / 4);
  EXPECT_NEAR(b[0], -2 / std, 1e-12);
}

TEST(AdvantagesTest, OverlongPenaltyWorkedNumbers) {
  EXPECT_EQ(OverlongPenalty(80, 100, 20), 0);
  EXPECT_EQ(OverlongPenalty(90, 100, 20), -0.5);
  EXPECT_EQ(OverlongPenalty(100, 100, 20), -1);
  EXPECT_EQ(OverlongPenalty(140, 100, 20), -1);
}

TEST(PolicyLossTest, WorkedNumbersOfPpo) {
  const double lp[2] = {-1, -2}, old[2] = {-1.3, -1.9};
  LossOptions o;
  o.dual_clip = 3;
  const auto both = [&](double a) {
    TokenLoss t[2];
    for (int i = 0; i < 2; ++i) t[i] = PolicyLoss(o, lp[i], old[i], old[i], a);
    return std::array<double, 3>{(t[0].value + t[1].value) / 2, t[0].derivative / 2, t[1].derivative / 2};
  };
  const auto plus = both(1), minus = both(-1);
  EXPECT_NEAR(plus[0], -1.05241871, 1e-8);
  EXPECT_EQ(plus[1], 0);
  EXPECT_NEAR(plus[2], -0.45241871, 1e-8);
  EXPECT_NEAR(minus[0], 1.12734811, 1e-8);
  EXPECT_NEAR(minus[1], 0.6749294, 1e-7);
  EXPECT_NEAR(minus[2], 0.45241871, 1e-8);
}

TEST(PolicyLossTest, DerivativeIsThatOfTheValue) {
  Rng rng(1);
  LossOptions o;
  o.clip_high = 0.28;
  for (int i = 0; i < 2000; ++i) {
    if (i % 2 == 0) o.dual_clip = 3; else o.dual_clip.reset();
    o.tis = i % 3 == 0;
    const double lp = -3 * rng.Uniform(), old = lp + 0.5 * rng.Normal(), beh = old + 0.5 * rng.Normal(), a = rng.Normal();
    const double h = 1e-6;
    const TokenLoss t = PolicyLoss(o, lp, old, beh, a), up = PolicyLoss(o, lp + h, old, beh, a), down = PolicyLoss(o, lp - h, old, beh, a);
    if (up.clipped != down.clipped || up.dual_clipped != down.dual_clipped) continue;  // a kink
    EXPECT_NEAR(t.derivative, (up.value - down.value) / (2 * h), 1e-6);
  }
}

TEST(PolicyLossTest, DualClipBoundsTheLossOfBadTokens) {
  LossOptions o;
  o.dual_clip = 3;
  const TokenLoss t = PolicyLoss(o, 0, -2, -2, -1);  // rho = 7.4
  EXPECT_EQ(t.value, 3);
  EXPECT_EQ(t.derivative, 0);
  EXPECT_TRUE(t.dual_clipped);
}

TEST(PolicyLossTest, TruncatedImportanceScalesValueAndSlope) {
  LossOptions o;
  o.tis = true;
  const TokenLoss plain = PolicyLoss(LossOptions{}, -1, -1, -1, 2);
  const TokenLoss half = PolicyLoss(o, -1, -1, -1 + std::log(2.0), 2);   // old is half as likely as behaviour
  const TokenLoss capped = PolicyLoss(o, -1, -1, -1 - std::log(5.0), 2);  // five times: cut at 2
  EXPECT_NEAR(half.value, plain.value / 2, 1e-12);
  EXPECT_NEAR(half.derivative, plain.derivative / 2, 1e-12);
  EXPECT_NEAR(capped.value, plain.value * 2, 1e-12);
  EXPECT_NEAR(capped.importance, 5, 1e-12);
}

TEST(AggregationTest, WorkedNumbers) {
  const std::vector<std::vector<double>> rows = {{1, 1, 1, 1}, {4}};
  const GlobalCounts counts{.tokens = 5, .sequences = 2};
  const auto total = [&](Aggregation a) {
    double sum = 0;
    for (const auto& row : rows) {
      for (const double x : row) sum += x * TokenWeight(a, counts, static_cast<int64_t>(row.size()), 8);
    }
    return sum;
  };
  EXPECT_NEAR(total(Aggregation::kTokenMean), 1.6, 1e-12);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenMean), 2.5, 1e-12);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenSum), 4, 1e-12);
  EXPECT_NEAR(total(Aggregation::kSeqMeanTokenSumNorm), 0.5, 1e-12);
  EXPECT_EQ(TokenWeight(Aggregation::kSeqMeanTokenMean, counts, 0, 8), 0);
}

TEST(ResolveLossTest, NamesChooseDefaultsAndKeysOverrideThem) {
  AlgorithmConfig c;
  EXPECT_EQ(ResolveLoss(c, 16)->aggregation, Aggregation::kTokenMean);
  c.name = "dr_grpo";
  const auto dr = ResolveLoss(c, 16);
  ASSERT_TRUE(dr.ok());
  EXPECT_EQ(dr->scale, AdvantageScale::kNone);
  EXPECT_EQ(dr->aggregation, Aggregation::kSeqMeanTokenSumNorm);
  EXPECT_EQ(dr->length_norm, 16);
  c.advantage_scale = "group_std";
  EXPECT_EQ(ResolveLoss(c, 16)->scale, AdvantageScale::kGroupStd);
  c.name = "dapo";
  EXPECT_EQ(ResolveLoss(c, 16)->clip_high, 0.28);
  c.kl_coef = 0.01;
  EXPECT_EQ(ResolveLoss(c, 16).status().code(), StatusCode::kUnimplemented);
  c.kl_coef = 0;
  c.name = "magic";
  EXPECT_EQ(ResolveLoss(c, 16).status().code(), StatusCode::kInvalidArgument);
}

TEST(ScheduleTest, WarmsUpAndDecays) {
  ScheduleOptions o{.kind = Schedule::kLinear, .peak = 1.0, .min_ratio = 0.1, .warmup_steps = 4, .steps = 14};
  EXPECT_EQ(LearningRate(o, 1), 0.25);
  EXPECT_EQ(LearningRate(o, 4), 1.0);
  EXPECT_NEAR(LearningRate(o, 9), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(o, 14), 0.1, 1e-12);
  EXPECT_NEAR(LearningRate(o, 99), 0.1, 1e-12);
  o.kind = Schedule::kCosine;
  EXPECT_NEAR(LearningRate(o, 9), 0.55, 1e-12);
  EXPECT_NEAR(LearningRate(o, 14), 0.1, 1e-12);
  o.kind = Schedule::kConstant;
  EXPECT_EQ(LearningRate(o, 14), 1.0);
}

TEST(StepMetricsTest, AGapThatIsNoNumberIsNotHidden) {
  TokenSums s;
  s.AddGap(-1, -1);
  s.AddGap(std::nan(""), -1);
  s.AddGap(-1, -1.5);
  std::map<std::string, double> m;
  TokenMetrics(s, true, m);
  EXPECT_FALSE(m["training/rollout_logp_diff/mean"] < 1e9);
}

}  // namespace
}  // namespace tidepool::train
