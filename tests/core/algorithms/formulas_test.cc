// Worked numbers of the definitions, and brute force for small cases.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/batching.h"
#include "core/algorithms/gae.h"
#include "core/algorithms/gigpo.h"
#include "core/algorithms/group_advantages.h"
#include "core/algorithms/importance.h"
#include "core/algorithms/kl.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/metrics.h"
#include "core/algorithms/returns.h"
#include "core/algorithms/rewards.h"
#include "core/algorithms/staleness.h"
#include "tests/core/algorithms/random_batch.h"

namespace tidepool::algorithms {
namespace {

void ExpectNear(const std::vector<double>& found, const std::vector<double>& expected,
                double tolerance = 1e-6) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << "entry " << i;
}

TEST(FormulasTest, GroupAdvantagesOfOneWinner) {
  const std::vector<double> r = {1, 0, 0, 0};
  const std::vector<int64_t> g = {7, 7, 7, 7};
  ExpectNear(GrpoAdvantages(r, g, {.eps = 1e-6}), {1.499997, -0.499999, -0.499999, -0.499999});
  ExpectNear(RlooAdvantages(r, g, Singleton::kZero), {1, -1.0 / 3, -1.0 / 3, -1.0 / 3}, 1e-12);
  ExpectNear(OpoAdvantages(r, g, Cells::Packed({0, 1, 4, 6, 8}), Singleton::kZero),
             {0.875, -0.125, -0.125, -0.125}, 1e-12);
  ExpectNear(PassKAdvantages(r, g, false, 1, 0), {1, 0, 0, 0}, 1e-12);
  ExpectNear(MaxRlAdvantages(r, g), {3, -1, -1, -1}, 1e-12);
  ExpectNear(GpgAdvantages(r, g, true, 1, Singleton::kZero), {3, -1, -1, -1}, 1e-12);  // alpha 4/1
}

TEST(FormulasTest, GroupsMayBeUnevenAndInterleaved) {
  const std::vector<double> r = {1, 10, 3, 20, 5};
  const std::vector<int64_t> g = {1, 2, 1, 2, 1};
  ExpectNear(GrpoAdvantages(r, g, {.scale = AdvantageScale::kNone}), {-2, -5, 0, 5, 2}, 1e-12);
  const double all = Deviation(r, 1);
  ExpectNear(GrpoAdvantages(r, g, {.scale = AdvantageScale::kBatchStd, .eps = 0}),
             {-2 / all, -5 / all, 0, 5 / all, 2 / all}, 1e-12);
  // Leave one out: of 1, 3, 5 the others of the first have mean 4 and deviation sqrt(2).
  const auto loo =
      GrpoAdvantages(r, g, {.leave_one_out = true, .std_of_others = true, .eps = 0, .skip_zero_std = true});
  EXPECT_NEAR(loo[0], -3 / std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(loo[1], -10, 1e-12);  // one other: no deviation, nothing is divided
}

TEST(FormulasTest, GdpoNormalisesEachRewardAndThenTheSum) {
  const std::vector<double> components = {1, 0, 0, 5, 1, 1, 0, 1};  // [4, 2]
  const std::vector<int64_t> g = {0, 0, 1, 1};
  const auto a = GdpoAdvantages(components, std::vector<double>{1, 0.5}, g, 1, 0);
  // Each pair gives +-1/sqrt 2; group 1 has equal second rewards.
  const double h = 1 / std::sqrt(2.0);
  std::vector<double> y = {h - 0.5 * h, -h + 0.5 * h, h, -h};
  const double s = Deviation(y, 1);
  for (double& v : y) v /= s;
  ExpectNear(a, y, 1e-12);
}

TEST(FormulasTest, Whitening) {
  std::vector<double> x = {1, 2, 3, 6};
  const std::vector<uint8_t> all(4, 1);
  Whiten(x, all, {.eps = 0});
  ExpectNear(x, {-0.925820, -0.462910, 0, 1.388730});
  x = {1, 2, 3, 6};
  Whiten(x, all, {.ddof = 0, .eps = 100, .eps_mode = EpsMode::kClampVar, .shift_mean = false});
  ExpectNear(x, {3 - 0.2, 3 - 0.1, 3, 3.3}, 1e-12);
}

TEST(FormulasTest, GaeSkipsMaskedTokens) {
  const std::vector<double> v = {0.5, 0.6, 0.7}, r = {0, 0, 1};
  const auto whole = TokenGae(r, v, {}, 0.9, 0.8, nullptr, Cells::Padded(1, 3, {1, 1, 1}));
  ExpectNear(whole.advantages, {0.21712, 0.246, 0.3}, 1e-12);
  ExpectNear(whole.returns, {0.71712, 0.846, 1}, 1e-12);
  const std::vector<double> holes = {0.5, NAN, 0.7};
  const auto cut =
      TokenGae(std::vector<double>{0, NAN, 1}, holes, {}, 0.9, 0.8, nullptr, Cells::Padded(1, 3, {1, 0, 1}));
  ExpectNear(cut.advantages, {0.346, 0, 0.3}, 1e-12);
  EXPECT_NEAR(cut.returns[0], 0.846, 1e-12);
}

TEST(FormulasTest, GaeIsTheSumOfDiscountedErrors) {
  Rng rng(2);
  const int64_t n = 9;
  std::vector<double> r, v;
  for (int64_t t = 0; t < n; ++t) r.push_back(rng.Uniform()), v.push_back(rng.Uniform());
  const double gamma = 0.93, lambda = 0.7, after = 0.4;
  const auto out = TokenGae(r, v, std::vector<double>{after}, gamma, lambda, nullptr, Cells::Packed({0, n}));
  for (int64_t t = 0; t < n; ++t) {
    double sum = 0;
    for (int64_t k = t; k < n; ++k) {
      const double next = k + 1 < n ? v[static_cast<size_t>(k + 1)] : after;
      sum += std::pow(gamma * lambda, k - t) *
             (r[static_cast<size_t>(k)] + gamma * next - v[static_cast<size_t>(k)]);
    }
    EXPECT_NEAR(out.advantages[static_cast<size_t>(t)], sum, 1e-12);
  }
  // The environment form of one environment without an end is the same.
  std::vector<double> values = v;
  values.push_back(after);
  const auto env = EnvironmentGae(r, values, std::vector<uint8_t>(10, 0), std::vector<uint8_t>(9, 1), n, 1,
                                  gamma, lambda, nullptr);
  ExpectNear(env.advantages, out.advantages, 1e-12);
}

TEST(FormulasTest, ReturnsCarryThroughToolText) {
  const Cells cells = Cells::Padded(1, 5, {1, 1, 0, 0, 1});
  const std::vector<double> r = {0, 0, NAN, 7, 1};
  ExpectNear(DiscountedReturns(r, 0.5, cells), {0.0625, 0.125, 0, 0, 1}, 1e-12);
  const auto remax = ReMax(r, std::vector<double>{0.25}, cells);
  ExpectNear(remax.advantages, {0.75, 0.75, 0, 0, 0.75}, 1e-12);
  ExpectNear(OutcomeTokenRewards(std::vector<double>{3}, std::vector<double>{1, 1, NAN, NAN, 2}, 0.5, cells),
             {-0.5, -0.5, 0, 0, 2}, 1e-12);
}

TEST(FormulasTest, OptimalTokenBaselineByHand) {
  const Cells cells = Cells::Padded(2, 2, {1, 1, 1, 0});
  const std::vector<double> r = {0, 1, 3, NAN}, lp(4, std::log(0.5)), squares(4, 0.5);
  // W grows by 1 - 2/2 + 1/2 = 1/2 a token. At t 0: (1 * .5 + 3 * .5)/1 = 2; at t 1 row 0 is alone.
  ExpectNear(OptimalTokenBaseline(r, std::vector<int64_t>{1, 1}, lp, squares, 0, Singleton::kZero, cells),
             {-1, 0, 1, 0}, 1e-12);
}

TEST(FormulasTest, WeightsOfWholeSamplesAreTheProductOfTheirTokens) {
  const Cells cells = Cells::Padded(2, 3, {1, 0, 1, 1, 1, 1});
  const std::vector<double> old = {-1, NAN, -2, -1, -1, -1}, behave = {-1.5, 7, -2.2, -2, -2, -2};
  const double first = std::exp(0.7);
  ExpectNear(RolloutIsWeights(RolloutIsForm::kSequenceTis, {}, 4.0, old, behave, cells),
             {first, 0, first, 4, 4, 4}, 1e-12);
  ExpectNear(RolloutIsWeights(RolloutIsForm::kSequenceMask, {}, 4.0, old, behave, cells),
             {first, 0, first, 0, 0, 0}, 1e-12);
  const std::vector<double> far(6, 30.0);
  EXPECT_EQ(RolloutIsWeights(RolloutIsForm::kSequenceTis, {}, {}, far, std::vector<double>(6, 0.0), cells)[0],
            std::exp(20.0))
      << "clipped in the exponent";
}

TEST(FormulasTest, GigpoByHand) {
  // Two trajectories of one group, given in mixed order; both begin in state 0.
  const std::vector<double> r = {1, 0, 0, 2};
  const std::vector<int64_t> g(4, 0), traj = {0, 1, 0, 1}, step = {1, 0, 0, 1}, state = {5, 0, 0, 6};
  const auto out = Gigpo(r, g, traj, step, state, {.gamma = 0.5, .step_weight = 2});
  ExpectNear(out.step_returns, {1, 1, 0.5, 2}, 1e-12);
  ExpectNear(out.episode_adv, {-0.5, 0.5, -0.5, 0.5}, 1e-12);
  ExpectNear(out.step_adv, {0, 0.25, -0.25, 0}, 1e-12);
  ExpectNear(out.advantages, {-0.5, 1, -1, 0.5}, 1e-12);
}

struct Worked {
  std::string loss;
  double a;
  std::map<std::string, Value> options;
  double value;
  std::vector<double> grad;
};

TEST(FormulasTest, PolicyLossesOfTwoTokens) {
  const std::vector<double> lp = {-1, -2}, old = {-1.3, -1.9};
  const Cells cells = Cells::Padded(1, 2, {1, 1});
  const std::map<std::string, Value> clip = {{"clip_low", 0.2}, {"clip_high", 0.2}, {"dual_clip", 3.0}};
  const std::map<std::string, Value> sapo = {{"tau_pos", 1.0}, {"tau_neg", 1.05}};
  for (const Worked& w : std::vector<Worked>{
           {"ppo", 1, clip, -1.05241871, {0, -0.45241871}},
           {"ppo", -1, clip, 1.12734811, {0.6749294, 0.45241871}},
           {"gspo", 1, {{"clip_low", 0.2}, {"clip_high", 0.2}}, -1.10517092, {-0.55258546, -0.55258546}},
           {"gmpo",
            1,
            {{"clip_log_low", 0.4}, {"clip_log_high", 0.4}},
            -1.10517092,
            {-0.55258546, -0.55258546}},
           {"cispo", 1, {{"clip_low", 0.2}, {"clip_high", 0.2}}, 1.50483742, {-0.6, -0.45241871}},
           {"sapo", 1, sapo, -2.12562126, {-0.6546905, -0.45139599}},
           {"sapo", -1, sapo, 2.03020857, {0.65266193, 0.45129133}},
       }) {
    SCOPED_TRACE(w.loss);
    const LossEntry& entry = *FindLoss(w.loss);
    const std::vector<double> a(2, w.a);
    const PolicyLossSpec spec{.loss = &entry,
                              .options = Options::Make(entry.options, w.options, false).value()};
    const auto out =
        PolicyLoss(spec, cells, {.logp = lp, .advantages = a, .old_logp = old}, std::vector<double>{0.5, 0.5})
            .value();
    EXPECT_NEAR(out.loss, w.value, 1e-8);
    ExpectNear(out.grad_logp, w.grad, 1e-8);
  }
}

TEST(FormulasTest, DecoupledWithoutABehaviourWeightIsPpoAgainstTheProximalPolicy) {
  Rng rng(9);
  RandomBatch b(rng, 4, 5);
  const std::vector<double> weights = AggregationWeights({}, b.cells).value();
  const PolicyLossSpec ppo{
      .loss = FindLoss("ppo"),
      .options =
          Options::Make(FindLoss("ppo")->options, {{"clip_low", 0.2}, {"clip_high", 0.2}}, false).value()};
  const auto& options = FindLoss("decoupled")->options;
  PolicyLossSpec decoupled{
      .loss = FindLoss("decoupled"),
      .options = Options::Make(options, {{"clip_low", 0.2}, {"clip_high", 0.2}}, false).value()};
  const PolicyLossResult plain = PolicyLoss(ppo, b.cells, b.Batch(), weights).value();
  EXPECT_EQ(PolicyLoss(decoupled, b.cells, b.Batch(), weights).value().grad_logp, plain.grad_logp);
  // With it, each gradient is multiplied by exp(old - beh), and rejected tokens have none.
  decoupled.options =
      Options::Make(options,
                    {{"clip_low", 0.2}, {"clip_high", 0.2}, {"behave.level", "token"}, {"behave.upper", 1.1}},
                    false)
          .value();
  const PolicyLossResult weighted = PolicyLoss(decoupled, b.cells, b.Batch(), weights).value();
  int64_t kept = 0;
  for (size_t t = 0; t < b.logp.size(); ++t) {
    if (b.cells.mask[t] == 0) continue;
    const double w = std::exp(b.old_logp[t] - b.behave_logp[t]);
    EXPECT_NEAR(weighted.grad_logp[t], w <= 1.1 ? w * plain.grad_logp[t] : 0, 1e-12);
    kept += w <= 1.1 ? 1 : 0;
  }
  decoupled.options =
      Options::Make(
          options,
          {{"behave.level", "token"}, {"behave.upper", 1.1}, {"denominator", "mask_after_rejection"}}, false)
          .value();
  EXPECT_EQ(TokensAfterRejection(decoupled, b.cells, b.Batch()).value(), static_cast<double>(kept));
}

TEST(FormulasTest, Aggregation) {
  const Cells cells = Cells::Padded(2, 4, {1, 1, 1, 1, 1, 0, 0, 0});
  const std::vector<double> x = {1, 1, 1, 1, 4, NAN, NAN, NAN};
  const auto loss = [&](algorithms::Aggregation a) {
    const std::vector<double> weights = AggregationWeights(a, cells).value();
    return std::inner_product(weights.begin(), weights.end(), Masked(x, cells).begin(), 0.0);
  };
  EXPECT_NEAR(loss({.mode = AggregationMode::kTokenMean}), 1.6, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kSeqMeanTokenMean}), 2.5, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kSeqMeanTokenSum}), 4, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kSeqMeanTokenSumNorm, .scale = 8, .divide_by_seqs = true}), 0.5,
              1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kSeqMeanTokenSumNorm, .scale = 8}), 1, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kRolloutMean, .rollout = {3, 3}}), 1.6, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kRolloutMean, .rollout = {3, 4}, .divide = false}), 5, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kMaskRatio, .max_steps = 4}), (4 * 1 + 4 * 4) / 8.0, 1e-12);
  EXPECT_NEAR(loss({.mode = AggregationMode::kTokenMean, .global_tokens = 10, .dp_size = 2}), 1.6, 1e-12);
}

