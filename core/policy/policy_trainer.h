#pragma once
// One step of PPO on fragments: values and log-probabilities under the present weights, GAE with bootstrap at
// truncation, then epochs of shuffled minibatches with the policy loss, value loss and entropy of
// core/algorithms (the functions that language models are trained with) and AdamW of core/train.
//
//   truncated at t:  r_t + gamma V(final observation);  any end cuts both the value and the lambda sum
//   loss = PolicyLoss - entropy_coef H + value_coef ValueLoss, each a mean over the cells of its minibatch
//
// `old` of the ratio are the weights at the start of the step, as for language models; the recorded log-probs
// are the behaviour's. With a group, ranks list the same rows, each has the fragments of its own and computes
// what follows from them, and numbers of the whole batch are exchanged; the result is that of one rank, up to
// rounding. Deterministic: a function of weights, fragments,
// options and step. Not thread-safe: one thread owns a PolicyTrainer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/algorithms/policy_loss.h"
#include "core/algorithms/returns.h"
#include "core/algorithms/value_loss.h"
#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/comm/collective.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/memory_use.h"
#include "core/policy/fragment_rows.h"
#include "core/policy/network.h"
#include "core/train/optimizer.h"
#include "core/train/schedule.h"
#include "core/train/trainer.h"

namespace tidepool::policy {

struct PolicyTrainerOptions {
  PolicySpec policy;
  algorithms::PolicyLossSpec loss;     // of single cells
  double gamma = 0.99, lambda = 0.95;  // of GAE
  bool whiten = true;                  // advantages over the whole batch
  algorithms::ValueLossOptions value;
  double value_coef = 0.5;
  train::AdamWOptions optimizer;
  train::ScheduleOptions schedule;
  int64_t epochs = 10;
  int64_t minibatches = 4;  // optimizer updates an epoch
  uint64_t seed = 1;        // of the shuffles
};
// From a checked job; errors name the key.
StatusOr<PolicyTrainerOptions> OptionsFromJob(const JobConfig& job);

// Advantages and returns of one fragment [steps, instances]. values: [steps + 1, instances]; final_values: of
// final_observations. The environment form of GAE with the bootstrap put into the rewards.
algorithms::ReturnsAndAdvantages FragmentAdvantages(const Fragment& fragment, std::span<const float> values,
                                                    std::span<const float> final_values, double gamma,
                                                    double lambda);

class PolicyTrainer {
 public:
  // `weights` outlives this and is updated in place.
  static StatusOr<std::unique_ptr<PolicyTrainer>> Create(model::Weights& weights,
                                                         const PolicyTrainerOptions& options);

  // kInvalidArgument: a fragment that is none of this policy, nothing changed; kAborted: `progress` said
  // stop, between two updates; other errors come from the group. `bad`: as of train::Trainer::Step.
  StatusOr<train::StepResult> Step(StepNumber step, Version version, std::span<const FragmentRow> rows,
                                   const train::ProgressCallback& progress = nullptr,
                                   comm::Collective* group = nullptr, std::vector<BadRow>* bad = nullptr);

  std::vector<train::NamedBytes> State() { return optimizer_->State(); }
  [[nodiscard]] int64_t updates() const { return optimizer_->updates(); }
  void ReleaseScratch() { gradients_.Release(); }
  [[nodiscard]] model::MemoryUse held() const {  // without the weights
    return {.optimizer = optimizer_->bytes(), .gradients = gradients_.held_bytes()};
  }

 private:
  PolicyTrainer(model::Weights& weights, const PolicyTrainerOptions& options)
      : weights_(weights),
        options_(options),
        network_(options.policy, weights),
        on_device_(weights, device_),
        gradients_(weights, *device_) {}

  struct StepData;
  struct StepSums;
  // What the weights say of every cell before any update.
  StatusOr<StepData> Observe(std::span<const FragmentRow> rows, Version version, comm::Collective* group);
  // One optimizer update on cells of the step, those of all ranks.
  Status Update(const StepData& data, std::span<const int64_t> minibatch, double rate, bool first_pass,
                comm::Collective* group, StepSums& sums);

  model::Weights& weights_;
  const PolicyTrainerOptions options_;
  Network network_;
  const std::shared_ptr<device::CpuDevice> device_ =
      std::make_shared<device::CpuDevice>();  // network_ computes on the host
  model::DeviceWeights on_device_;
  model::Gradients gradients_;
  std::unique_ptr<train::AdamW> optimizer_;
};

}  // namespace tidepool::policy
