#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/row_scores.h"

namespace tidepool::tasks {
namespace {

Verdict Sorting(const RewardInput& in) {
  const auto score = SortingRowScore(in, 1.0);
  return score ? Ok(*score) : BadData(kSortingFields);
}

}  // namespace

TP_PLUGIN(Reward, sorting) {
  return {
      .doc = "reasoning-gym's rule: 1 for a JSON list of the right length, in order, each number within 1.0",
      .make = WithoutArgument<Sorting>};
}

}  // namespace tidepool::tasks
