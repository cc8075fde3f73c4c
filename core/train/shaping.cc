#include "core/train/shaping.h"

#include "core/algorithms/group_advantages.h"
#include "core/algorithms/statistics.h"

namespace tidepool::train {

std::vector<double> RepetitionPenalties(const ShapingOptions& o, std::span<const Row> rows) {
  std::vector<double> penalties;
  if (o.repetition_penalty == 0) return penalties;
  for (const Row& row : rows) {
    const std::vector<int64_t> ids(row.response.begin(), row.response.end());
    penalties.push_back(algorithms::RepetitionPenalty(ids, o.repetition_ngram, -o.repetition_penalty));
  }
  return penalties;
}

std::vector<double> ShapedRewards(const ShapingOptions& o, std::span<const Row> rows,
                                  std::span<const double> repetition, algorithms::RunningMoments& moments) {
  std::vector<double> r;
  std::vector<int64_t> group;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    double x = row.reward;
    if (o.truncated) x = algorithms::TruncatedReward(x, row.truncated, *o.truncated);
    if (o.overlong_buffer > 0) {
      x += algorithms::OverlongPenalty(static_cast<double>(row.response_tokens()),
                                       static_cast<double>(o.max_new_tokens), o.overlong_buffer,
                                       o.overlong_factor);
    }
    if (!repetition.empty()) x += repetition[i];
    r.push_back(x);
    group.push_back(row.gid.value);
  }
  if (o.length_penalty > 0) {
    for (const std::vector<size_t>& members : algorithms::GroupRows(group)) {
      std::vector<double> rewards;
      std::vector<int64_t> tokens, turns(members.size(), 1);
      for (const size_t i : members) {
        rewards.push_back(r[i]);
        tokens.push_back(rows[i].response_tokens());
      }
      // Centred by the formula; the mean is put back, for an estimator has a baseline of its own.
      const double mean = algorithms::Mean(rewards);
      const std::vector<double> shaped =
          algorithms::LengthShapedAdvantages(rewards, tokens, tokens, turns, {.w_out = o.length_penalty});
      for (size_t k = 0; k < members.size(); ++k) r[members[k]] = mean + shaped[k];
    }
  }
  if (o.bias != 0 || o.scale != 1) {
    for (double& x : r) x = algorithms::ScaleReward(x, o.bias, o.scale);
  }
  const algorithms::NormaliseOptions normalise{
      .mean = o.mean, .deviation = o.deviation, .leave_one_out = o.leave_one_out};
  if (o.running) {
    for (const double x : r) moments.Add(x);
    for (double& x : r) x = moments.Normalise(x, normalise.eps);
  }
  if (o.mean != Scope::kNone || o.deviation != Scope::kNone) {
    r = algorithms::NormaliseRewards(r, group, normalise);
  }
  return r;
}

}  // namespace tidepool::train
