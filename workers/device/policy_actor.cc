#include "workers/device/policy_actor.h"

#include <string>

#include "core/policy/fragment.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<Actor>> PolicyActor::Create(const JobConfig& config, model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const policy::PolicyTrainerOptions options, policy::OptionsFromJob(config));
  TP_ASSIGN_OR_RETURN(auto trainer, policy::PolicyTrainer::Create(weights, options));
  return std::unique_ptr<Actor>(new PolicyActor(std::move(trainer)));
}

StatusOr<train::StepResult> PolicyActor::Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                              const TrainProgress& progress, const RankShare& share) {
  std::vector<policy::FragmentRow> batch;
  for (const BatchRow& in : rows) {
    const SampleId& tid = in.trajectory.tid;
    const sample::Segment* played = in.trajectory.Fragment();
    if (played == nullptr) return InvalidArgument("row " + ToString(tid) + " is no fragment");
    auto fragment = policy::DecodeFragment(played->fragment);
    if (!fragment.ok()) return InvalidArgument("row " + ToString(tid) + ": " + fragment.status().message());
    policy::FragmentRow row{
        .tid = tid, .version = {}, .masked = false, .mine = true, .fragment = std::move(*fragment)};
    if (!played->versions.empty()) row.version = played->versions.front().first;  // it is of one version
    row.masked = in.trajectory.LossMask(in.without_loss).front() == 0;
    row.mine = share.Has(in.gid);
    batch.push_back(std::move(row));
  }
  return trainer_->Step(
      step, version, batch,
      [&](const train::StepProgress& p) {
        return progress.trains("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
      },
      share.group);
}

}  // namespace tidepool::workers
