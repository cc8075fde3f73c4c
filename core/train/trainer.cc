#include "core/train/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>

#include "core/model/decoder.h"
#include "core/train/packing.h"
#include "core/train/step_metrics.h"

namespace tidepool::train {
namespace {

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

bool Valid(const Row& row, size_t t) { return row.loss_mask.empty() || row.loss_mask[t] != 0; }

int64_t ValidTokens(const Row& row, const LossOptions& loss) {
  if (loss.mask_truncated && row.truncated) return 0;
  if (row.loss_mask.empty()) return static_cast<int64_t>(row.response.size());
  return std::count_if(row.loss_mask.begin(), row.loss_mask.end(), [](uint8_t m) { return m != 0; });
}

}  // namespace

StatusOr<TrainerOptions> OptionsFromJob(const JobConfig& job) {
  TrainerOptions o;
  if (job.job != "rl" && job.job != "sft") return Unimplemented("job is '" + job.job + "'; the trainer knows rl and sft");
  o.objective = job.job == "sft" ? Objective::kSupervised : Objective::kPolicy;
  if (o.objective == Objective::kPolicy) {
    TP_ASSIGN_OR_RETURN(o.loss, ResolveLoss(job.algorithm, job.rollout.max_new_tokens));
    o.temperature = job.rollout.temperature;
    if (!(o.temperature > 0)) {
      return InvalidArgument("rollout.temperature is " + std::to_string(o.temperature) + "; training needs a value above 0 (greedy samples have no gradient)");
    }
  }
  const TrainConfig& t = job.train;
  o.optimizer = {.beta1 = t.beta1, .beta2 = t.beta2, .eps = t.adam_eps, .weight_decay = t.weight_decay, .max_grad_norm = t.max_grad_norm};
  TP_ASSIGN_OR_RETURN(o.schedule.kind, ParseSchedule(t.schedule));
  o.schedule.peak = t.learning_rate;
  o.schedule.min_ratio = t.min_learning_rate_ratio;
  o.schedule.warmup_steps = t.warmup_steps;
  o.schedule.steps = t.steps;
  o.epochs = t.epochs;
  o.minibatches = t.minibatches;
  o.micro_batch_tokens = t.micro_batch_tokens;
  o.recompute = t.recompute;
  o.deterministic = job.deterministic;
  return o;
}

struct Trainer::Impl {
  Impl(model::Weights& w, const TrainerOptions& o)
      : weights(w), options(o), decoder(w, {.deterministic = o.deterministic}), gradients(w) {}

  // What a token of the batch is worth: filled once a step.
  struct RowPlan {
    double advantage = 0;
    double weight = 0;   // of each valid token
    bool used = false;   // has a valid token
  };

  model::Weights& weights;
  const TrainerOptions options;
  model::Decoder decoder;
  model::Gradients gradients;
  std::unique_ptr<AdamW> optimizer;

