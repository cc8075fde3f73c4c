#pragma once
// What a run's evaluations on held-out rows say: one measure, with its 95 % interval, before training, at the
// newest evaluation and at the best one. Where answers were generated and graded it is from the journal's
// EVAL_RESULT records, else (sft, pairs) from what the trainer said of these rows in the steps' metrics. Pure
// functions.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/journal_records.h"

namespace tidepool::observe {

// accuracy: share of answers whose first reward is above 0.5, where that reward was always 0 or 1.
// reward: mean of the whole reward, where it was not. return: mean return of episodes of a control task. Of
// pairs, accuracy: share that is ranked right. loss: of sft, nats a token, less is better.
struct HeldOutValue {
  int64_t step = 0;
  double value = 0, low = 0, high = 0;
  int64_t total = 0;  // answers that were graded
  int64_t lost = 0;   // and those that could not be, which are in no number
  std::string why_lost;
  std::optional<bool> ties = std::nullopt;  // true: of pairs, all margins are 0, so that none is ranked
};
struct HeldOut {
  std::string measure;
  std::optional<HeldOutValue> before;      // of step 0
  std::optional<HeldOutValue> last, best;  // after it; of equal ones the earliest is the best
  std::optional<HeldOutValue> ungraded;    // the newest evaluation that lost all of its answers
  std::map<std::string, double> more;      // what else the trainer says of them, newest: loss, margin, ...
};
TP_FIELDS(HeldOutValue, step, value, low, high, total, lost, why_lost, ties)
TP_FIELDS(HeldOut, measure, before, last, best, ungraded, more)

// What steps' metrics say of held-out rows, by step; step 0 is before training.
using TrainerFigures = std::map<StepNumber, std::map<std::string, double>>;
// Takes those of one more line of metrics; those of later steps, which a restore undid, go.
void AddFigures(StepNumber step, const std::map<std::string, double>& metrics, TrainerFigures& figures);

// Empty without an evaluation that asked or judged a row.
std::optional<HeldOut> HeldOutOf(const std::map<StepNumber, record::EvalResult>& evals,
                                 const TrainerFigures& figures = {});

// "99.6 %" of an accuracy, "0.431" of anything else.
std::string HeldOutText(const std::string& measure, double value);
// The same of an evaluation; "every pair ties" where that is so.
std::string HeldOutShort(const std::string& measure, const HeldOutValue& value);
// "99.6 % (95 % interval 97.8 to 99.9, 256 rows)", or "... 249 of 256 rows; 7 lost, the last: why)"; "every
// pair ties", as it is before the first step, whose policy is the reference
std::string HeldOutText(const std::string& measure, const HeldOutValue& value);

// A line each for people: "accuracy before: 20.3 % (...)", then the value after the last of `steps` ("after")
// or at the newest evaluated step, then the best one where another step has it.
std::vector<std::string> HeldOutLines(const HeldOut& h, int64_t steps);

// What an evaluation writes to metrics.jsonl (docs/metrics.md).
std::map<std::string, double> EvalMetrics(const record::EvalResult& result);

}  // namespace tidepool::observe
