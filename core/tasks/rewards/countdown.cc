#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/row_scores.h"

namespace tidepool::tasks {
namespace {

Verdict Countdown(const RewardInput& in) {
  const auto row = ReadCountdown(in);
  return row ? Ok(CountdownScore(in.text, row->numbers, row->target, 1.0, 0.1)) : BadData(kCountdownFields);
}

}  // namespace

TP_PLUGIN(Reward, countdown) {
  return {.doc = "TinyZero's rule: 1 right, 0.1 an answer tag on the last line, 0 none",
          .make = WithoutArgument<Countdown>};
}

}  // namespace tidepool::tasks