TEST(FormulasTest, KlAndItsController) {
  EXPECT_NEAR(KlEstimate({.kind = KlKind::kK3}, -0.9, -1).value, 0.0048374180, 1e-10);
  EXPECT_NEAR(KlEstimate({.kind = KlKind::kK3}, -1.1, -1).value, 0.0051709181, 1e-10);
  EXPECT_NEAR(AdaptKlCoefficient(0.1, 12, 6, 100, 10000), 0.1 * 1.002, 1e-15);  // 12/6 - 1 is cut at 0.2
}

TEST(FormulasTest, Rewards) {
  for (const auto& [n, p] : std::map<double, double>{{80, 0}, {90, -0.5}, {100, -1}, {140, -1}})
    EXPECT_EQ(OverlongPenalty(n, 100, 20), p);
  EXPECT_EQ(TruncatedReward(0.8, true, 0.5), 0.4);
  EXPECT_EQ(TruncatedReward(0.8, true, -1), -1);
  EXPECT_NEAR(RepetitionPenalty(std::vector<int64_t>{1, 2, 1, 2, 1}, 2, -1), -0.5,
              1e-12);  // 12 21 12 21: 2 of 4
  EXPECT_EQ(RepetitionPenalty(std::vector<int64_t>{1, 2}, 3, -1), 0);
  RunningMoments running;
  for (const double x : {1.0, 2.0, 3.0, 6.0}) running.Add(x);
  EXPECT_NEAR(running.Deviation(), Deviation(std::vector<double>{1, 2, 3, 6}, 1), 1e-12);
  const std::vector<double> r = {1, 2, 6};
  const std::vector<int64_t> g = {0, 0, 1};
  ExpectNear(NormaliseRewards(
                 r, g, {.mean = Scope::kGroup, .deviation = Scope::kBatch, .leave_one_out = true, .eps = 0}),
             {-1 / std::sqrt(19.0), 1 / std::sqrt(19.0), 6 / std::sqrt(19.0)},
             1e-12);  // mu (2, 1, 0): squares 1 + 1 + 36 over 2
}

