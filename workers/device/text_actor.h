#pragma once
// The actor of a language model: core/train with the further models that the job needs.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "workers/device/actor.h"
#include "workers/device/model_reader.h"

namespace tidepool::workers {

class TextActor : public Actor {
 public:
  // `config` and `weights` outlive this; `weights` are updated in place. A critic begins from its folder:
  // what it has learned is in the state that is restored next, or there is none yet.
  // `shard`: what is here of the model and of the optimizer's state.
  static StatusOr<std::unique_ptr<Actor>> Create(const JobConfig& config, model::Weights& weights,
                                                 ModelReader& models, const Shard& shard);

  StatusOr<train::StepResult> Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                   const TrainProgress& progress, const comm::RankGroups& groups,
                                   std::vector<BadRow>& bad) override;
  Status Preview(std::vector<BatchRow> rows, const Version& version) override;
  [[nodiscard]] bool HasPreview() const override { return trainer_->HasPreview(); }
  StatusOr<train::Scored> PreviewPiece() override { return trainer_->PreviewPiece(); }
  std::vector<train::NamedBytes> State() override { return trainer_->State(); }
  void WeightsChanged() override { trainer_->WeightsChanged(); }
  [[nodiscard]] uint64_t Digest(uint64_t weights) const override { return trainer_->Digest(weights); }
  [[nodiscard]] int64_t updates() const override { return trainer_->updates(); }
  void ReleaseScratch() override { trainer_->ReleaseScratch(); }
  [[nodiscard]] model::MemoryUse held() const override { return trainer_->held(); }
  [[nodiscard]] int64_t further_bytes() const override;

 private:
  TextActor(const JobConfig& config, std::string model_dir)
      : config_(config), model_dir_(std::move(model_dir)) {}
  // Held-out rows of sft, or pairs, judged by the trainer where it is time: into the step's metrics.
  // kAborted: `progress.evaluates` returned false, and there are none.
  Status Evaluate(StepNumber step, bool before, const TrainProgress& progress,
                  std::map<std::string, double>& metrics);

  const JobConfig& config_;
  const std::string model_dir_;
  std::unique_ptr<model::Weights> reference_, teacher_, critic_;
  // Read once, when they are first needed, because the whole data file is read with them.
  std::optional<std::vector<train::Row>> held_out_;
  std::unique_ptr<train::Trainer> trainer_;
};

}  // namespace tidepool::workers
