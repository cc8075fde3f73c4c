#pragma once
// checkpoint.keep_best: which checkpoint is the best by an evaluation on record. Its model is kept in best/,
// whatever becomes of the checkpoint: one that could be restored would hold every sample that was trained
// since, because a restore trains them again. Pure.

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "core/base/ids.h"
#include "core/base/journal_records.h"

namespace tidepool::scheduler {

// The value of a metric of docs/metrics.md in an evaluation: eval/accuracy, eval/reward/mean,
// eval/reward/<name>/mean, eval/return/mean. Nothing where it has none.
std::optional<double> EvalValue(const record::EvalResult& result, std::string_view metric);

// What trainers said of held-out rows (record::StepCommit), by step and metric; step 0 is before training.
using HeldOutFigures = std::map<StepNumber, std::map<std::string, double, std::less<>>>;
// The metric is one of those: eval/loss, eval/sft/..., eval/dpo/..., eval/reward_model/...
bool OfTrainer(std::string_view metric);

struct BestCheckpoint {
  StepNumber step;
  double value = 0;
  friend bool operator==(const BestCheckpoint&, const BestCheckpoint&) = default;
};
// Of the steps that were evaluated and are among `checkpointed` the one with most of the metric, or least of
// a loss; of equal ones the earliest.
std::optional<BestCheckpoint> FindBest(const std::map<StepNumber, record::EvalResult>& evals,
                                       const HeldOutFigures& figures,
                                       const std::set<StepNumber>& checkpointed, std::string_view metric);

// More of the metric, or less of a loss; of equal ones the earlier step.
bool IsBetter(const BestCheckpoint& a, const BestCheckpoint& b, std::string_view metric);

}  // namespace tidepool::scheduler