TEST(FormulasTest, ProximalShareIsTheWayFromTheSampler) {
  EXPECT_NEAR(ProximalShare(7, 4), 2.0 / 3, 1e-15);
  EXPECT_EQ(ProximalShare(7, 6), 0);
  EXPECT_EQ(ProximalShare(7, 7), 0);
  EXPECT_EQ(ProximalShare(7, -1), 0);
}

TEST(FormulasTest, SecondMomentMaskDropsTheFewestThatSuffice) {
  Rng rng(21);
  for (int round = 0; round < 50; ++round) {
    RandomBatch b(rng, 3, 5);
    const double threshold = 0.03 * rng.Uniform();
    const auto mask = SecondMomentMask(b.behave_logp, b.old_logp, threshold, b.cells);
    double kept_sum = 0, kept_max = 0, dropped_min = INFINITY, kept = 0, dropped = 0;
    for (size_t t = 0; t < mask.size(); ++t) {
      if (b.cells.mask[t] == 0) continue;
      const double square = std::pow(b.behave_logp[t] - b.old_logp[t], 2);
      if (mask[t] != 0) {
        kept_sum += square, kept += 1, kept_max = std::max(kept_max, square);
      } else {
        dropped += 1, dropped_min = std::min(dropped_min, square);
      }
    }
    if (b.cells.Tokens() == 0) continue;
    EXPECT_GE(kept, 1);
    EXPECT_LE(kept_max, dropped_min);
    EXPECT_TRUE(kept_sum / kept < threshold || kept == 1);
    if (dropped > 0) {
      EXPECT_GE((kept_sum + dropped_min) / (kept + 1), threshold);  // one fewer would not do
    }
  }
}

