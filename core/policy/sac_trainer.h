#pragma once
// One step of soft actor-critic: fragments enter the replay store, then gradient steps on transitions that
// are drawn from it (core/algorithms/sac.h has the losses). A gradient step, in the order of
// stable-baselines3:
//
//   1  alpha by its loss, where it is automatic; 2 and 3 use the one from before
//   2  both critics by L_Q, on targets of the target critics
//   3  the actor by L_pi, through the critics as they are now
//   4  targets = (1 - tau) targets + tau critics
//
// Draws and noise are a function of (seed, step, what the store has taken in). Actor, critics and alpha have
// an AdamW of their own. With a group of ranks each gets the fragments of all, and makes the same step.
// Deterministic: a function of weights, state, fragments, options and step. Not thread-safe: one thread owns
// a SacTrainer.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/rng.h"
#include "core/comm/collective.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/memory_use.h"
#include "core/policy/fragment_rows.h"
#include "core/policy/mlp.h"
#include "core/policy/replay_store.h"
#include "core/train/optimizer.h"
#include "core/train/schedule.h"
#include "core/train/trainer.h"

namespace tidepool::policy {

struct SacTrainerOptions {
  PolicySpec policy;  // squashed
  ReplayConfig replay;
  SacConfig sac;
  train::AdamWOptions optimizer;
  train::ScheduleOptions schedule;  // of the actor's rate, and by its ratio of the others
  uint64_t seed = 1;
};
// From a checked job; errors name the key.
StatusOr<SacTrainerOptions> SacOptionsFromJob(const JobConfig& job);

class SacTrainer {
 public:
  // What is drawn for a gradient step: transitions, as rows behind each other, and noise.
  struct Batch {
    int64_t rows = 0;
    std::vector<float> seen, acted, next;  // [rows, observation_size], [rows, observation_size + actions]:
                                           // with the action that was taken; [rows, observation_size]
    std::vector<float> rewards, terminated;
    std::vector<double> noise, next_noise;  // [rows, actions]: of a_pi and of a'
  };
  struct Losses {
    double critic = 0, actor = 0, alpha = 0;  // alpha: the loss
    double q = 0, target = 0, logp = 0;       // means
    double critic_norm = 0, actor_norm = 0;   // of the gradients
    bool finite = true;
  };

  // `weights` (of the actor) outlives this and is updated in place. Critics start from options.seed.
  static StatusOr<std::unique_ptr<SacTrainer>> Create(model::Weights& weights,
                                                      const SacTrainerOptions& options);

  ~SacTrainer();

  // Errors as of PolicyTrainer::Step. Masked rows do not enter. Of a step that is stopped between two
  // gradient steps (kAborted) the state is that of none.
  StatusOr<train::StepResult> Step(StepNumber step, Version version, std::span<const FragmentRow> rows,
                                   const train::ProgressCallback& progress = nullptr,
                                   comm::Collective* group = nullptr, std::vector<BadRow>* bad = nullptr);
  // Learning rates. With a rate of 0 weights stay as they are; moments and targets move all the same.
  struct Rates {
    double actor = 0, critic = 0, alpha = 0;
  };
  Losses GradientStep(const Batch& batch, const Rates& rates);

  // Weights, moments, targets, alpha and the store.
  std::vector<train::NamedBytes> State();
  [[nodiscard]] uint64_t Digest(uint64_t weights) const;  // of weights, targets, alpha and the store;
                                                          // `weights`: of the actor
  // How often the state has changed: optimizer updates, and fragments that entered the store.
  [[nodiscard]] int64_t changes() const;
  void ReleaseScratch();
  [[nodiscard]] model::MemoryUse held() const;  // without the weights

  [[nodiscard]] double alpha() const;
  // Both of SoftCriticLayout; who writes there does so before a step.
  [[nodiscard]] model::Weights& critics() { return *critics_.weights; }
  [[nodiscard]] model::Weights& targets() { return *targets_; }
  [[nodiscard]] const ReplayStore& replay() const { return replay_; }
  // Of the last gradient step.
  [[nodiscard]] std::span<const float> actor_gradients() { return actor_.gradients->values(); }
  [[nodiscard]] std::span<const float> critic_gradients() { return critics_.gradients->values(); }

 private:
  // Weights with what updates them.
  struct Learned {
    std::unique_ptr<model::Weights> own;  // null: they are somebody else's
    model::Weights* weights = nullptr;
    std::unique_ptr<model::DeviceWeights> on_device;
    std::unique_ptr<model::Gradients> gradients;
    std::unique_ptr<train::AdamW> optimizer;
  };
  struct Networks;
  SacTrainer(const SacTrainerOptions& options, ReplayStore replay);
  StatusOr<Learned> Learn(std::unique_ptr<model::Weights> own, model::Weights* weights);
  void Draw(Rng& rows, Rng& noise, Batch& out) const;
  Status Take(std::span<const FragmentRow> rows, comm::Collective* group, int64_t& cells);
  double UpdateAlpha(std::span<const double> logp, double rate, Losses& losses);

  const SacTrainerOptions options_;
  const std::shared_ptr<device::CpuDevice> device_ = std::make_shared<device::CpuDevice>();
  ReplayStore replay_;
  Learned actor_, critics_, alpha_;
  std::unique_ptr<model::Weights> targets_;
  std::unique_ptr<Networks> networks_;
};

}  // namespace tidepool::policy
