#pragma once
// One optimizer step on a batch: forward, loss, hand-written backward, clip, AdamW.
//
// The forward is the model's one forward, so the log-probabilities recomputed here are those that
// the engine recorded when the weights are the same (equal bits where the device's products do not depend on
// the batch). So no second forward is needed for `old`: with one update a batch it is the step's own
// log-probability, with several it is what the engine recorded, for rows that the trained weights sampled.
// Losses are normalised by counts of the whole update, so the gradient does not depend on how rows
// are cut into micro-batches, up to rounding.
//
// Further models take part where the algorithm asks for them (Companions): a frozen reference (KL in the loss
// or in the reward, DPO), a frozen teacher (distillation), a critic, which is trained in the same step,
// before the policy, with a gradient, an optimizer and a learning rate of its own, and whose state is part of
// State().
//
// Part of what a step needs of a row does not depend on its batch: what the further models say of it, and
// log-probabilities of the weights that the step starts from. Preview computes it before the batch is there.
//
// Not thread-safe: one thread owns a Trainer. It uses at::get_num_threads() threads inside.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/algorithms/distillation.h"
#include "core/algorithms/preference.h"
#include "core/algorithms/registry.h"
#include "core/base/bad_row.h"
#include "core/base/config.h"
#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/model/memory_use.h"
#include "core/model/weights.h"
#include "core/train/batch.h"
#include "core/train/optimizer.h"
#include "core/train/schedule.h"
#include "core/train/shaping.h"

namespace tidepool::train {

struct TrainerImpl;  // trainer_impl.h

struct TrainerOptions {
  JobKind objective = JobKind::kRl;
  algorithms::ResolvedAlgorithm loss = algorithms::DefaultAlgorithm();  // supervised: aggregation only, -lp
  ShapingOptions shaping;
  std::vector<double> component_weights;  // of the reward functions
  ScheduleOptions critic_schedule;
  int64_t critic_warmup_steps = 0;  // steps that leave the policy alone
  algorithms::DpoOptions preference;
  bool length_average = false;    // preference: log-probs of a response are averaged
  double margin = 0, centre = 0;  // reward
  algorithms::DistillOptions distill;
  AdamWOptions optimizer;
  ScheduleOptions schedule;
  double temperature = 1.0;           // of the sampler: log-probs are of softmax(logits / temperature); > 0
  int64_t epochs = 1;                 // passes over the batch
  int64_t minibatches = 1;            // optimizer updates a pass
  int64_t micro_batch_tokens = 2048;  // computed together, at most
  int64_t head_rows = 0;              // rows of logits held at a time; 0: model::kHeadRows
  bool recompute = false;             // keep block inputs only
  double router_aux_coef = 0;         // of model::Decoder::LoadBalanceLoss; >= 0
  // Samplers attend to keys of the weights that sample, never to older ones; so what they recorded under the
  // trained weights is what a forward of these says.
  bool clean_records = true;
  // Columns of so many rows are kept from Preview to their step; 0: none is computed early. The same on all
  // ranks.
  int64_t early_rows = 0;
  std::shared_ptr<device::Device> device = nullptr;  // null: the CPU
  // The optimizer's state that is here, a critic's too. With one of several ranks every step has a group, in
  // which this is that rank. The update is the same to the bit.
  Shard shard = {};
  // With such a shard: of gradients, too, a rank keeps the sums of its own interval alone (gradient_shard.h).
  // Not of a part.
  bool share_gradients = false;
  // With such a shard: the weights' arena is one memory of all ranks (shared_weights.h) whenever the trainer
  // is used, and of what products read there is one part at a time. On a device whose memory is the host's;
  // not of a reward model.
  bool share_weights = false;
  // Gradients of a group are added up over the ranks after each micro-batch, as ranks have to that share
  // them; else once an update. Then the update is the same to the bit, with any number of micro-batches.
  bool sum_each_micro_batch = false;
  // Of the trained model, what this rank computes and has the optimizer's state of (core/model/cut.h); the
  // weights, which are the whole model's, are brought together after a step. The update is the same up to
  // rounding. Not with a value head. Where experts are divided, not with a shard; the update is that of ranks
  // with all experts to the bit, if these are as many as have a part, with sum_each_micro_batch and on a
  // device whose products do not depend on the batch.
  model::Part part = {};
};
// From a checked job; kInvalidArgument or kUnimplemented name the key.
StatusOr<TrainerOptions> OptionsFromJob(const JobConfig& job);
AdamWOptions OptimizerOf(const TrainConfig& config);
ScheduleOptions ScheduleOf(const TrainConfig& config);

// Models beside the one that is trained. All outlive the trainer; null: not there.
struct Companions {
  const model::Weights* reference = nullptr;
  const model::Weights* teacher = nullptr;
  model::Weights* critic = nullptr;  // has a value head; updated in place
};
// Which of them these options need.
struct NeededCompanions {
  bool reference = false, teacher = false, critic = false;
};
NeededCompanions Needed(const TrainerOptions& options);

// What reference, teacher and critic had to say of rows, once for each of them.
struct Scored {
  double tokens = 0, squares = 0;  // squares: of the lengths of the rows
};

struct StepResult {
  bool finite =
      true;  // false: the loss or a gradient was not finite and that update and later ones were not made
  int64_t updates = 0;  // of the trained weights; with one update a batch, 0 means that they did not change
  uint64_t digest = 0;  // Weights::Digest() after the step
  std::map<std::string, double> metrics;  // names of docs (actor/pg_loss, ...)
  Scored scored;                          // by this rank within the step
  uint64_t replay = 0;                    // as record::StepCommit has it
};

struct StepProgress {
  int64_t done = 0;  // micro-batches through forward and backward
  int64_t total = 0;
};
// Called between micro-batches. false: stop; the step returns kAborted, and the update in progress
// is not made.
using ProgressCallback = std::function<bool(const StepProgress&)>;

// Where the device has no memory for a computation, what computes throws c10::OutOfMemoryError, and where one
// with memory of its own fails, device::DeviceFailed; nothing but the destructor may be called then.
class Trainer {
 public:
  // `weights` outlives the trainer and is updated: once a step, where the device's memory is not the host's.
  // kInvalidArgument: a companion that is needed is missing or does not fit.
  static StatusOr<std::unique_ptr<Trainer>> Create(model::Weights& weights, TrainerOptions options,
                                                   const Companions& companions = {});
  ~Trainer();

