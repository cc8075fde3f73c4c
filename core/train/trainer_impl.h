#pragma once
// Inside of the trainer, shared by its sources.

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/algorithms/rewards.h"
#include "core/device/page_buffer.h"
#include "core/model/decoder.h"
#include "core/train/early_columns.h"
#include "core/train/gradient_shard.h"
#include "core/train/part_ranks.h"
#include "core/train/scoring.h"
#include "core/train/step_metrics.h"
#include "core/train/step_plan.h"
#include "core/train/trainer.h"
#include "core/train/value_model.h"

namespace tidepool::train {

class Stopwatch {
 public:
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double s = std::chrono::duration<double>(now - from_).count();
    from_ = now;
    return s;
  }

 private:
  std::chrono::steady_clock::time_point from_ = std::chrono::steady_clock::now();
};

// Coefficients that move from step to step; part of the state where one of them does.
struct Controls {
  double kl_coef = 0;
  algorithms::RunningMoments rewards;
};

// What a frozen model says of rows that stay the same, kept from one evaluation to the next.
struct KeptTotals {
  uint64_t key = 0;            // of the model and the rows
  std::vector<double> totals;  // [row]; empty: nothing is kept
};

// What one step keeps while it runs.
struct StepContext {
  const Batch& batch;
  comm::RankGroups groups;
  const ProgressCallback& progress;
  int64_t done = 0, todo = 0;                             // micro-batches
  std::vector<std::vector<int64_t>> minibatches;          // rows of each update
  std::vector<std::vector<std::vector<int64_t>>> micros;  // [update][micro-batch]: this rank's rows
  std::vector<int64_t> mine;                              // this rank's rows
  TokenSums sums;
  StepTimes times;
  int64_t computed = 0;        // tokens
  int64_t gradient_bytes = 0;  // the most that was held of gradients that ranks share
  // Columns that were computed before the step.
  std::vector<std::string>
      early;                  // [rank] the columns that it has of each row, as bits; empty: nobody looked
  std::vector<uint8_t> late;  // [row] 1: some column of it had to be computed in the step
  Scored scored;
  [[nodiscard]] comm::Collective* group() const { return groups.data; }
  [[nodiscard]] int rank() const { return group() == nullptr ? 0 : group()->rank(); }
  // The first rank that has this column of the row; -1: none, so the one whose row it is computes it.
  [[nodiscard]] int EarlyRank(size_t row, Column column) const;
  // Scores that the step needs, too, are signs of progress, and may be called off.
  [[nodiscard]] ScoringProgress Progress() const {
    return [this](int64_t, int64_t) { return progress == nullptr || progress({done, todo}); };
  }
};

// What is updated, and how its micro-batches are computed.
struct UpdateTarget {
  model::Gradients& gradients;
  GradientShard* shard = nullptr;  // which keeps them; null: they are whole
  AdamW& optimizer;
  bool one_memory = false;  // of all ranks, for the weights
  double rate = 0;
  std::function<Status(size_t update)> before;  // may be null
  std::function<Status(const std::vector<int64_t>& micro, size_t update, int64_t epoch)> micro;
  std::function<bool()> finite;  // of what this rank summed up
  // Where ranks need each other's experts: in place of a micro-batch that others have and this one has not.
  // Null: they do not.
  std::function<void()> serve = nullptr;
};
struct UpdatesDone {
  bool finite = true;
  int64_t updates = 0;
  double grad_norm = 0;  // the largest, before clipping
};

// Rows that were given to Preview, and what is left to be computed of them.
struct Previewed {
  struct Part {
    Column column;
    std::vector<int64_t> places;  // in rows: a micro-batch
  };
  std::vector<Row> rows;
  std::deque<Part> parts;
};

struct TrainerImpl {
  TrainerImpl(model::Weights& w, const TrainerOptions& o, const Companions& c);

  model::Weights& weights;
  const TrainerOptions options;
  const Companions companions;
  // Of the trained weights; both null in kReward, whose model has its own.
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<model::Gradients> gradients;
  GradientShard* gradient_shard = nullptr;  // which keeps them; null: they are whole
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<ValueModel> value;  // kReward: of the trained weights. kPolicy: the critic
  std::unique_ptr<model::Decoder> reference, teacher;
  std::optional<PartRanks> part_ranks;    // of the other parts of the model
  comm::Collective* same_part = nullptr;  // of the same experts
  KeptTotals held_out;                    // of the reference
  EarlyColumns early;
  Previewed previewed;
  device::PageBuffer controls_memory;
  Controls* controls = nullptr;  // in controls_memory, or spare
  Controls spare;

  [[nodiscard]] bool rl() const { return options.objective == JobKind::kRl; }
  [[nodiscard]] bool pairs() const {
    return options.objective == JobKind::kDpo || options.objective == JobKind::kRewardModel;
  }
  [[nodiscard]] int64_t updates() const;  // ever made, the critic's too
  [[nodiscard]] AdamW& trained() const { return optimizer != nullptr ? *optimizer : value->optimizer(); }
  [[nodiscard]] Status CheckRow(const Row& row, bool recorded) const;          // says what is wrong with it
  [[nodiscard]] Status Check(std::span<const Row> rows, bool recorded) const;  // and with which
  [[nodiscard]] ScoringOptions scoring(bool replay) const {
    return {options.temperature, options.micro_batch_tokens, options.head_rows, replay};
  }

