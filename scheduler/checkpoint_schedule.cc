#include "scheduler/checkpoint_schedule.h"

#include <algorithm>

namespace tidepool::scheduler {

StepNumber CheckpointSchedule::NewestStep(const CommittedCheckpoints& committed) {
  return committed.empty() ? StepNumber{} : committed.rbegin()->second.step;
}

bool CheckpointSchedule::Due(StepNumber step, bool must, const CommittedCheckpoints& committed,
                             TimePoint now) const {
  const StepNumber newest = NewestStep(committed);
  if (newest == step) return false;
  if (retry_after_ && retry_after_->first == step &&
      (now < retry_after_->second || (!must && step.value > 0)))
    return false;
  if (must || !newest.valid()) return true;
  // After a failure the next step tries again, whatever its number.
  return failures_ > 0 || (options_.every_steps > 0 && step.value % options_.every_steps == 0);
}

bool CheckpointSchedule::Failed(StepNumber step, TimePoint now) {
  retry_after_ = {step, now + FromSeconds(1)};
  return ++failures_ >= kFailuresToStop;
}

std::vector<int64_t> CheckpointSchedule::ToDelete(const CommittedCheckpoints& committed,
                                                  const std::set<StepNumber>& awaited) const {
  std::vector<int64_t> ids;
  auto excess = static_cast<int64_t>(committed.size()) - std::max<int64_t>(options_.keep, 2);
  for (const auto& [id, c] : committed) {
    if (excess-- <= 0) break;
    if (!awaited.contains(c.step)) ids.push_back(id);
  }
  return ids;
}

}  // namespace tidepool::scheduler
