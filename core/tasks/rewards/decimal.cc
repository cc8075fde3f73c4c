#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

Verdict Decimal(const RewardInput& in) {
  if (in.answer.empty()) return NoAnswer();
  const auto tagged = ExtractAnswer(in.text);
  return Ok(DecimalScore(tagged ? *tagged : std::string(Trim(in.text)), in.answer));
}

}  // namespace

TP_PLUGIN(Reward, decimal) {
  return {.doc = "1 if equal as decimals, a share if the answer is part of the response (chain sums)",
          .make = WithoutArgument<Decimal>};
}

}  // namespace tidepool::tasks
