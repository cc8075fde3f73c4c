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
#include "core/model/routing.h"
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

// The response tokens of all rows as cells, with what the losses are told of each. Filled once a step; weights and
// `selected` once an update.
struct StepPlan {
  algorithms::Cells cells;
  std::vector<double> advantages, weights;  // [cells]
  std::vector<double> scores;               // [rows]
  std::vector<uint8_t> selected;            // [cells]
};

StepPlan PlanStep(const Batch& batch, const TrainerOptions& o) {
  StepPlan plan;
  const bool policy = o.objective == Objective::kPolicy;
  std::vector<int64_t> groups;
  for (const Row& row : batch.rows) {
    const bool dropped = policy && o.loss.mask_truncated && row.truncated;
    for (size_t t = 0; t < row.response.size(); ++t) plan.cells.mask.push_back(!dropped && (row.loss_mask.empty() || row.loss_mask[t] != 0) ? 1 : 0);
    plan.cells.begin.push_back(static_cast<int64_t>(plan.cells.mask.size()));
    plan.scores.push_back(row.reward);
    groups.push_back(row.gid.value);
  }
  plan.weights.assign(plan.cells.mask.size(), 0.0);
  plan.selected.assign(plan.cells.mask.size(), 0);
  plan.advantages.assign(plan.cells.mask.size(), 0.0);
  // Over the whole batch: group statistics and whitening never see a part of it.
  if (policy) plan.advantages = o.loss.advantage->compute(o.loss.advantage_options, {&plan.cells, plan.scores, groups});
  return plan;
}

// The cells with all rows but these masked.
algorithms::Cells Only(const algorithms::Cells& cells, const std::vector<int64_t>& rows) {
  algorithms::Cells only = cells;
  std::fill(only.mask.begin(), only.mask.end(), uint8_t{0});
  for (const int64_t i : rows) {
    const int64_t from = cells.begin[static_cast<size_t>(i)], to = cells.begin[static_cast<size_t>(i) + 1];
    std::copy(cells.mask.begin() + from, cells.mask.begin() + to, only.mask.begin() + from);
  }
  return only;
}

Status CheckRouting(const model::ModelSpec& spec, const std::string& routing, size_t tokens) {
  if (routing.empty()) return OkStatus();
  const auto row = static_cast<size_t>(model::RoutingBytes(spec));
  if (row == 0) return InvalidArgument("routing was recorded, but the model has no experts");
  if (routing.size() % row != 0 || routing.size() / row > tokens) {
    return InvalidArgument(std::to_string(routing.size()) + " bytes of routing for " + std::to_string(tokens) + " response tokens of " + std::to_string(row) + " bytes");
  }
  const auto* ids = reinterpret_cast<const unsigned char*>(routing.data());
  for (size_t at = 0; at < routing.size(); at += static_cast<size_t>(model::RoutingIdBytes(spec))) {
    if (const int32_t id = model::GetRoutingId(spec, ids + at); id >= spec.moe.experts) {
      return InvalidArgument("routing names expert " + std::to_string(id) + " of " + std::to_string(spec.moe.experts));
    }
  }
  return OkStatus();
}

int64_t Tokens(const Row& row) { return static_cast<int64_t>(row.prompt.size() + row.response.size()); }

