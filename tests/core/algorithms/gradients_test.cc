// Every gradient against central differences. Where a loss holds factors constant (sg), the surrogate whose
// derivative is meant is written out here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/distillation.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/preference.h"
#include "core/algorithms/value_loss.h"
#include "tests/core/algorithms/random_batch.h"

namespace tidepool::algorithms {
namespace {

constexpr double kStep = 1e-6;

// d f / d x[i] by central differences, with the tolerance of a double's cube root.
double Difference(std::vector<double>& x, size_t i, const std::function<double()>& f) {
  const double at = x[i];
  x[i] = at + kStep;
  const double up = f();
  x[i] = at - kStep;
  const double down = f();
  x[i] = at;
  return (up - down) / (2 * kStep);
}

Aggregation ModeOf(const LossEntry& entry) {
  Aggregation a;
  a.mode = *FromWord<AggregationMode>(entry.aggregation);
  return a;
}

// The scalar whose derivative in lp is the documented gradient; lp0 is where factors are held.
double Surrogate(const PolicyLossSpec& spec, const RandomBatch& b, const std::vector<double>& lp,
                 const std::vector<double>& lp0, const std::vector<double>& weights,
                 const std::vector<uint8_t>& selected) {
  const std::string& name = spec.loss->name;
  const Cells& c = b.cells;
  double loss = 0;
  if (name == "gspo" || name == "cispo" || name == "onpolicy" || name == "topr" || name == "vespo" ||
      name == "ref_kl") {
    for (int64_t i = 0; i < c.rows(); ++i) {
      double sum = 0, n = 0;
      for (int64_t t = c.begin[static_cast<size_t>(i)]; t < c.begin[static_cast<size_t>(i) + 1]; ++t) {
        if (c.valid(t)) sum += lp0[static_cast<size_t>(t)] - b.old_logp[static_cast<size_t>(t)], n += 1;
      }
      for (int64_t k = c.begin[static_cast<size_t>(i)]; k < c.begin[static_cast<size_t>(i) + 1]; ++k) {
        if (!c.valid(k)) continue;
        const auto t = static_cast<size_t>(k);
        const double a = b.advantages[t];
        double x = 0;
        if (name == "gspo") {
          const double s = std::exp(sum / n) * std::exp(lp[t] - lp0[t]);
          x = std::max(-a * s, -a * std::clamp(s, 1 - 3e-4, 1 + 4e-4));
        } else if (name == "cispo") {
          x = -std::clamp(std::exp(lp0[t] - b.old_logp[t]), 0.0, 5.0) * a * lp[t];
        } else if (name == "onpolicy") {
          x = -a * std::exp(lp[t] - lp0[t]);
        } else if (name == "topr") {
          x = -(b.scores[static_cast<size_t>(i)] >= 0 ? 1 : std::min(1.0, std::exp(sum))) * a * lp[t];
        } else if (name == "vespo") {
          const double w = std::exp(sum), k1 = a >= 0 ? 2 : 3, la = a >= 0 ? 3 : 2;
          x = -std::pow(w, k1) * std::exp(la * (1 - w)) * a * lp[t];
        } else {
          const double d = lp[t] - b.behave_logp[t];
          const bool keep = std::exp(lp0[t]) - std::exp(b.behave_logp[t]) >= -0.2;
          x = (keep ? -(b.ref_logp[t] - lp0[t]) * std::exp(d) : 0) + 1e-3 * d * d;
        }
        loss += weights[t] * x;
      }
    }
    return loss;
  }
  PolicyBatch batch = b.Batch();
  batch.logp = lp;
  batch.selected = selected;
  return PolicyLoss(spec, c, batch, weights).value().loss;
}

TEST(GradientsTest, EveryPolicyLossAgreesWithDifferences) {
  for (const LossEntry& entry : PolicyLosses()) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(testing::Message() << entry.name << " seed " << seed);
      Rng rng(seed);
      RandomBatch b(rng, 4, 6);
      PolicyLossSpec spec{.loss = &entry, .options = Options::Make(entry.options, {}, /*fill=*/true).value()};
      const std::vector<double> weights = AggregationWeights(ModeOf(entry), b.cells).value();
      PolicyBatch clean = b.Batch();
      const std::vector<double> lp0 = Masked(b.logp, b.cells), advantages = Masked(b.advantages, b.cells);
      clean.logp = lp0;
      clean.advantages = advantages;
      const std::vector<uint8_t> selected = SelectTokens(spec, b.cells, clean);
      PolicyBatch batch = b.Batch();
      batch.selected = selected;
      const auto result = PolicyLoss(spec, b.cells, batch, weights);
      ASSERT_TRUE(result.ok()) << result.status().ToString();
      std::vector<double> lp = lp0;
      for (size_t t = 0; t < lp.size(); ++t) {
        if (b.cells.mask[t] == 0) {
          EXPECT_EQ(result.value().grad_logp[t], 0);
          continue;
        }
        const double expected =
            Difference(lp, t, [&] { return Surrogate(spec, b, lp, lp0, weights, selected); });
        EXPECT_NEAR(result.value().grad_logp[t], expected, 1e-6 * (1 + std::fabs(expected))) << "cell " << t;
      }
    }
  }
}

