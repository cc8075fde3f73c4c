// Stated results for input that is extreme, empty or not finite.
#include <gtest/gtest.h>

#include <cmath>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/batching.h"
#include "core/algorithms/gae.h"
#include "core/algorithms/group_advantages.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/metrics.h"
#include "tests/core/algorithms/random_batch.h"

namespace tidepool::algorithms {
namespace {

PolicyLossSpec Spec(const LossEntry& entry) {
  return {.loss = &entry, .options = Options::Make(entry.options, {}, true).value()};
}

TEST(DegenerateTest, LogRatiosOfThirtyAreFiniteInEveryLoss) {
  const Cells cells = Cells::Padded(2, 2, {1, 1, 1, 1});
  for (const LossEntry& entry : PolicyLosses()) {
    for (const double l : {30.0, -30.0}) {
      for (const double a : {1.0, -1.0, 0.0}) {
        SCOPED_TRACE(testing::Message() << entry.name << " l " << l << " A " << a);
        const std::vector<double> lp(4, l > 0 ? -0.5 : -30.5), old(4, l > 0 ? -30.5 : -0.5), advantages(4, a),
            scores(2, a);
        const std::vector<uint8_t> selected(4, 1);
        const PolicyBatch batch{.logp = lp,
                                .advantages = advantages,
                                .old_logp = old,
                                .behave_logp = old,
                                .ref_logp = old,
                                .scores = scores,
                                .selected = selected};
        const auto out = PolicyLoss(Spec(entry), cells, batch, std::vector<double>(4, 0.25));
        ASSERT_TRUE(out.ok()) << out.status().ToString();
        EXPECT_TRUE(std::isfinite(out.value().loss));
        for (const double g : out.value().grad_logp) EXPECT_TRUE(std::isfinite(g));
      }
    }
  }
}

TEST(DegenerateTest, AFullyMaskedBatchGivesZeroAndAnEmptyOneToo) {
  for (const LossEntry& entry : PolicyLosses()) {
    SCOPED_TRACE(entry.name);
    for (const int64_t width : {int64_t{3}, int64_t{0}}) {
      const Cells cells = Cells::Padded(2, width, std::vector<uint8_t>(static_cast<size_t>(2 * width), 0));
      const std::vector<double> nan(static_cast<size_t>(2 * width), NAN), scores(2, 1.0);
      const std::vector<uint8_t> selected(nan.size(), 0);
      const PolicyBatch batch{.logp = nan,
                              .advantages = nan,
                              .old_logp = nan,
                              .behave_logp = nan,
                              .ref_logp = nan,
                              .scores = scores,
                              .selected = selected};
      const auto weights = AggregationWeights({}, cells);
      ASSERT_TRUE(weights.ok());
      const auto out = PolicyLoss(Spec(entry), cells, batch, weights.value());
      ASSERT_TRUE(out.ok()) << out.status().ToString();
      EXPECT_EQ(out.value().loss, 0);
      for (const double g : out.value().grad_logp) EXPECT_EQ(g, 0);
    }
  }
}

TEST(DegenerateTest, NaNInAValidCellShows) {
  const Cells cells = Cells::Padded(1, 2, {1, 1});
  const std::vector<double> lp = {-1, NAN}, old = {-1, -1}, a = {1, 1}, scores = {1};
  const std::vector<uint8_t> selected = {1, 1};
  for (const LossEntry& entry : PolicyLosses()) {
    if (entry.name == "onpolicy") continue;  // its value does not depend on lp
    SCOPED_TRACE(entry.name);
    const PolicyBatch batch{.logp = lp,
                            .advantages = a,
                            .old_logp = old,
                            .behave_logp = old,
                            .ref_logp = old,
                            .scores = scores,
                            .selected = selected};
    EXPECT_TRUE(
        std::isnan(PolicyLoss(Spec(entry), cells, batch, std::vector<double>{0.5, 0.5}).value().loss));
  }
}

TEST(DegenerateTest, MissingColumnsAreNamed) {
  const Cells cells = Cells::Padded(1, 1, {1});
  const std::vector<double> one = {-1};
  const auto out = PolicyLoss(Spec(*FindLoss("ppo")), cells, {.logp = one, .advantages = one}, one);
  ASSERT_FALSE(out.ok());
  EXPECT_EQ(out.status().message(), "old_logp is missing");
}

TEST(DegenerateTest, EqualRewardsAreExactlyZeroAndUnscoredSamplesStayOut) {
  const double third = 0.1 + 0.2;
  const std::vector<double> r = {third, third, third, 5, NAN, 1, 2};
  const std::vector<int64_t> g = {1, 1, 1, 2, 3, 3, 3};
  const Cells cells = Cells::Packed({0, 1, 2, 3, 4, 5, 6, 7});
  for (const AdvantageScale scale :
       {AdvantageScale::kGroupStd, AdvantageScale::kBatchStd, AdvantageScale::kNone}) {
    const auto a = GrpoAdvantages(r, g, {.scale = scale, .eps = 1e-12});
    for (const size_t i : {0U, 1U, 2U, 3U, 4U}) EXPECT_EQ(a[i], 0);
    EXPECT_LT(a[5], 0);
    EXPECT_NEAR(a[5] + a[6], 0, 1e-12);
  }
  for (const auto& a : {RlooAdvantages(r, g, Singleton::kZero), OpoAdvantages(r, g, cells, Singleton::kZero),
                        MaxRlAdvantages(r, g), PassKAdvantages(r, g, true, 1, 0)}) {
    for (const size_t i : {0U, 1U, 2U, 3U, 4U}) EXPECT_EQ(a[i], 0);
  }
  EXPECT_EQ(GrpoAdvantages(r, g, {.scale = AdvantageScale::kNone, .singleton = Singleton::kRaw})[3], 5);
  EXPECT_TRUE(GrpoAdvantages({}, {}, {}).empty());
}

TEST(DegenerateTest, WhiteningBelowTwoCellsDoesNothing) {
  std::vector<double> x = {7, 3};
  Whiten(x, std::vector<uint8_t>{1, 0}, {});
  EXPECT_EQ(x, (std::vector<double>{7, 3}));
  Whiten(x, std::vector<uint8_t>{0, 0}, {});
  EXPECT_EQ(x, (std::vector<double>{7, 3}));
  std::vector<double> equal = {2, 2, 2};
  Whiten(equal, std::vector<uint8_t>{1, 1, 1}, {.eps = 0});
  EXPECT_EQ(equal, (std::vector<double>{0, 0, 0}));
}

TEST(DegenerateTest, MetricsOfNothing) {
  EXPECT_TRUE(std::isnan(
      ExplainedVariance(std::vector<double>{1, 1}, std::vector<double>{0, 2}, std::vector<uint8_t>{1, 1})));
}

TEST(DegenerateTest, ARowLongerThanTheBudgetIsAnError) {
  EXPECT_EQ(FirstFitDecreasing(std::vector<int64_t>{3, 9}, 8).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::algorithms