TEST(FormulasTest, RejectionRulesByHand) {
  const Cells cells = Cells::Padded(2, 3, {1, 1, 0, 1, 1, 1});
  const std::vector<double> train = {-1, -1, NAN, -2, -2, -2}, rollout = {-1.1, -2, 0, -2, -2, -2.05};
  // l = 0.1, 1 | 0, 0, 0.05
  const auto run = [&](const char* criterion, const char* threshold, std::optional<double> low = {},
                       std::optional<double> high = {}) {
    const auto rules = ParseRejectRules(criterion, threshold, low, high);
    EXPECT_TRUE(rules.ok()) << rules.status().ToString();
    return Reject(rules.value(), 20.0, train, rollout, cells);
  };
  EXPECT_EQ(run("token_ratio", "", 0.9, 1.2).mask, (std::vector<uint8_t>{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(run("geometric_ratio", "", 0.9, 1.2).mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
  const RejectResult sum = run("seq_sum_k1", "2");  // -1.1 is below -log 2, -0.05 is not
  EXPECT_EQ(sum.mask, (std::vector<uint8_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_NEAR(sum.masked_frac, 0.4, 1e-12);
  EXPECT_NEAR(sum.seq_masked_frac, 0.5, 1e-12);
  EXPECT_EQ(run("token_k1,seq_max_k2", "0.2_1.5,0.6").mask, (std::vector<uint8_t>{1, 1, 0, 1, 1, 1}));
  EXPECT_EQ(run("token_k3", "0.01").mask, (std::vector<uint8_t>{1, 0, 0, 1, 1, 1}));
  EXPECT_EQ(ParseRejectRules("seq_max_k1", "2", {}, {}).status().code(), StatusCode::kUnimplemented);
  EXPECT_EQ(ParseRejectRules("token_k3", "abc", {}, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(FormulasTest, FirstFitDecreasingKeepsTheBudget) {
  const std::vector<int64_t> lengths = {3, 5, 2, 7, 1};
  EXPECT_EQ(FirstFitDecreasing(lengths, 9).value(), (std::vector<std::vector<int64_t>>{{2, 3}, {0, 1, 4}}));
}

}  // namespace
}  // namespace tidepool::algorithms
