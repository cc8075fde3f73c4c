#include "workers/device/policy_actor.h"

#include <string>

#include "core/policy/fragment.h"
#include "core/train/step_metrics.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<Actor>> PolicyActor::Create(const JobConfig& config, model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const policy::PolicyTrainerOptions options, policy::OptionsFromJob(config));
  TP_ASSIGN_OR_RETURN(auto trainer, policy::PolicyTrainer::Create(weights, options));
  return std::unique_ptr<Actor>(new PolicyActor(std::move(trainer)));
}

StatusOr<train::StepResult> PolicyActor::Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                              const TrainProgress& progress, comm::Collective* group) {
  std::vector<policy::FragmentRow> batch;
  Status usable;
  for (const BatchRow& in : rows) {
    const SampleId& tid = in.trajectory.tid;
    const sample::Segment* played = in.trajectory.Fragment();
    if (played == nullptr) {
      usable = InvalidArgument("row " + ToString(tid) + " is no fragment");
      break;
    }
    policy::FragmentRow row{
        .tid = tid, .version = {}, .masked = false, .mine = !in.trajectory.is_outline(), .fragment = {}};
    if (row.mine) {
      auto fragment = policy::DecodeFragment(played->fragment);
      if (!fragment.ok()) {
        usable = InvalidArgument("row " + ToString(tid) + ": " + fragment.status().message());
        break;
      }
      row.fragment = std::move(*fragment);
    }
    if (!played->versions.empty()) row.version = played->versions.front().first;  // it is of one version
    row.masked = in.trajectory.LossMask(in.without_loss).front() == 0;
    batch.push_back(std::move(row));
  }
  TP_RETURN_IF_ERROR(train::AgreeOnRows(group, usable, "policy trainer"));
  return trainer_->Step(
      step, version, batch,
      [&](const train::StepProgress& p) {
        return progress.trains("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
      },
      group);
}

}  // namespace tidepool::workers