  // trainer.cc
  [[nodiscard]] uint64_t DigestWith(uint64_t weights_digest) const;  // and the critic's
  // Said by all ranks that have parts of the model, so that none is left in the midst of a computation. They
  // ask it as often.
  [[nodiscard]] ProgressCallback Agreed(const ProgressCallback& progress);
  [[nodiscard]] bool divides_experts() const {
    return !options.part.whole() && options.part.what == model::Cut::kExperts;
  }
  Status Split(StepContext& step) const;
  // Numbers of this rank's rows put in their cells, with those of the other ranks.
  StatusOr<std::vector<double>> Gather(const StepContext& step, const std::vector<std::vector<float>>& rows,
                                       const char* what) const;
  StatusOr<UpdatesDone> Update(StepContext& step, const UpdateTarget& target) const;
  Status PreparePolicy(StepContext& step, StepPlan& plan);
  Status FillWeights(const StepContext& step, StepPlan& plan) const;
  StatusOr<UpdatesDone> UpdateCritic(StepContext& step, const StepPlan& plan,
                                     std::map<std::string, double>& metrics);
  StatusOr<UpdatesDone> UpdateWeights(StepContext& step, StepPlan& plan);
  void Adapt(const Batch& batch, double kl);
  // The parts of Trainer::Step.
  [[nodiscard]] bool CriticAlone(const StepContext& step) const {  // it has not learned enough yet
    return rl() && value != nullptr && step.batch.step.value <= options.critic_warmup_steps;
  }
  // An error is of the batch as a whole; `bad` gets its rows that cannot be trained on.
  Status CheckStep(StepContext& step, std::vector<BadRow>& bad) const;
  // Optimizer updates over the batch: micro-batches, gradients of all ranks added up, one update each.
  StatusOr<UpdatesDone> MakeUpdates(StepContext& step, StepPlan& plan, Stopwatch& watch,
                                    std::map<std::string, double>& metrics);
  [[nodiscard]] double KlToReference(const StepContext& step, const StepPlan& plan) const;
  static void PolicyMetrics(const StepContext& step, const StepPlan& plan,
                            std::map<std::string, double>& metrics);
  // before: the coefficients that the step was made with.
  void LossMetrics(const StepContext& step, const UpdatesDone& done, const Controls& before,
                   std::map<std::string, double>& metrics) const;

  // columns.cc
  [[nodiscard]] bool NeedsOld(size_t minibatches) const;  // log-probs of the batch before the first update
  [[nodiscard]] std::vector<Column> NeededColumns(size_t minibatches) const;
  // [row][response token], of `rows` at `places`.
  StatusOr<std::vector<std::vector<float>>> Compute(Column column, std::span<const Row> rows,
                                                    std::span<const int64_t> places,
                                                    std::vector<std::vector<float>>* squares,
                                                    const ScoringProgress& progress) const;
  // Of the batch, but for rows of `skip` ([rows] 1: 0 for its tokens; empty: of all): what was computed early
  // and the rest.
  StatusOr<std::vector<double>> WholeColumn(StepContext& step, Column column,
                                            std::span<const uint8_t> skip = {},
                                            std::vector<double>* squares = nullptr) const;
  Status FindEarly(StepContext& step) const;  // every rank learns what the others have
  Status FillOld(StepContext& step, StepPlan& plan, bool squares) const;
  Status Preview(std::vector<Row> rows, const Version& version);
  StatusOr<Scored> PreviewPiece();
  void EarlyMetrics(const StepContext& step, std::map<std::string, double>& metrics);

  // micro_step.cc. One micro-batch: forward, loss, backward. share: of the update's tokens. untouched: by
  // the weights that the step began with.
  Status MicroStep(StepContext& step, const std::vector<int64_t>& micro, const StepPlan& plan,
                   int64_t pairs_of_update, double share, bool first_pass, bool untouched);

  // Logits of the student [n, V] become the gradient of sum weight(pair) divergence(pair), in place.
  void DistillChunk(size_t cells, const device::View& student, const device::View& taught,
                    const std::function<double(size_t)>& weight, TokenSums& sums) const;

  // pair_step.cc
  void CheckPairs(const StepContext& step, std::vector<BadRow>& bad) const;
  StatusOr<UpdatesDone> UpdateRewardModel(StepContext& step);
};

// In a catch: what was thrown as a status. LibTorch throws, and the trainer is the door, but of no memory and
// of a device that has failed: that goes on.
Status AtTheDoor(const device::Device& device);
Status CheckAnswer(const Row& row);  // of a pair: it has a token to be trained on
// Rows of a reward model: the score stands after the last token, so one more is appended that nothing reads.
std::vector<Row> WithScorePlace(std::span<const Row> rows);
// Of each pair among rows[places], chosen first. requires that CheckPairs found nothing.
using Pairs = std::vector<std::pair<size_t, size_t>>;
Pairs PairsOf(std::span<const Row> rows, std::span<const int64_t> places);
// What pairs cost, with what they score added to the sums. `policy`, `reference`: log-probs of answers;
// `scores`: of a reward model; all by the places that the pairs name.
algorithms::DpoResult PreferenceOf(const TrainerOptions& options, const Pairs& pairs,
                                   std::span<const double> policy, std::span<const double> reference,
                                   TokenSums& sums);
algorithms::PairLoss ScoreLossOf(const TrainerOptions& options, const Pairs& pairs,
                                 std::span<const double> scores, TokenSums& sums);
// <job>/loss, accuracy, margin, chosen, rejected.
void PairMetrics(JobKind job, double loss, const TokenSums& sums, std::map<std::string, double>& metrics);

}  // namespace tidepool::train