std::vector<double> Flat(const std::vector<std::vector<float>>& rows) {
  std::vector<double> flat;
  for (const std::vector<float>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

}  // namespace

StatusOr<TrainerOptions> OptionsFromJob(const JobConfig& job) {
  TrainerOptions o;
  if (job.job != "rl" && job.job != "sft") return Unimplemented("job is '" + job.job + "'; the trainer knows rl and sft");
  o.objective = job.job == "sft" ? Objective::kSupervised : Objective::kPolicy;
  if (o.objective == Objective::kPolicy) {
    TP_ASSIGN_OR_RETURN(o.loss, algorithms::Resolve(job.algorithm, job.rollout.max_new_tokens));
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
  o.router_aux_coef = t.router_aux_coef;
  o.deterministic = job.deterministic;
  return o;
}

struct Trainer::Impl {
  Impl(model::Weights& w, const TrainerOptions& o)
      : weights(w), options(o), decoder(w, {.deterministic = o.deterministic}), gradients(w) {}

  model::Weights& weights;
  const TrainerOptions options;
  model::Decoder decoder;
  model::Gradients gradients;
  std::unique_ptr<AdamW> optimizer;

  [[nodiscard]] Status Check(std::span<const Row> rows, bool recorded) const;
  // The packed batch for the decoder, with the routing that its rows came with; `experts` holds that and outlives it.
  model::RaggedBatch View(std::span<const Row> rows, const PackedBatch& packed, std::vector<int32_t>& experts) const;
  std::vector<float> PairLogProbs(std::span<const Row> rows, const PackedBatch& packed);
  // [row][response token]; rows that are not wanted stay empty.
  template <typename Wanted>
  StatusOr<std::vector<std::vector<float>>> LogProbs(std::span<const Row> rows, Wanted wanted);
  // old: [cells] log-probs before the step, or null: those of this very forward. share: of the update's tokens.
  Status MicroStep(const Batch& batch, const std::vector<int64_t>& micro, const StepPlan& plan, const std::vector<double>* old,
                   bool first_pass, double share, TokenSums& sums, StepTimes& times, int64_t& computed);
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
    TP_RETURN_IF_ERROR(CheckRouting(weights.spec(), row.routing, n).At("row " + ToString(row.tid)));
    if (!std::isfinite(row.reward)) return InvalidArgument(who + "the reward is not finite");
    const int64_t length = static_cast<int64_t>(row.prompt.size() + n);
    if (length > weights.spec().max_position) {
      return InvalidArgument(who + std::to_string(length) + " tokens, but the model has " + std::to_string(weights.spec().max_position) + " positions");
    }
  }
  return OkStatus();
}

model::RaggedBatch Trainer::Impl::View(std::span<const Row> rows, const PackedBatch& packed, std::vector<int32_t>& experts) const {
  const model::ModelSpec& spec = weights.spec();
  const auto row_bytes = static_cast<size_t>(model::RoutingBytes(spec)), k = static_cast<size_t>(spec.moe.experts_per_token);
  const auto id_bytes = static_cast<size_t>(model::RoutingIdBytes(spec));
  const auto layers = static_cast<size_t>(spec.sparse_layers()), tokens = packed.ids.size();
  for (size_t i = 0; i < tokens && row_bytes > 0; ++i) {
    const Row& row = rows[static_cast<size_t>(packed.row_of[i])];
    const int64_t t = packed.positions[i] + 1 - static_cast<int64_t>(row.prompt.size());
    if (t < 0 || (static_cast<size_t>(t) + 1) * row_bytes > row.routing.size()) continue;
    if (experts.empty()) experts.assign(layers * tokens * k, -1);
    const auto* ids = reinterpret_cast<const unsigned char*>(row.routing.data()) + static_cast<size_t>(t) * row_bytes;
    for (size_t l = 0; l < layers; ++l) {
      for (size_t j = 0; j < k; ++j, ids += id_bytes) experts[(l * tokens + i) * k + j] = model::GetRoutingId(spec, ids);
    }
  }
  return {packed.ids, packed.positions, packed.slots, packed.first_run, packed.lengths, packed.runs, experts};
}

// Forward only, by the engine's call.
std::vector<float> Trainer::Impl::PairLogProbs(std::span<const Row> rows, const PackedBatch& packed) {
  const model::ModelSpec& s = weights.spec();
  const auto type = at::TensorOptions().dtype(weights.dtype() == model::DType::kFloat32 ? at::kFloat : at::kBFloat16);
  const auto tokens = static_cast<int64_t>(packed.ids.size());
  at::Tensor k = at::empty({s.layers, tokens, s.kv_heads, s.head_size}, type), v = at::empty(k.sizes(), type);
  std::vector<int32_t> experts;
  const at::Tensor hidden = decoder.Forward(View(rows, packed, experts), {&k, &v});
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

Status Trainer::Impl::MicroStep(const Batch& batch, const std::vector<int64_t>& micro, const StepPlan& plan, const std::vector<double>* old,
                                bool first_pass, double share, TokenSums& sums, StepTimes& times, int64_t& computed) {
  Stopwatch watch;
  const PackedBatch packed = Pack(batch.rows, micro, model::RoutingBytes(weights.spec()));
  computed += static_cast<int64_t>(packed.ids.size());
  std::vector<int32_t> experts;
  auto [hidden, saved] = decoder.ForwardTraining(View(batch.rows, packed, experts), options.recompute);
  times.forward += watch.Lap();

  // Which tokens of the rows each pair serves.
  struct Use { int64_t row; size_t t; size_t cell; };
  std::vector<std::vector<Use>> uses(packed.sources.size());
  for (size_t k = 0; k < packed.rows.size(); ++k) {
    const auto i = static_cast<size_t>(packed.rows[k]);
    for (size_t t = 0; t < batch.rows[i].response.size(); ++t) {
      const size_t cell = static_cast<size_t>(plan.cells.begin[i]) + t;
      if (plan.cells.mask[cell] != 0) uses[static_cast<size_t>(packed.pair_of[k][t])].push_back({packed.rows[k], t, cell});
    }
  }
  std::vector<int32_t> wanted;  // pairs that a valid token needs
  for (size_t p = 0; p < uses.size(); ++p) {
    if (!uses[p].empty()) wanted.push_back(static_cast<int32_t>(p));
  }

  const bool policy = options.objective == Objective::kPolicy;
  algorithms::PolicyLossSpec spec;
  if (policy) {
    spec = options.loss.policy;
  } else {
    spec.loss = algorithms::FindLoss("ce");
  }
  const bool with_entropy_gradient = spec.entropy_coef != 0;
  // Losses of single tokens are finished a chunk of logits at a time. Those of whole rows need all log-probs
  // of the micro-batch first; then logits of more than one chunk are computed twice.
  const auto chunk = static_cast<size_t>(options.head_rows);
  const bool whole_rows = algorithms::NeedsWholeRows(spec);
  const size_t stride = whole_rows ? std::max<size_t>(1, wanted.size()) : chunk;

  // Rows of several pairs receive a sum of gradients, so it is gathered in float32.
  at::Tensor dhidden = at::zeros(hidden.sizes(), at::TensorOptions().dtype(at::kFloat));
  struct Head {
    std::vector<int32_t> sources, targets;
    at::Tensor index, rows, logits;
  };
  const auto head_of = [&](size_t from, size_t n) {
    Head h;
    for (size_t i = 0; i < n; ++i) {
      h.sources.push_back(packed.sources[static_cast<size_t>(wanted[from + i])]);
      h.targets.push_back(packed.targets[static_cast<size_t>(wanted[from + i])]);
    }
    h.index = at::from_blob(h.sources.data(), {static_cast<int64_t>(n)}, at::TensorOptions().dtype(at::kInt));
    h.rows = at::index_select(hidden, 0, h.index);
    h.logits = decoder.Logits(h.rows);
    return h;
  };
  const auto temperature = static_cast<float>(options.temperature);
  for (size_t begin = 0; begin < wanted.size(); begin += stride) {
    const size_t count = std::min(stride, wanted.size() - begin);
    std::vector<float> lp(count), entropy(count), lse(count), dlp(count, 0.0F), dentropy(with_entropy_gradient ? count : 0, 0.0F);
    const auto part = [](std::vector<float>& x, size_t from, size_t n) { return x.empty() ? std::span<float>() : std::span(x).subspan(from, n); };
    std::optional<Head> kept;
    for (size_t from = 0; from < count; from += chunk) {
      const size_t n = std::min(chunk, count - from);
      kept.emplace(head_of(begin + from, n));
      model::TokenLogProbs(kept->logits, kept->targets, temperature, part(lp, from, n), part(entropy, from, n), part(lse, from, n));
    }

    // The tokens of these pairs as cells: whole rows in their order, or one row of single tokens.
    struct Cell { size_t pair; Use use; };
    std::vector<Cell> cells;
    for (size_t i = 0; i < count; ++i) {
      for (const Use& use : uses[static_cast<size_t>(wanted[begin + i])]) cells.push_back({i, use});
    }
    std::vector<int64_t> row_begin = {0};
    std::vector<double> scores;
    if (whole_rows) std::stable_sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) { return a.use.cell < b.use.cell; });
    for (size_t c = 0; c < cells.size(); ++c) {
      if (c + 1 < cells.size() && (!whole_rows || cells[c + 1].use.row == cells[c].use.row)) continue;
      row_begin.push_back(static_cast<int64_t>(c) + 1);
      scores.push_back(plan.scores[static_cast<size_t>(cells[c].use.row)]);
    }
    std::vector<double> logp, before, behave, advantages, weights, entropies;
    std::vector<uint8_t> selected;
    for (const Cell& c : cells) {
      const Row& row = batch.rows[static_cast<size_t>(c.use.row)];
      logp.push_back(lp[c.pair]);
      before.push_back(policy && old != nullptr ? (*old)[c.use.cell] : lp[c.pair]);
      if (policy) behave.push_back(row.logprobs[c.use.t]);
      advantages.push_back(plan.advantages[c.use.cell]);
      weights.push_back(plan.weights[c.use.cell]);
      entropies.push_back(entropy[c.pair]);
      selected.push_back(plan.selected[c.use.cell]);
    }
    TP_ASSIGN_OR_RETURN(const algorithms::PolicyLossResult loss,
                        algorithms::PolicyLoss(spec, algorithms::Cells::Packed(row_begin),
                                               {.logp = logp, .advantages = advantages, .old_logp = before, .behave_logp = behave, .entropy = entropies,
                                                .scores = scores, .selected = selected},
                                               weights));
    sums.loss += loss.policy_term;
    sums.entropy_loss += loss.entropy_term;
    std::vector<double> slope(count, 0.0), entropy_slope(count, 0.0);
    for (size_t c = 0; c < cells.size(); ++c) {
      slope[cells[c].pair] += loss.grad_logp[c];
      if (with_entropy_gradient) entropy_slope[cells[c].pair] += loss.grad_entropy[c];
      sums.AddToken({.logprob = logp[c], .old_logprob = before[c], .entropy = entropies[c], .advantage = advantages[c],
                     .importance = loss.is_weights.empty() ? 1 : loss.is_weights[c],
                     .clipped = !loss.terms.clipped.empty() && loss.terms.clipped[c] != 0,
                     .dual_clipped = !loss.terms.dual_clipped.empty() && loss.terms.dual_clipped[c] != 0});
      if (!policy || !first_pass) continue;
      const Row& row = batch.rows[static_cast<size_t>(cells[c].use.row)];
      if (row.versions.empty() || row.versions[cells[c].use.t] == batch.version) sums.AddGap(before[c], behave[c]);
    }
    for (size_t i = 0; i < count; ++i) {
      dlp[i] = static_cast<float>(slope[i]);
      if (with_entropy_gradient) dentropy[i] = static_cast<float>(entropy_slope[i]);
    }

    for (size_t from = 0; from < count; from += chunk) {
      const size_t n = std::min(chunk, count - from);
      if (count > chunk) kept.emplace(head_of(begin + from, n));
      model::TokenLogProbsBackward(kept->logits, kept->targets, temperature, part(lse, from, n),
                                   with_entropy_gradient ? std::span<const float>(part(entropy, from, n)) : std::span<const float>(), part(dlp, from, n),
                                   part(dentropy, from, n));
      dhidden.index_add_(0, kept->index, decoder.LogitsBackward(kept->rows, kept->logits, gradients).to(at::kFloat));
    }
  }
  times.head += watch.Lap();
  sums.balance += share * decoder.LoadBalanceLoss(saved);
  decoder.Backward(std::move(saved), dhidden.to(hidden.scalar_type()), gradients, options.router_aux_coef * share);
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
  TP_ASSIGN_OR_RETURN(const auto micros, MicroBatches(rows, places, options.micro_batch_tokens, model::RoutingBytes(weights.spec())));
  std::vector<std::vector<float>> result(rows.size());
  for (const auto& micro : micros) {
    const PackedBatch packed = Pack(rows, micro, model::RoutingBytes(weights.spec()));
    const std::vector<float> logprobs = PairLogProbs(rows, packed);
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

  StepPlan plan = PlanStep(batch, o);
  int64_t total_tokens = 0;
  for (const Row& row : batch.rows) total_tokens += Tokens(row);
  const bool policy = o.objective == Objective::kPolicy;

  // What will be done: micro-batches by update.
  const std::vector<std::vector<int64_t>> minibatches = SplitGroups(batch.rows, o.minibatches);
  std::vector<std::vector<std::vector<int64_t>>> micros;
  int64_t todo = 0;
  for (const auto& mini : minibatches) {
    std::vector<int64_t> share;
    std::copy_if(mini.begin(), mini.end(), std::back_inserter(share), mine);
    TP_ASSIGN_OR_RETURN(auto parts, MicroBatches(batch.rows, share, o.micro_batch_tokens, model::RoutingBytes(m.weights.spec())));
    todo += static_cast<int64_t>(parts.size()) * o.epochs;
    micros.push_back(std::move(parts));
  }

  // Of every row under the weights as they are [cells]; each rank computes its own and gets those of the others.
  const auto all_logprobs = [&]() -> StatusOr<std::vector<double>> {
    TP_ASSIGN_OR_RETURN(auto rows, m.LogProbs(batch.rows, mine));
    for (size_t i = 0; i < rows.size(); ++i) rows[i].resize(batch.rows[i].response.size(), 0.0F);
    std::vector<double> flat = Flat(rows);
    if (group != nullptr) TP_RETURN_IF_ERROR(group->AllReduceSum(std::span<double>(flat), "log_probs"));
    return flat;
  };
  // Log-probs of the weights that the step starts from. With a single update they are those of its own forward,
  // unless the loss asks something of the whole batch first.
  const bool after_rejection = policy && o.loss.policy.options.Text("denominator") == "mask_after_rejection";
  const bool whole_batch = policy && o.loss.policy.loss->whole_batch;
  std::vector<double> old, behave;
  if (policy && (after_rejection || o.epochs * static_cast<int64_t>(minibatches.size()) > 1)) {
    TP_ASSIGN_OR_RETURN(old, all_logprobs());
  }
  if (policy) {
    for (const Row& row : batch.rows) behave.insert(behave.end(), row.logprobs.begin(), row.logprobs.end());
  }
  // Weights of every token come from counts of its whole update, never of a micro-batch.
  for (const auto& mini : minibatches) {
    const algorithms::Cells cells = Only(plan.cells, mini);
    algorithms::Aggregation aggregation = o.loss.aggregation;
    if (after_rejection) {
      TP_ASSIGN_OR_RETURN(aggregation.global_tokens,
                          algorithms::TokensAfterRejection(o.loss.policy, cells, {.logp = old, .old_logp = old, .behave_logp = behave}));
    }
    TP_ASSIGN_OR_RETURN(const std::vector<double> weights, algorithms::AggregationWeights(aggregation, cells));
    for (size_t c = 0; c < weights.size(); ++c) plan.weights[c] += weights[c];
  }

  StepResult result;
  TokenSums sums;
  int64_t computed = 0, done = 0;
  double grad_norm = 0;
  const double rate = LearningRate(o.schedule, batch.step.value);
  for (int64_t epoch = 0; epoch < o.epochs && result.finite; ++epoch) {
    for (size_t u = 0; u < micros.size() && result.finite; ++u) {
      m.gradients.Zero();
      int64_t update_tokens = 0;  // of all ranks
      for (const int64_t i : minibatches[u]) update_tokens += Tokens(batch.rows[static_cast<size_t>(i)]);
      if (whole_batch) {
        TP_ASSIGN_OR_RETURN(const std::vector<double> every, all_logprobs());
        const algorithms::Cells cells = Only(plan.cells, minibatches[u]);
        const std::vector<double> now = algorithms::Masked(every, cells);
        plan.selected = algorithms::SelectTokens(o.loss.policy, cells, {.logp = now, .advantages = plan.advantages});
      }
      for (const auto& micro : micros[u]) {
        if (progress != nullptr && !progress({done, todo})) {
          return Aborted("trainer: step " + std::to_string(batch.step.value) + " was stopped at micro-batch " + std::to_string(done) + " of " + std::to_string(todo));
        }
        int64_t tokens = 0;
        for (const int64_t i : micro) tokens += Tokens(batch.rows[static_cast<size_t>(i)]);
        const double share = static_cast<double>(tokens) / static_cast<double>(update_tokens);
        TP_RETURN_IF_ERROR(m.MicroStep(batch, micro, plan, old.empty() ? nullptr : &old, epoch == 0, share, sums, times, computed));
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

  const auto passes = static_cast<double>(std::max<int64_t>(1, result.updates));
  if (policy) RowMetrics(batch.rows, result.metrics);
  TokenMetrics(sums, policy, result.metrics);
  // Each update's loss is a sum of its own; the metric is their mean.
  if (policy) result.metrics["actor/pg_loss"] = sums.loss / passes;
  if (!policy) result.metrics["sft/loss"] = sums.loss / passes;
  result.metrics["actor/loss"] = (sums.loss - (policy ? o.loss.policy.entropy_coef * sums.entropy_loss : 0.0) + o.router_aux_coef * sums.balance) / passes;
  if (m.weights.spec().sparse_layers() > 0) result.metrics["actor/router_balance"] = sums.balance / passes;
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
