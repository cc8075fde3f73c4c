// One result, however rows are cut into ranks, micro-batches and packs.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/losses/losses.h"
#include "tests/core/algorithms/random_batch.h"

namespace tidepool::algorithms {
namespace {

template <typename T>
std::vector<T> Take(const std::vector<T>& x, const std::vector<int64_t>& from) {
  std::vector<T> out;
  for (const int64_t i : from) out.push_back(x[static_cast<size_t>(i)]);
  return out;
}

// Only the valid cells of the rows, packed; `from` as in Cells::Rows.
Cells PackedRows(const Cells& cells, const std::vector<int64_t>& rows, std::vector<int64_t>& from) {
  Cells packed;
  from.clear();
  for (const int64_t row : rows) {
    for (int64_t t = cells.begin[static_cast<size_t>(row)]; t < cells.begin[static_cast<size_t>(row) + 1];
         ++t) {
      if (!cells.valid(t)) continue;
      from.push_back(t);
      packed.mask.push_back(1);
    }
    packed.begin.push_back(static_cast<int64_t>(packed.mask.size()));
  }
  return packed;
}

TEST(PlansTest, EveryLossInEveryModeIsIndependentOfThePlan) {
  const std::vector<std::string> modes = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean",
                                          "seq-mean-token-sum-norm", "rollout-mean-token-mean"};
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Rng rng(seed);
    const int64_t rows = 7;
    RandomBatch b(rng, rows, 6);
    for (const LossEntry& entry : PolicyLosses()) {
      for (const std::string& mode : modes) {
        SCOPED_TRACE(testing::Message() << entry.name << " " << mode << " seed " << seed);
        Aggregation a{.mode = *FromWord<AggregationMode>(entry.row_value ? "seq-mean" : mode), .scale = 32};
        for (int64_t i = 0; i < rows; ++i) a.rollout.push_back(i / 2);
        PolicyLossSpec spec{.loss = &entry, .options = Options::Make(entry.options, {}, true).value()};
        if (entry.extras) {
          spec.rollout_is = RolloutIsForm::kSequenceMaskTis;
          spec.rollout_is_high = 1.05;
          spec.opsm_delta = 0.05;
          spec.kl_beta = 0.1;
        }
        const std::vector<double> weights = AggregationWeights(a, b.cells).value();
        PolicyBatch clean = b.Batch();
        const std::vector<double> lp = Masked(b.logp, b.cells), advantages = Masked(b.advantages, b.cells);
        clean.logp = lp;
        clean.advantages = advantages;
        const std::vector<uint8_t> selected = SelectTokens(spec, b.cells, clean);
        PolicyBatch whole = b.Batch();
        whole.selected = selected;
        const PolicyLossResult expected = PolicyLoss(spec, b.cells, whole, weights).value();

        // Rows in a random order, dealt to random pieces; some stay empty.
        std::vector<int64_t> order(static_cast<size_t>(rows));
        std::iota(order.begin(), order.end(), int64_t{0});
        for (size_t i = order.size(); i > 1; --i)
          std::swap(order[i - 1], order[static_cast<size_t>(rng.Uniform() * static_cast<double>(i))]);
        std::vector<std::vector<int64_t>> pieces(4);
        for (const int64_t row : order) pieces[static_cast<size_t>(rng.Uniform() * 4)].push_back(row);
        double loss = 0;
        std::vector<double> grad(b.cells.mask.size(), 0.0);
        for (size_t p = 0; p < pieces.size(); ++p) {
          std::vector<int64_t> from;
          const Cells part =
              p % 2 == 0 ? PackedRows(b.cells, pieces[p], from) : b.cells.Rows(pieces[p], from);
          const auto lp_part = Take(b.logp, from), adv = Take(b.advantages, from),
                     old = Take(b.old_logp, from), beh = Take(b.behave_logp, from),
                     ref = Take(b.ref_logp, from), scores = Take(b.scores, pieces[p]),
                     w = Take(weights, from);
          const auto versions = Take(b.versions, from);
          const auto chosen = Take(selected, from);
          const PolicyBatch batch{.logp = lp_part,
                                  .advantages = adv,
                                  .old_logp = old,
                                  .behave_logp = beh,
                                  .ref_logp = ref,
                                  .versions = versions,
                                  .scores = scores,
                                  .selected = chosen};
          const auto piece = PolicyLoss(spec, part, batch, w);
          ASSERT_TRUE(piece.ok()) << piece.status().ToString();
          loss += piece.value().loss;
          for (size_t t = 0; t < from.size(); ++t)
            grad[static_cast<size_t>(from[t])] += piece.value().grad_logp[t];
        }
        EXPECT_NEAR(loss, expected.loss, 1e-12 * (1 + std::fabs(expected.loss)));
        for (size_t t = 0; t < grad.size(); ++t) EXPECT_NEAR(grad[t], expected.grad_logp[t], 1e-12);
      }
    }
  }
}

TEST(PlansTest, TokenLossesNeedNoWholeRows) {
  Rng rng(4);
  RandomBatch b(rng, 5, 8);
  for (const LossEntry& entry : PolicyLosses()) {
    if (entry.whole_rows || entry.whole_batch) continue;
    SCOPED_TRACE(entry.name);
    const PolicyLossSpec spec{.loss = &entry, .options = Options::Make(entry.options, {}, true).value()};
    ASSERT_FALSE(NeedsWholeRows(spec));
    const std::vector<double> weights = AggregationWeights({}, b.cells).value();
    const PolicyLossResult expected = PolicyLoss(spec, b.cells, b.Batch(), weights).value();
    // All cells as rows of their own.
    Cells single = b.cells;
    single.begin.clear();
    for (int64_t t = 0; t <= b.cells.size(); ++t) single.begin.push_back(t);
    PolicyBatch batch = b.Batch();
    const std::vector<double> scores(static_cast<size_t>(b.cells.size()), 0.0);
    batch.scores = scores;
    const PolicyLossResult cut = PolicyLoss(spec, single, batch, weights).value();
    EXPECT_NEAR(cut.loss, expected.loss, 1e-12);
    EXPECT_EQ(cut.grad_logp, expected.grad_logp);
  }
}

}  // namespace
}  // namespace tidepool::algorithms
