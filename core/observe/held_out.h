#pragma once
// What a run's evaluations on held-out rows say, from its journal's EVAL_RESULT records: one measure, with
// its 95 % interval, before training, at the newest evaluation and at the best one. Pure functions.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/journal_records.h"

namespace tidepool::observe {

// accuracy: share of answers whose first reward is above 0.5, where that reward was always 0 or 1.
// reward: mean of the whole reward, where it was not. return: mean return of episodes of a control task.
struct HeldOutValue {
  int64_t step = 0;
  double value = 0, low = 0, high = 0;
  int64_t total = 0;  // answers that were graded
};
struct HeldOut {
  std::string measure;
  std::optional<HeldOutValue> before;      // of step 0
  std::optional<HeldOutValue> last, best;  // after it; of equal ones the earliest is the best
};
TP_FIELDS(HeldOutValue, step, value, low, high, total)
TP_FIELDS(HeldOut, measure, before, last, best)

// Empty without an evaluation that graded an answer.
std::optional<HeldOut> HeldOutOf(const std::map<StepNumber, record::EvalResult>& evals);

// "99.6 %" of an accuracy, "0.431" of anything else.
std::string HeldOutText(const std::string& measure, double value);
// "99.6 % (95 % interval 97.8 to 99.9, 256 rows)"
std::string HeldOutText(const std::string& measure, const HeldOutValue& value);

// A line each for people: "accuracy before: 20.3 % (...)", then the value after the last of `steps` ("after")
// or at the newest evaluated step, then the best one where another step has it.
std::vector<std::string> HeldOutLines(const HeldOut& h, int64_t steps);

// What an evaluation writes to metrics.jsonl (docs/metrics.md).
std::map<std::string, double> EvalMetrics(const record::EvalResult& result);

}  // namespace tidepool::observe
