// my_reward: what it rewards, in a sentence.
//
// To do: write the score. docs/adding_a_reward.md has the rules: what a reward is given
// (core/tasks/reward.h), when the score is 0 and when the row is at fault. Called from several threads; no
// clock, no files, no network (a reward that needs them is a server).
#include <algorithm>

#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

// As an example: 1 if the response, without white space at its ends, is as long as the answer; less the more
// it differs.
Verdict MyReward(const RewardInput& in) {
  if (in.answer.empty()) return NoAnswer();  // the row is at fault: dropped and counted, not trained on
  if (!in.ended) return Ok(0, "cut at the limit");  // a grader looked: 0 is a reward
  const auto length = static_cast<double>(Trim(in.text).size()),
             wanted = static_cast<double>(in.answer.size());
  return Ok(std::min(length, wanted) / std::max({length, wanted, 1.0}));
}

}  // namespace

TP_PLUGIN(Reward, my_reward) {
  // With `.argument = "what stands after the colon"`, `make` is a function of that text (contains.cc).
  return {.doc = "how near the length of the response is to that of the answer",
          .make = WithoutArgument<MyReward>};
}

}  // namespace tidepool::tasks
