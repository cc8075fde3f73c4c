#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

StatusOr<Reward> MakeGsm8k(const std::string& argument) {
  if (!argument.empty() && argument != "strict" && argument != "flexible") {
    return InvalidArgument("gsm8k: expected gsm8k:strict or gsm8k:flexible; found '" + argument + "'");
  }
  const Gsm8kMethod method = argument == "flexible" ? Gsm8kMethod::kFlexible : Gsm8kMethod::kStrict;
  return Reward([method](const RewardInput& in) {
    return in.answer.empty() ? NoAnswer() : Ok(Gsm8kScore(in.text, Trim(in.answer), method));
  });
}

}  // namespace

TP_PLUGIN(Reward, gsm8k) {
  return {.argument = "strict or flexible",
          .doc = "1 if the number after the last #### (flexible: the last number) is the answer",
          .make = MakeGsm8k};
}

}  // namespace tidepool::tasks
