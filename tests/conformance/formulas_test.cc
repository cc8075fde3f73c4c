// Worked numbers of the formulas that only the checking interface offers.
#include "tests/conformance/formulas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "core/base/rng.h"
#include "tests/conformance/partition.h"

namespace tidepool::algorithms {
namespace {

void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected) {
  EXPECT_THAT(found, testing::Pointwise(testing::DoubleNear(1e-12), expected));
}

TEST(ConformanceFormulasTest, VTraceOnTwoSteps) {
  const auto out =
      VTrace(std::vector<double>{1, 2}, std::vector<double>{0.5, 1}, std::vector<double>{0.9, 0.9},
             std::vector<double>{std::log(2.0), std::log(0.5)}, std::vector<double>{2}, {1.0, 1.0, 1.0, 1.0});
  ExpectNear(out.vs, {3.16, 2.4});
  ExpectNear(out.pg_advantages, {2.66, 1.4});
}

TEST(ConformanceFormulasTest, TdLambdaIsTheMixOfStepReturns) {
  const std::vector<double> r = {1, 2}, v = {0.5, 1}, d = {0.9, 0.8}, bootstrap = {3};
  ExpectNear(TdLambda(r, v, d, bootstrap, 0), {1 + 0.9 * 1, 2 + 0.8 * 3});
  ExpectNear(TdLambda(r, v, d, bootstrap, 1), {1 + 0.9 * (2 + 0.8 * 3), 2 + 0.8 * 3});
}

TEST(ConformanceFormulasTest, VTraceWithoutCapsSurvivesATerminalState) {
  const std::vector<double> r = {1, 2}, v = {0, 0}, d = {0, 0}, log_rho = {800, 0}, bootstrap = {5};
  const VTraceResult out = VTrace(r, v, d, log_rho, bootstrap, {.rho_bar = 1, .c_bar = {}, .pg_rho_bar = 1});
  EXPECT_EQ(out.vs, (std::vector<double>{1, 2}));
}

TEST(ConformanceFormulasTest, TurnReturnsHoldOverATurn) {
  const Cells cells = Cells::Padded(1, 5, {1, 1, 0, 0, 1});
  ExpectNear(TurnReturns(std::vector<double>{5, 2, NAN, NAN, 4}, 0.5, cells), {4, 4, 0, 0, 4});
}

TEST(ConformanceFormulasTest, CapacityAndAge) {
  EXPECT_EQ(RolloutCapacity(1, 16, 32, 3, 64, 8), 8);
  const EpisodeAge age = AgeOfEpisode(9, 4, 6, 4);
  EXPECT_EQ(age.total, 5);
  EXPECT_EQ(age.in_flight, 2);
  EXPECT_EQ(age.in_queue, 3);
  EXPECT_FALSE(age.fresh);
}

TEST(ConformanceFormulasTest, PassAtK) {
  EXPECT_NEAR(PassAtK(4, 1, 2), 0.5, 1e-12);
  EXPECT_EQ(PassAtK(3, 3, 3), 1);
  EXPECT_EQ(PassAtK(3, 0, 2), 0);
}

TEST(ConformanceFormulasTest, GapOfNothing) {
  const Cells none = Cells::Padded(1, 2, {0, 0});
  const std::vector<double> nan(2, NAN);
  const GapMetrics gap = MeasureGap(nan, nan, none);
  EXPECT_EQ(gap.kl, 0);
  EXPECT_EQ(gap.ppl_ratio, 0);
  EXPECT_EQ(ImportanceWeights({.high = 2.0}, nan, nan, none).ess, 0);
}

TEST(ConformanceFormulasTest, ImportanceWeightLevels) {
  const Cells cells = Cells::Padded(1, 4, {1, 1, 0, 1});
  const std::vector<double> train = {0.1, 0.3, NAN, -0.2}, rollout(4, 0.0);
  const auto log_w = [&](GapLevel level) {
    std::vector<double> w =
        ImportanceWeights({.level = level, .truncate = false}, train, rollout, cells).weights;
    for (double& v : w) v = v == 0 ? 0 : std::log(v);
    return w;
  };
  ExpectNear(log_w(GapLevel::kToken), {0.1, 0.3, 0, -0.2});
  ExpectNear(log_w(GapLevel::kSegment), {0.2, 0.2, 0, -0.2});
  ExpectNear(log_w(GapLevel::kGeometric), {0.2 / 3, 0.2 / 3, 0, 0.2 / 3});
  ExpectNear(log_w(GapLevel::kSequence), {0.2, 0.2, 0, 0.2});
  const auto cut = ImportanceWeights({.high = 1.2, .normalize_mean = true}, train, rollout, cells);
  const double mean = (std::exp(0.1) + 1.2 + std::exp(-0.2)) / 3;
  ExpectNear(cut.weights, {std::exp(0.1) / mean, 1.2 / mean, 0, std::exp(-0.2) / mean});
  EXPECT_NEAR(cut.frac_high, 1.0 / 3, 1e-12);
  EXPECT_NEAR(cut.frac_low, 1.0 / 3, 1e-12);
  EXPECT_NEAR(cut.max, std::exp(0.3), 1e-12);
}

// The smallest spread over all ways to deal rows to k parts.
int64_t BestSpread(const std::vector<int64_t>& lengths, int64_t k) {
  int64_t best = std::numeric_limits<int64_t>::max(), ways = 1;
  for (size_t i = 0; i < lengths.size(); ++i) ways *= k;
  for (int64_t way = 0; way < ways; ++way) {
    std::vector<int64_t> totals(static_cast<size_t>(k), 0);
    int64_t code = way;
    for (const int64_t n : lengths) totals[static_cast<size_t>(code % k)] += n, code /= k;
    best = std::min(best, *std::ranges::max_element(totals) - *std::ranges::min_element(totals));
  }
  return best;
}

TEST(ConformanceFormulasTest, BalancedPartsAreNearTheBestOnes) {
  Rng rng(31);
  for (int round = 0; round < 60; ++round) {
    const int64_t k = 2 + static_cast<int64_t>(rng.Uniform() * 2);
    std::vector<int64_t> lengths;
    for (int i = 0; i < 8; ++i) lengths.push_back(1 + static_cast<int64_t>(rng.Uniform() * 100));
    const auto parts = BalancedPartition(lengths, k, false).value();
    std::vector<int64_t> seen;
    int64_t total = 0;
    for (const auto& part : parts) seen.insert(seen.end(), part.begin(), part.end());
    for (const int64_t n : lengths) total += n;
    std::ranges::sort(seen);
    std::vector<int64_t> all(lengths.size());
    std::iota(all.begin(), all.end(), int64_t{0});
    EXPECT_EQ(seen, all);
    EXPECT_LE(static_cast<double>(Spread(lengths, parts)),
              static_cast<double>(BestSpread(lengths, k)) +
                  0.15 * static_cast<double>(total) / static_cast<double>(k));
    for (const auto& part : BalancedPartition(lengths, 4, true).value()) EXPECT_EQ(part.size(), 2U);
    for (const auto& part : BalancedPartition(lengths, 3, true).value()) EXPECT_LE(part.size(), 3U);
  }
}

TEST(ConformanceFormulasTest, PartitionNeedsPartsAndMayLeaveThemEmpty) {
  EXPECT_EQ(BalancedPartition(std::vector<int64_t>{3}, 0, false).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(BalancedPartition(std::vector<int64_t>{3}, 3, false).value().size(), 3U);
}

TEST(ConformanceFormulasTest, GradientOfALogProbability) {
  std::vector<double> logits = {0.3, -1, 2, 0.1};
  const TokenDistribution token = LogProbAndEntropy(logits, 2, 0.7);
  for (size_t i = 0; i < 4; ++i) {
    const double at = logits[i], step = 1e-6;
    logits[i] = at + step;
    const double up = LogProbAndEntropy(logits, 2, 0.7).logp;
    logits[i] = at - step;
    const double down = LogProbAndEntropy(logits, 2, 0.7).logp;
    logits[i] = at;
    EXPECT_NEAR(token.grad_logits[i], (up - down) / (2 * step), 1e-7);
  }
}

TEST(ConformanceFormulasTest, FewestMovesThroughAMaze) {
  EXPECT_EQ(MazeDistance({"S.#", ".#G", "..."}), 5);
  EXPECT_EQ(MazeDistance({"S#G"}), std::nullopt);
  EXPECT_EQ(MazeDistance({"..G"}), std::nullopt);
}

}  // namespace
}  // namespace tidepool::algorithms

