// Rows that are not trained on, judged by the present weights. Forward only: neither gradients nor the
// optimizer are touched, and the same weights and rows give the same numbers.

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "core/base/hash.h"
#include "core/base/statistics.h"
#include "core/train/trainer_impl.h"

namespace tidepool::train {
namespace {

bool HasLoss(const Row& row, size_t token) { return row.loss_mask.empty() || row.loss_mask[token] != 0; }

// Sum over the tokens of a row that have loss, and their number.
std::pair<double, double> SumOf(const Row& row, std::span<const float> values) {
  double sum = 0, tokens = 0;
  for (size_t t = 0; t < values.size(); ++t) {
    if (!HasLoss(row, t)) continue;
    sum += double{values[t]};
    tokens += 1;
  }
  return {sum, tokens};
}

// Mean over tokens, as training has it. Rows are the draws of its interval: the tokens of one hang together
// (ratio estimator, Cochran, Sampling Techniques, 6.3).
MeanInterval MeanOverTokens(const std::vector<std::pair<double, double>>& rows) {
  double sum = 0, tokens = 0, squares = 0;
  for (const auto& [of, n] : rows) {
    sum += of;
    tokens += n;
  }
  if (tokens == 0) return {};
  const double mean = sum / tokens, n = static_cast<double>(rows.size());
  for (const auto& [of, count] : rows) squares += (of - mean * count) * (of - mean * count);
  const double deviation = n < 2 ? 0 : std::sqrt(squares / (n - 1)) * n / tokens;
  return IntervalOfMean(mean, deviation, static_cast<int64_t>(rows.size()));
}

// All that a model's log-probabilities of rows come from, packing and masks included: its weights, and the
// rows in their order. The digest of weights costs what one costs after a step, far less than a forward.
uint64_t KeyOf(const model::Weights& weights, std::span<const Row> rows) {
  uint64_t key = weights.Digest();
  const auto add = [&key](const auto& values) {
    key = Hash64(std::as_bytes(std::span(values)), Mix64(key ^ values.size()));
  };
  for (const Row& row : rows) {
    add(row.prompt);
    add(row.response);
    add(row.loss_mask);
  }
  return key;
}

}  // namespace

StatusOr<std::map<std::string, double>> Trainer::Evaluate(std::span<const Row> rows,
                                                          const ProgressCallback& progress) try {
  TrainerImpl& m = *impl_;
  const TrainerOptions& o = m.options;
  if (!m.pairs() && o.objective != JobKind::kSft)
    return FailedPrecondition("trainer: only rows of sft and pairs are evaluated here");
  TP_RETURN_IF_ERROR(m.Check(rows, /*recorded=*/false));
  std::vector<int64_t> places;
  for (size_t i = 0; i < rows.size(); ++i) places.push_back(static_cast<int64_t>(i));
  if (!o.part.whole() && !m.part_ranks)
    return FailedPrecondition("trainer: the ranks that have the other parts of the model are not there");
  const ProgressCallback agreed = m.Agreed(progress);
  const auto pass = [&](int64_t number, int64_t passes) -> ScoringProgress {
    return [&agreed, number, passes](int64_t done, int64_t total) {
      return agreed == nullptr || agreed({number * total + done, passes * total});
    };
  };
  std::map<std::string, double> metrics;
  if (o.objective == JobKind::kSft) {
    std::vector<std::vector<float>> right;
    TP_ASSIGN_OR_RETURN(const auto lp, ScoreRows(*m.decoder, m.weights, m.scoring(/*replay=*/false), rows,
                                                 places, {.likeliest = &right, .progress = pass(0, 1)}));
    std::vector<std::pair<double, double>> loss, agreed;
    for (size_t i = 0; i < rows.size(); ++i) {
      loss.push_back(SumOf(rows[i], lp[i]));
      loss.back().first *= -1;
      agreed.push_back(SumOf(rows[i], right[i]));
    }
    const MeanInterval mean = MeanOverTokens(loss);
    metrics = {{"sft/loss", mean.mean},
               {"sft/loss/low", mean.low},
               {"sft/loss/high", mean.high},
               {"sft/token_accuracy", MeanOverTokens(agreed).mean},
               {"sft/total", static_cast<double>(rows.size())}};
    return metrics;
  }
  const Pairs pairs = PairsOf(rows, places);
  TokenSums sums;
  double loss = 0;
  if (o.objective == JobKind::kRewardModel) {
    TP_ASSIGN_OR_RETURN(const auto values, m.value->Values(WithScorePlace(rows), places, pass(0, 1)));
    std::vector<double> scores;
    for (const auto& row : values) scores.push_back(row.back());
    loss = ScoreLossOf(o, pairs, scores, sums).loss;
  } else {
    const uint64_t key = KeyOf(*m.companions.reference, rows);
    // A rank that is new has them not, and then all compute them again: they wait for each other inside.
    TP_ASSIGN_OR_RETURN(const bool kept,
                        Agree(m.held_out.key == key && m.held_out.totals.size() == rows.size()));
    const int64_t passes = kept ? 1 : 2;
    const auto totals = [&](const model::Decoder& decoder, const model::Weights& by,
                            int64_t number) -> StatusOr<std::vector<double>> {
      TP_ASSIGN_OR_RETURN(const auto lp, ScoreRows(decoder, by, m.scoring(/*replay=*/false), rows, places,
                                                   {.progress = pass(number, passes)}));
      std::vector<double> all;
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto [sum, tokens] = SumOf(rows[i], lp[i]);
        all.push_back(o.length_average ? sum / std::max(1.0, tokens) : sum);
      }
      return all;
    };
    TP_ASSIGN_OR_RETURN(const std::vector<double> policy, totals(*m.decoder, m.weights, 0));
    if (!kept) {
      TP_ASSIGN_OR_RETURN(std::vector<double> fresh, totals(*m.reference, *m.companions.reference, 1));
      m.held_out = {key, std::move(fresh)};
    }
    const std::vector<double>& reference = m.held_out.totals;
    loss = PreferenceOf(o, pairs, policy, reference, sums).loss;
  }
  PairMetrics(o.objective, loss, sums, metrics);
  metrics[std::string(Name(o.objective)) + "/total"] = static_cast<double>(pairs.size());
  return metrics;
} catch (...) {
  return AtTheDoor(*impl_->options.device);
}

}  // namespace tidepool::train