TEST(GradientsTest, KlEstimatorsAgreeWithDifferences) {
  for (const KlKind kind : {KlKind::kK1, KlKind::kAbs, KlKind::kK2, KlKind::kK3}) {
    for (const double d : {-3.0, -0.4, 0.2, 2.5}) {
      for (const std::optional<double> clamp : {std::optional<double>(), std::optional<double>(1.0)}) {
        for (const std::optional<double> out : {std::optional<double>(), std::optional<double>(0.7)}) {
          const KlOptions o{.kind = kind, .clamp_log = clamp, .clamp_out = out};
          const double up = KlEstimate(o, d - 1 + kStep, -1).value,
                       down = KlEstimate(o, d - 1 - kStep, -1).value;
          const KlToken k = KlEstimate(o, d - 1, -1);
          EXPECT_NEAR(k.slope, (up - down) / (2 * kStep), 1e-7);
          // The score term adds the estimate itself, and the k2 gradient replaces whatever there was.
          KlOptions score = o;
          score.score_term = true;
          const bool outside = clamp && std::fabs(d) > *clamp, clipped = out && std::fabs(k.value) >= *out;
          EXPECT_NEAR(KlEstimate(score, d - 1, -1).slope, clipped ? 0 : k.slope + (outside ? 0 : k.value),
                      1e-12);
          KlOptions straight = o;
          straight.straight_through_k2 = true;
          EXPECT_NEAR(KlEstimate(straight, d - 1, -1).slope, d, 1e-12);
          EXPECT_EQ(KlEstimate(straight, d - 1, -1).value, k.value);
        }
      }
    }
  }
}

TEST(GradientsTest, ExtrasOnALossAgreeWithDifferences) {
  Rng rng(11);
  RandomBatch b(rng, 5, 7);
  const LossEntry& ppo = *FindLoss("ppo");
  PolicyLossSpec spec{.loss = &ppo, .options = Options::Make(ppo.options, {}, true).value()};
  spec.opsm_delta = 0.02;
  spec.rollout_is = RolloutIsForm::kTis;
  spec.rollout_is_high = 1.1;
  spec.entropy_coef = 0.3;
  spec.kl_beta = 0.2;
  spec.kl = {.kind = KlKind::kK3};
  spec.kl_is_weighted = true;
  const std::vector<double> weights = AggregationWeights({}, b.cells).value();
  const auto loss = [&](const std::vector<double>& lp, const std::vector<double>& entropy) {
    PolicyBatch batch = b.Batch();
    batch.logp = lp;
    batch.entropy = entropy;
    return PolicyLoss(spec, b.cells, batch, weights).value();
  };
  std::vector<double> lp = Masked(b.logp, b.cells), entropy = Masked(b.entropy, b.cells);
  const PolicyLossResult at = loss(lp, entropy);
  EXPECT_NEAR(at.loss, at.policy_term - 0.3 * at.entropy_term + 0.2 * at.kl_term, 1e-12);
  for (size_t t = 0; t < lp.size(); ++t) {
    if (b.cells.mask[t] == 0) continue;
    EXPECT_NEAR(at.grad_logp[t], Difference(lp, t, [&] { return loss(lp, entropy).loss; }), 1e-7);
    EXPECT_NEAR(at.grad_entropy[t], Difference(entropy, t, [&] { return loss(lp, entropy).loss; }), 1e-7);
  }
}