  // kInvalidArgument if the batch is malformed or a row exceeds the token budget: nothing changed. `bad` then
  // has the rows that are at fault, the same on all ranks; none: it is the batch as a whole. What stands
  // there before was found by the caller: the rank refuses these rows whatever else they look like. With a
  // group, every rank calls this with a list of the same rows and the tokens of its own (batch.h): what
  // concerns the whole batch is exchanged, gradients and sums are added up over the ranks and every rank
  // makes the same update; one that ends up with other weights than the rest is kInternal. The result is that
  // of one rank with all rows, up to rounding. After an error the group is useless: leave it, so that the
  // others see it. kFailedPrecondition: the group is not that of TrainerOptions::shard; nothing changed.
  StatusOr<StepResult> Step(const Batch& batch, const ProgressCallback& progress = nullptr,
                            comm::Collective* group = nullptr, std::vector<BadRow>* bad = nullptr);
  // The ranks that have the other parts (TrainerOptions::part), for what follows; null: no more. They make
  // the same calls, and stop where one of them does. Where matrices are cut they have the same rows; where
  // experts are divided each has its own share of them, and they are neighbours in the group of a step.
  // `same`: of divided experts, the ranks that have the same ones, in the order of that group; null: no
  // others have. What a group cannot do is an error of the call that needs it.
  void Join(comm::Collective* others, comm::Collective* same = nullptr);
  // Whether all of them say yes; `yes` where there are none. Errors of the group.
  StatusOr<bool> Agree(bool yes);

  // Rows of one group that a step is expected to bring. Takes the place of what is left of those that were
  // given before. `version`: of the present weights. kInvalidArgument: they cannot be trained on.
  Status Preview(std::vector<Row> rows, Version version);
  [[nodiscard]] bool HasPreview() const;  // something of these rows is left to be computed
  // One micro-batch of them under one model. A step whose rows are these, by sample and payload, has the
  // result, on whichever rank it was computed: the same bits as its own where the device's products do not
  // depend on the batch. What updated weights said is forgotten.  requires HasPreview()
  StatusOr<Scored> PreviewPiece();

  // Rows that are not trained on. Pairs: what a step says of its own (<job>/loss, accuracy, margin, ...);
  // sft: sft/loss a token with its interval (low, high), sft/token_accuracy. <job>/total: rows or pairs.
  // The reference judges the same rows once: what it said is kept, eight bytes a row, while both stay as they
  // are. kFailedPrecondition: neither sft nor a job on pairs. kAborted: `progress`, called between
  // micro-batches, returned false.
  StatusOr<std::map<std::string, double>> Evaluate(std::span<const Row> rows,
                                                   const ProgressCallback& progress = nullptr);

  // Live bytes of weights, optimizer state and counters, those of a critic ("critic.weights", ...) and of
  // coefficients that move ("controls") included: read them for a checkpoint, on any thread while no step
  // runs; write into them to restore, then call WeightsChanged().
  std::vector<NamedBytes> State();
  // The bytes of `weights`, or of a companion's, were written from outside.
  void WeightsChanged();

  // Gives back the memory of activations and gradients between steps (a device that turns to rollout).
  void ReleaseScratch();
  // What is held at present, weights apart: optimizer (a critic's too), gradients, activations (logits
  // included).
  [[nodiscard]] model::MemoryUse held() const;

  [[nodiscard]] int64_t updates() const;  // AdamW updates ever made, the critic's too
  // Digest of the weights, which is `weights`, and, where there is one, of the critic.
  [[nodiscard]] uint64_t Digest(uint64_t weights) const;

 private:
  Trainer();
  std::unique_ptr<TrainerImpl> impl_;
};

}  // namespace tidepool::train