  [[nodiscard]] Status Check(std::span<const Row> rows, bool recorded) const;
  std::vector<float> PairLogProbs(const PackedBatch& packed);
  // [row][response token]; rows that are not wanted stay empty.
  template <typename Wanted>
  StatusOr<std::vector<std::vector<float>>> LogProbs(std::span<const Row> rows, Wanted wanted);
  Status MicroStep(const Batch& batch, const std::vector<int64_t>& micro, const std::vector<RowPlan>& plan,
                   const std::vector<std::vector<float>>* old, bool first_pass, TokenSums& sums, StepTimes& times, int64_t& computed);
};

Status Trainer::Impl::Check(std::span<const Row> rows, bool recorded) const {
  const int64_t vocab = weights.spec().vocab_size;
  for (const Row& row : rows) {
    const std::string who = "row " + ToString(row.tid) + ": ";
    const size_t n = row.response.size();
    if (row.prompt.empty()) return InvalidArgument(who + "the prompt is empty; at least one token is needed");
    for (const auto* ids : {&row.prompt, &row.response}) {
      for (const int32_t id : *ids) {
        if (id < 0 || id >= vocab) {
          return InvalidArgument(who + "token id " + std::to_string(id) + " is outside the model's vocabulary of " + std::to_string(vocab));
        }
      }
    }
    if (recorded && row.logprobs.size() != n) {
      return InvalidArgument(who + std::to_string(row.logprobs.size()) + " log-probs for " + std::to_string(n) + " response tokens");
    }
    if ((!row.versions.empty() && row.versions.size() != n) || (!row.loss_mask.empty() && row.loss_mask.size() != n) ||
        (!row.log_kept.empty() && row.log_kept.size() != n)) {
      return InvalidArgument(who + "versions, log_kept or loss_mask differ in length from the " + std::to_string(n) + " response tokens");
    }
    if (!std::isfinite(row.reward)) return InvalidArgument(who + "the reward is not finite");
    const int64_t length = static_cast<int64_t>(row.prompt.size() + n);
    if (length > weights.spec().max_position) {
      return InvalidArgument(who + std::to_string(length) + " tokens, but the model has " + std::to_string(weights.spec().max_position) + " positions");
    }
  }
  return OkStatus();
}

// Forward only, by the engine's call.
std::vector<float> Trainer::Impl::PairLogProbs(const PackedBatch& packed) {
  const model::ModelSpec& s = weights.spec();
  const auto type = at::TensorOptions().dtype(weights.dtype() == model::DType::kFloat32 ? at::kFloat : at::kBFloat16);
  const auto tokens = static_cast<int64_t>(packed.ids.size());
  at::Tensor k = at::empty({s.layers, tokens, s.kv_heads, s.head_size}, type), v = at::empty(k.sizes(), type);
  const at::Tensor hidden = decoder.Forward(
      {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs}, {&k, &v});
  const auto pairs = static_cast<int64_t>(packed.sources.size());
  std::vector<float> logprobs(packed.sources.size());
  for (int64_t from = 0; from < pairs; from += options.head_rows) {
    const int64_t n = std::min(options.head_rows, pairs - from);
    const at::Tensor index = at::from_blob(const_cast<int32_t*>(packed.sources.data() + from), {n}, at::TensorOptions().dtype(at::kInt));
    model::TokenLogProbs(decoder.Logits(at::index_select(hidden, 0, index)), std::span(packed.targets).subspan(static_cast<size_t>(from), static_cast<size_t>(n)),
                         static_cast<float>(options.temperature), std::span(logprobs).subspan(static_cast<size_t>(from), static_cast<size_t>(n)));
  }
  return logprobs;
}

Status Trainer::Impl::MicroStep(const Batch& batch, const std::vector<int64_t>& micro, const std::vector<RowPlan>& plan,
                                const std::vector<std::vector<float>>* old, bool first_pass, TokenSums& sums,
                                StepTimes& times, int64_t& computed) {
  Stopwatch watch;
  const PackedBatch packed = Pack(batch.rows, micro);
  computed += static_cast<int64_t>(packed.ids.size());
  auto [hidden, saved] = decoder.ForwardTraining(
      {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs}, options.recompute);
  times.forward += watch.Lap();

  // Which row tokens each pair serves.
  struct Use { int64_t row; size_t t; };
  std::vector<std::vector<Use>> uses(packed.sources.size());
  for (size_t k = 0; k < packed.rows.size(); ++k) {
    const Row& row = batch.rows[static_cast<size_t>(packed.rows[k])];
    if (!plan[static_cast<size_t>(packed.rows[k])].used) continue;
    for (size_t t = 0; t < row.response.size(); ++t) {
      if (Valid(row, t)) uses[static_cast<size_t>(packed.pair_of[k][t])].push_back({packed.rows[k], t});
    }
  }
  std::vector<int32_t> wanted;  // pairs that a valid token needs
  for (size_t p = 0; p < uses.size(); ++p) {
    if (!uses[p].empty()) wanted.push_back(static_cast<int32_t>(p));
  }

  // Rows of several pairs receive a sum of gradients, so it is gathered in float32.
  at::Tensor dhidden = at::zeros(hidden.sizes(), at::TensorOptions().dtype(at::kFloat));
  const bool with_entropy_gradient = options.loss.entropy_coef != 0 && options.objective == Objective::kPolicy;
  for (size_t from = 0; from < wanted.size(); from += static_cast<size_t>(options.head_rows)) {
    const size_t n = std::min(static_cast<size_t>(options.head_rows), wanted.size() - from);
    std::vector<int32_t> sources(n), targets(n);
    for (size_t i = 0; i < n; ++i) {
      sources[i] = packed.sources[static_cast<size_t>(wanted[from + i])];
      targets[i] = packed.targets[static_cast<size_t>(wanted[from + i])];
    }
    const at::Tensor index = at::from_blob(sources.data(), {static_cast<int64_t>(n)}, at::TensorOptions().dtype(at::kInt));
    const at::Tensor rows = at::index_select(hidden, 0, index);
    at::Tensor logits = decoder.Logits(rows);
    std::vector<float> lp(n), entropy(n), lse(n), dlp(n, 0.0F), dentropy(with_entropy_gradient ? n : 0, 0.0F);
    model::TokenLogProbs(logits, targets, static_cast<float>(options.temperature), lp, entropy, lse);
    for (size_t i = 0; i < n; ++i) {
      double slope = 0, entropy_slope = 0;
      for (const Use& use : uses[static_cast<size_t>(wanted[from + i])]) {
        const Row& row = batch.rows[static_cast<size_t>(use.row)];
        const RowPlan& p = plan[static_cast<size_t>(use.row)];
        TokenLoss token;
        double before = lp[i];
        if (options.objective == Objective::kSupervised) {
          token.value = -lp[i];
          token.derivative = -1;
        } else {
          const double recorded = row.logprobs[use.t];
          if (old != nullptr) before = (*old)[static_cast<size_t>(use.row)][use.t];
          token = PolicyLoss(options.loss, lp[i], before, recorded, p.advantage);
          const bool same = row.versions.empty() || row.versions[use.t] == batch.version;
          if (first_pass && same) sums.AddGap(before, recorded);
          entropy_slope -= p.weight * options.loss.entropy_coef;
        }
        sums.AddToken(token, p.weight, lp[i], before, entropy[i], p.advantage);
        slope += p.weight * token.derivative;
      }
      dlp[i] = static_cast<float>(slope);
      if (with_entropy_gradient) dentropy[i] = static_cast<float>(entropy_slope);
    }
    model::TokenLogProbsBackward(logits, targets, static_cast<float>(options.temperature), lse,
                                 with_entropy_gradient ? std::span<const float>(entropy) : std::span<const float>(), dlp, dentropy);
    dhidden.index_add_(0, index, decoder.LogitsBackward(rows, logits, gradients).to(at::kFloat));
  }
  times.head += watch.Lap();
  decoder.Backward(std::move(saved), dhidden.to(hidden.scalar_type()), gradients);
  times.backward += watch.Lap();
  return OkStatus();
}

Trainer::Trainer() = default;
Trainer::~Trainer() = default;

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(model::Weights& weights, const TrainerOptions& o) {
  if (!(o.temperature > 0)) return InvalidArgument("trainer: temperature must be above 0");
  if (o.epochs < 1 || o.minibatches < 1) return InvalidArgument("train.epochs and train.minibatches must be at least 1");
  if (o.micro_batch_tokens < 1 || o.head_rows < 1) return InvalidArgument("train.micro_batch_tokens must be at least 1");
  if (!(o.schedule.peak >= 0) || !std::isfinite(o.schedule.peak)) return InvalidArgument("train.learning_rate must be at least 0");
  std::unique_ptr<Trainer> t(new Trainer());
  t->impl_ = std::make_unique<Impl>(weights, o);
  TP_ASSIGN_OR_RETURN(t->impl_->optimizer, AdamW::Create(weights, o.optimizer));
  return t;
}

template <typename Wanted>
StatusOr<std::vector<std::vector<float>>> Trainer::Impl::LogProbs(std::span<const Row> rows, Wanted wanted) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
    if (wanted(i)) places.push_back(i);
  }
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, options.micro_batch_tokens));
  std::vector<std::vector<float>> result(rows.size());
  for (const auto& micro : micros) {
    const PackedBatch packed = Pack(rows, micro);
    const std::vector<float> logprobs = PairLogProbs(packed);
    for (size_t k = 0; k < packed.rows.size(); ++k) {
      for (const int32_t pair : packed.pair_of[k]) result[static_cast<size_t>(packed.rows[k])].push_back(logprobs[static_cast<size_t>(pair)]);
    }
  }
  return result;
}