TEST(GradientsTest, ValueLossesAgreeWithDifferences) {
  Rng rng(3);
  RandomBatch b(rng, 4, 6);
  std::vector<double> values = Masked(b.logp, b.cells);
  const std::vector<double> weights = AggregationWeights({}, b.cells).value();
  for (const ValueLossOptions& o : {ValueLossOptions{.clip = 0.2}, ValueLossOptions{},
                                    ValueLossOptions{.huber = true, .huber_delta = 0.3, .clip = 0.1}}) {
    const auto loss = [&] { return ValueLoss(o, values, b.old_logp, b.ref_logp, b.cells, weights); };
    const ValueLossResult at = loss();
    for (size_t t = 0; t < values.size(); ++t) {
      if (b.cells.mask[t] == 0) continue;
      EXPECT_NEAR(at.grad_values[t], Difference(values, t, [&] { return loss().loss; }), 1e-7);
    }
  }
}

TEST(GradientsTest, PreferenceAndDistillationAgreeWithDifferences) {
  std::vector<double> chosen = {-3, 2, 0.5}, rejected = {-2, 1, 4};
  const std::vector<double> margin = {0.5, 0, 1}, ref = {-2.5, 1, 1}, ref_rejected = {-2, 0.5, 3};
  const PairLoss rm = RewardModelLoss(chosen, rejected, margin, 0.01);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(rm.grad_chosen[i],
                Difference(chosen, i, [&] { return RewardModelLoss(chosen, rejected, margin, 0.01).loss; }),
                1e-7);
    EXPECT_NEAR(rm.grad_rejected[i],
                Difference(rejected, i, [&] { return RewardModelLoss(chosen, rejected, margin, 0.01).loss; }),
                1e-7);
  }
  for (const DpoOptions& o :
       {DpoOptions{.beta = 0.3, .label_smoothing = 0.1}, DpoOptions{.ipo = true, .beta = 0.5},
        DpoOptions{.ipo = true, .beta = 0.5, .label_smoothing = 0.1}}) {
    const DpoResult dpo = DpoLoss(o, chosen, rejected, ref, ref_rejected);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(dpo.grad_chosen[i],
                  Difference(chosen, i, [&] { return DpoLoss(o, chosen, rejected, ref, ref_rejected).loss; }),
                  1e-6);
      EXPECT_NEAR(
          dpo.grad_rejected[i],
          Difference(rejected, i, [&] { return DpoLoss(o, chosen, rejected, ref, ref_rejected).loss; }),
          1e-6);
    }
  }
  Rng rng(5);
  const int64_t vocab = 5;
  const Cells cells = Cells::Padded(1, 3, {1, 0, 1});
  std::vector<double> student, teacher;
  for (int64_t i = 0; i < 3 * vocab; ++i) {
    student.push_back(i / vocab == 1 ? NAN : 4 * rng.Uniform() - 2);
    teacher.push_back(4 * rng.Uniform() - 2);
  }
  for (const Divergence d : {Divergence::kMixed, Divergence::kJsd}) {
    for (const double w : {0.0, 0.3, 1.0}) {
      const DistillOptions o{d, w, 1.7};
      const DistillResult at = DistillLoss(o, student, teacher, vocab, cells);
      EXPECT_GT(at.loss, 0);
      for (size_t i = 0; i < student.size(); ++i) {
        if (std::isnan(student[i])) {
          EXPECT_EQ(at.grad_student[i], 0);
          continue;
        }
        EXPECT_NEAR(
            at.grad_student[i],
            Difference(student, i, [&] { return DistillLoss(o, student, teacher, vocab, cells).loss; }),
            1e-7);
      }
    }
  }
}

}  // namespace
}  // namespace tidepool::algorithms
