#include "workers/device/policy_actor.h"

#include <string>

#include "core/policy/fragment.h"

namespace tidepool::workers {

namespace {

// Of `rows`; what is no fragment goes to `bad`.
std::vector<policy::FragmentRow> FragmentsOf(const std::vector<BatchRow>& rows, std::vector<BadRow>& bad) {
  std::vector<policy::FragmentRow> batch;
  for (const BatchRow& in : rows) {
    policy::FragmentRow& row = batch.emplace_back();
    row.tid = in.trajectory.tid;
    row.mine = !in.trajectory.is_outline();
    const sample::Segment* played = in.trajectory.Fragment();
    if (played == nullptr) {
      bad.push_back({row.tid, "it is no fragment"});
      continue;
    }
    if (row.mine) {
      auto fragment = policy::DecodeFragment(played->fragment);
      if (fragment.ok())
        row.fragment = std::move(*fragment);
      else
        bad.push_back({row.tid, fragment.status().message()});
    }
    if (!played->versions.empty()) row.version = played->versions.front().first;  // it is of one version
    row.masked = in.trajectory.LossMask(in.without_loss).front() == 0;
  }
  return batch;
}

train::ProgressCallback Telling(const TrainProgress& progress) {
  return [&progress](const train::StepProgress& p) {
    return progress.trains("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
  };
}

}  // namespace

StatusOr<std::unique_ptr<Actor>> PolicyActor::Create(const JobConfig& config, model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const policy::PolicyTrainerOptions options, policy::OptionsFromJob(config));
  TP_ASSIGN_OR_RETURN(auto trainer, policy::PolicyTrainer::Create(weights, options));
  return std::unique_ptr<Actor>(new PolicyActor(std::move(trainer)));
}

StatusOr<train::StepResult> PolicyActor::Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                              const TrainProgress& progress, const comm::RankGroups& groups,
                                              std::vector<BadRow>& bad) {
  return trainer_->Step(step, version, FragmentsOf(rows, bad), Telling(progress), groups.data, &bad);
}

StatusOr<std::unique_ptr<Actor>> SacActor::Create(const JobConfig& config, model::Weights& weights) {
  TP_ASSIGN_OR_RETURN(const policy::SacTrainerOptions options, policy::SacOptionsFromJob(config));
  TP_ASSIGN_OR_RETURN(auto trainer, policy::SacTrainer::Create(weights, options));
  return std::unique_ptr<Actor>(new SacActor(std::move(trainer)));
}

StatusOr<train::StepResult> SacActor::Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                           const TrainProgress& progress, const comm::RankGroups& groups,
                                           std::vector<BadRow>& bad) {
  return trainer_->Step(step, version, FragmentsOf(rows, bad), Telling(progress), groups.data, &bad);
}

}  // namespace tidepool::workers