namespace tidepool::environments {
namespace {

TEST(ToyTextTest, CliffIsThirteenStepsAlongTheEdge) {
  const TransitionTable table = CliffWalking(false);
  int64_t state = 36;
  double reward = 0;
  std::vector<int64_t> actions(13, 1);
  actions.front() = 0, actions.back() = 2;
  for (const int64_t action : actions) {
    const Outcome& o = table[static_cast<size_t>(state * 4 + action)];
    EXPECT_FALSE(o.terminated && action != 2);
    state = o.next;
    reward += o.reward;
  }
  EXPECT_EQ(state, 47);
  EXPECT_EQ(reward, -13);
  EXPECT_EQ(table[36 * 4 + 1].next, 36);  // off the edge
  EXPECT_EQ(table[36 * 4 + 1].reward, -100);
}

TEST(ToyTextTest, ProbabilitiesSumToOne) {
  for (const TransitionTable& table : {CliffWalking(true), Taxi()}) {
    std::map<std::pair<int64_t, int64_t>, double> sums;
    for (const Outcome& o : table) sums[{o.state, o.action}] += o.probability;
    for (const auto& [key, sum] : sums) EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(ToyTextTest, TaxiRidesAsItShould) {
  const TransitionTable table = Taxi();
  ASSERT_EQ(table.size(), 3000U);
  const auto at = [&](int64_t state, int64_t action) {
    return table[static_cast<size_t>(state * 6 + action)];
  };
  const auto state = [](int64_t row, int64_t column, int64_t passenger, int64_t destination) {
    return ((row * 5 + column) * 5 + passenger) * 4 + destination;
  };
  EXPECT_EQ(at(state(0, 0, 0, 2), 4).next, state(0, 0, 4, 2));  // picks up where the passenger waits
  EXPECT_EQ(at(state(0, 0, 1, 2), 4).reward, -10);              // nobody here
  EXPECT_EQ(at(state(4, 0, 4, 2), 5).reward, 20);               // delivered
  EXPECT_TRUE(at(state(4, 0, 4, 2), 5).terminated);
  EXPECT_EQ(at(state(0, 4, 4, 2), 5).next, state(0, 4, 1, 2));  // left at another stop
  EXPECT_EQ(at(state(0, 4, 4, 2), 5).reward, -1);
  EXPECT_EQ(at(state(0, 1, 4, 2), 2).next, state(0, 1, 4, 2));  // a wall right of (0, 1)
  EXPECT_EQ(at(state(0, 2, 4, 2), 3).next, state(0, 2, 4, 2));
  EXPECT_EQ(at(state(2, 1, 4, 2), 2).next, state(2, 2, 4, 2));  // none here
}

}  // namespace
}  // namespace tidepool::environments
