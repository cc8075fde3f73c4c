#pragma once
// The actors of policies of control tasks: core/policy on fragments. PolicyActor trains each batch and
// forgets it, SacActor keeps transitions and trains on those that it draws.

#include <memory>
#include <utility>
#include <vector>

#include "core/policy/policy_trainer.h"
#include "core/policy/sac_trainer.h"
#include "workers/device/actor.h"

namespace tidepool::workers {

class PolicyActor : public Actor {
 public:
  // `weights` outlive this and are updated in place; new ones that were written from outside are read at the
  // next step.
  static StatusOr<std::unique_ptr<Actor>> Create(const JobConfig& config, model::Weights& weights);

  StatusOr<train::StepResult> Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                   const TrainProgress& progress, const comm::RankGroups& groups,
                                   std::vector<BadRow>& bad) override;
  std::vector<train::NamedBytes> State() override { return trainer_->State(); }
  [[nodiscard]] uint64_t Digest(uint64_t weights) const override { return weights; }
  [[nodiscard]] int64_t updates() const override { return trainer_->updates(); }
  void ReleaseScratch() override { trainer_->ReleaseScratch(); }
  [[nodiscard]] model::MemoryUse held() const override { return trainer_->held(); }

 private:
  explicit PolicyActor(std::unique_ptr<policy::PolicyTrainer> trainer) : trainer_(std::move(trainer)) {}

  std::unique_ptr<policy::PolicyTrainer> trainer_;
};

class SacActor : public Actor {
 public:
  // As PolicyActor's.
  static StatusOr<std::unique_ptr<Actor>> Create(const JobConfig& config, model::Weights& weights);

  StatusOr<train::StepResult> Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                   const TrainProgress& progress, const comm::RankGroups& groups,
                                   std::vector<BadRow>& bad) override;
  std::vector<train::NamedBytes> State() override { return trainer_->State(); }
  [[nodiscard]] uint64_t Digest(uint64_t weights) const override { return trainer_->Digest(weights); }
  [[nodiscard]] int64_t updates() const override { return trainer_->changes(); }
  void ReleaseScratch() override { trainer_->ReleaseScratch(); }
  [[nodiscard]] model::MemoryUse held() const override { return trainer_->held(); }

 private:
  explicit SacActor(std::unique_ptr<policy::SacTrainer> trainer) : trainer_(std::move(trainer)) {}

  std::unique_ptr<policy::SacTrainer> trainer_;
};

}  // namespace tidepool::workers