StatusOr<std::vector<std::vector<float>>> Trainer::LogProbs(std::span<const Row> rows) try {
  TP_RETURN_IF_ERROR(impl_->Check(rows, /*recorded=*/false));
  return impl_->LogProbs(rows, [](int64_t) { return true; });
} catch (const std::exception& e) {  // LibTorch throws; this is the door
  return Internal(std::string("trainer: ") + e.what());
}

StatusOr<StepResult> Trainer::Step(const Batch& batch, const ProgressCallback& progress, comm::Collective* group) try {
  Impl& m = *impl_;
  const TrainerOptions& o = m.options;
  Stopwatch total, watch;
  StepTimes times;
  if (batch.rows.empty()) return InvalidArgument("trainer: step " + std::to_string(batch.step.value) + " has no rows");
  if (batch.step.value < 1) return InvalidArgument("trainer: step " + std::to_string(batch.step.value) + "; steps count from 1");
  TP_RETURN_IF_ERROR(m.Check(batch.rows, /*recorded=*/o.objective == Objective::kPolicy));
  if (!batch.mine.empty() && (group == nullptr || batch.mine.size() != batch.rows.size())) {
    return InvalidArgument("trainer: a share of the rows needs a group of ranks and one mark for each of the " + std::to_string(batch.rows.size()) + " rows");
  }
  const auto mine = [&](int64_t row) { return batch.mine.empty() || batch.mine[static_cast<size_t>(row)] != 0; };

  std::vector<Impl::RowPlan> plan(batch.rows.size());
  std::vector<int64_t> valid;
  int64_t total_tokens = 0;
  for (const Row& row : batch.rows) {
    valid.push_back(ValidTokens(row, o.loss));
    total_tokens += static_cast<int64_t>(row.prompt.size() + row.response.size());
  }
  if (o.objective == Objective::kPolicy) {
    std::vector<double> rewards;
    std::vector<GroupId> groups;
    for (const Row& row : batch.rows) rewards.push_back(row.reward), groups.push_back(row.gid);
    const std::vector<double> a = GroupAdvantages(rewards, groups, o.loss.scale, o.loss.advantage_eps);
    for (size_t i = 0; i < a.size(); ++i) plan[i].advantage = a[i];
  }

  // What will be done: micro-batches by update.
  const std::vector<std::vector<int64_t>> minibatches = SplitGroups(batch.rows, o.minibatches);
  std::vector<std::vector<std::vector<int64_t>>> micros;
  int64_t todo = 0;
  for (const auto& mini : minibatches) {
    GlobalCounts counts;
    for (const int64_t i : mini) {
      counts.tokens += valid[static_cast<size_t>(i)];
      counts.sequences += valid[static_cast<size_t>(i)] > 0 ? 1 : 0;
    }
    for (const int64_t i : mini) {
      Impl::RowPlan& p = plan[static_cast<size_t>(i)];
      p.used = valid[static_cast<size_t>(i)] > 0;
      p.weight = TokenWeight(o.loss.aggregation, counts, valid[static_cast<size_t>(i)], o.loss.length_norm);
    }
    std::vector<int64_t> share;
    std::copy_if(mini.begin(), mini.end(), std::back_inserter(share), mine);
    TP_ASSIGN_OR_RETURN(auto parts, MicroBatches(batch.rows, share, o.micro_batch_tokens));
    todo += static_cast<int64_t>(parts.size()) * o.epochs;
    micros.push_back(std::move(parts));
  }

  std::optional<std::vector<std::vector<float>>> old;
  if (o.objective == Objective::kPolicy && o.epochs * static_cast<int64_t>(minibatches.size()) > 1) {
    TP_ASSIGN_OR_RETURN(old, m.LogProbs(batch.rows, mine));
  }

  StepResult result;
  TokenSums sums;
  int64_t computed = 0, done = 0;
  double grad_norm = 0;
  const double rate = LearningRate(o.schedule, batch.step.value);
  for (int64_t epoch = 0; epoch < o.epochs && result.finite; ++epoch) {
    for (size_t u = 0; u < micros.size() && result.finite; ++u) {
      m.gradients.Zero();
      for (const auto& micro : micros[u]) {
        if (progress != nullptr && !progress({done, todo})) {
          return Aborted("trainer: step " + std::to_string(batch.step.value) + " was stopped at micro-batch " + std::to_string(done) + " of " + std::to_string(todo));
        }
        TP_RETURN_IF_ERROR(m.MicroStep(batch, micro, plan, old.has_value() ? &*old : nullptr, epoch == 0, sums, times, computed));
        ++done;
      }
      watch.Lap();
      // Every rank learns what the others found before it decides, so all decide alike.
      double finite = std::isfinite(sums.loss) && std::isfinite(sums.entropy_loss) ? 0 : 1;
      if (group != nullptr) {
        TP_RETURN_IF_ERROR(group->AllReduceSum(std::span<double>(&finite, 1), "finite"));
        if (finite == 0) TP_RETURN_IF_ERROR(group->AllReduceSum(m.gradients.values(), "gradients"));
        times.reduce += watch.Lap();
      }
      result.finite = finite == 0;
      if (result.finite) {
        const UpdateResult update = m.optimizer->Update(m.gradients.values(), rate);
        result.finite = update.finite;
        grad_norm = std::max(grad_norm, update.grad_norm);
        if (!update.finite) grad_norm = update.grad_norm;
        result.updates += update.finite ? 1 : 0;
      }
      times.optimizer += watch.Lap();
    }
  }
  if (progress != nullptr) (void)progress({done, todo});
  watch.Lap();
  result.digest = m.weights.Digest();
  times.digest = watch.Lap();
  if (group != nullptr) {
    TP_RETURN_IF_ERROR(sums.AddOtherRanks(*group));
    TP_ASSIGN_OR_RETURN(const std::vector<uint64_t> digests, group->AllGather(result.digest, "digest"));
    for (size_t r = 0; r < digests.size(); ++r) {
      if (digests[r] != result.digest) {
        return Internal("trainer: after step " + std::to_string(batch.step.value) + " rank " + std::to_string(group->rank()) + " has other weights than rank " + std::to_string(r));
      }
    }
  }

  const bool policy = o.objective == Objective::kPolicy;
  const auto passes = static_cast<double>(std::max<int64_t>(1, result.updates));
  if (policy) RowMetrics(batch.rows, result.metrics);
  TokenMetrics(sums, policy, result.metrics);
  // Each update's loss is a sum of its own; the metric is their mean.
  if (policy) result.metrics["actor/pg_loss"] = sums.loss / passes;
  if (!policy) result.metrics["sft/loss"] = sums.loss / passes;
  result.metrics["actor/loss"] = (sums.loss - (policy ? o.loss.entropy_coef * sums.entropy_loss : 0.0)) / passes;
  result.metrics["actor/grad_norm"] = grad_norm;
  result.metrics["actor/lr"] = rate;
  result.metrics["actor/updates"] = static_cast<double>(result.updates);
  result.metrics["actor/nonfinite"] = result.finite ? 0 : 1;
  times.total = total.Lap();
  TimeMetrics(times, total_tokens, computed, result.metrics);
  return result;
} catch (const std::exception& e) {  // LibTorch throws; this is the door
  return Internal(std::string("trainer: ") + e.what());
}

std::vector<NamedBytes> Trainer::State() { return impl_->optimizer->State(); }

Status Trainer::LoadState(std::span<const NamedBytes> saved) {
  const std::vector<NamedBytes> live = State();
  if (saved.size() != live.size()) {
    return DataLoss("trainer state: " + std::to_string(saved.size()) + " parts were saved, " + std::to_string(live.size()) + " are expected");
  }
  for (size_t i = 0; i < live.size(); ++i) {
    if (saved[i].name != live[i].name || saved[i].bytes.size() != live[i].bytes.size()) {
      return DataLoss("trainer state: part " + std::to_string(i) + " is " + saved[i].name + " with " + std::to_string(saved[i].bytes.size()) +
                      " bytes, expected " + live[i].name + " with " + std::to_string(live[i].bytes.size()) + "; the checkpoint is of another model or dtype");
    }
  }
  for (size_t i = 0; i < live.size(); ++i) std::memcpy(live[i].bytes.data(), saved[i].bytes.data(), live[i].bytes.size());
  return OkStatus();
}

void Trainer::WeightsReplaced() { impl_->optimizer->ResetMaster(); }
void Trainer::ReleaseScratch() {
  impl_->decoder.ReleaseScratch();
  impl_->gradients.Release();
}
int64_t Trainer::updates() const { return impl_->optimizer->updates(); }

}  // namespace tidepool::train
