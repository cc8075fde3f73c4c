#include "core/policy/policy_trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/algorithms/aggregation.h"
#include "core/algorithms/gae.h"
#include "core/algorithms/metrics.h"
#include "core/algorithms/registry.h"
#include "core/algorithms/statistics.h"
#include "core/base/rng.h"
#include "core/policy/distribution.h"
#include "core/train/step_metrics.h"

namespace tidepool::policy {
namespace {

using algorithms::Cells;

double Seconds(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

}  // namespace

StatusOr<PolicyTrainerOptions> OptionsFromJob(const JobConfig& job) {
  if (job.rl() == nullptr) return InvalidArgument("model.policy belongs to job: rl");
  const AlgorithmConfig& algorithm = job.rl()->algorithm;
  PolicyTrainerOptions o;
  TP_ASSIGN_OR_RETURN(o.policy, SpecOfJob(job));
  TP_ASSIGN_OR_RETURN(const algorithms::ResolvedAlgorithm resolved,
                      algorithms::Resolve(algorithm, job.rollout.max_new_tokens, /*environments=*/true));
  o.loss = resolved.policy;
  o.gamma = resolved.advantage_options.Number("gamma", 0.99);
  o.lambda = resolved.advantage_options.Number("lambda", 0.95);
  o.whiten = resolved.advantage_options.Text("whiten") != "none";
  o.value_coef = algorithm.value_coef;
  const TrainConfig& t = job.train;
  o.optimizer = train::OptimizerOf(t);
  o.schedule = train::ScheduleOf(t);
  o.epochs = t.epochs;
  o.minibatches = t.minibatches;
  o.seed = job.seed;
  return o;
}

algorithms::ReturnsAndAdvantages FragmentAdvantages(const Fragment& f, std::span<const float> values,
                                                    std::span<const float> final_values, double gamma,
                                                    double lambda) {
  const auto n = static_cast<size_t>(f.cells()), instances = static_cast<size_t>(f.instances);
  std::vector<double> rewards(f.rewards.begin(), f.rewards.end()), all(values.begin(), values.end());
  std::vector<uint8_t> dones(n + instances, 0);
  size_t truncated = 0;
  for (size_t c = 0; c < n; ++c) {
    if (f.flags[c] == 0) continue;
    dones[c + instances] = 1;  // the step after it begins a new episode
    if (f.flags[c] == environments::kTruncated) rewards[c] += gamma * final_values[truncated++];
  }
  const std::vector<uint8_t> mask(n, 1);
  return algorithms::EnvironmentGae(rewards, all, dones, mask, f.steps, f.instances, gamma, lambda, nullptr);
}

StatusOr<std::unique_ptr<PolicyTrainer>> PolicyTrainer::Create(model::Weights& weights,
                                                               const PolicyTrainerOptions& o) {
  TP_RETURN_IF_ERROR(CheckSpec(o.policy));
  if (o.loss.loss == nullptr || algorithms::NeedsWholeRows(o.loss) || o.loss.loss->whole_batch ||
      o.loss.loss->row_value) {
    return InvalidArgument(
        "algorithm.loss: a policy of control tasks needs a loss of single steps (ppo, reinforce, decoupled)");
  }
  if (!(o.gamma > 0 && o.gamma <= 1) || !(o.lambda >= 0 && o.lambda <= 1))
    return InvalidArgument("algorithm: gamma has to be in (0, 1] and lambda in [0, 1]");
  if (o.epochs < 1 || o.minibatches < 1)
    return InvalidArgument("train.epochs and train.minibatches must be at least 1");
  std::unique_ptr<PolicyTrainer> t(new PolicyTrainer(weights, o));
  TP_ASSIGN_OR_RETURN(t->optimizer_, train::AdamW::Create(weights, t->on_device_, o.optimizer));
  return t;
}

// All cells of a step, one after another, with what does not change while it trains.
struct PolicyTrainer::StepData {
  std::vector<float> observations, actions;  // [this rank's cells, ...]
  std::vector<int64_t> own;                  // [cells] place of a cell in these two, or -1: another rank's
  std::vector<double> old_logp, behave_logp, advantages, returns, old_values;
  std::vector<uint8_t> same_version;  // [cells]
  double value_gap = 0;               // the largest between the values and the rollout's record of them
  [[nodiscard]] size_t size() const { return own.size(); }
  // Filled by the rank that has the fragment, 0 elsewhere until they are added up.
  [[nodiscard]] auto columns() {
    return std::array{&old_logp, &behave_logp, &advantages, &returns, &old_values};
  }
};
// Of all updates of a step.
struct PolicyTrainer::StepSums {
  train::TokenSums cells;
  double value_loss = 0, value_clip = 0, norm = 0;
  int64_t updates = 0;
  bool finite = true;
};

StatusOr<PolicyTrainer::StepData> PolicyTrainer::Observe(std::span<const FragmentRow> rows, Version version,
                                                         comm::Collective* group) {
  const PolicyTrainerOptions& o = options_;
  const PolicySpec& spec = o.policy;
  const std::span<const float> log_std = spec.continuous ? network_.log_std() : std::span<const float>();
  const auto width = static_cast<size_t>(spec.actions), observed = static_cast<size_t>(spec.observation_size),
             acted = static_cast<size_t>(spec.action_size());
  std::vector<double> cells;  // of each row; how many another rank's has, that rank says
  for (const FragmentRow& row : rows) cells.push_back(static_cast<double>(row.fragment.cells()));
  TP_RETURN_IF_ERROR(AddRanks(group, cells, "cells"));
  StepData data;
  std::vector<float> heads, values, final_heads, final_values;
  for (size_t i = 0; i < rows.size(); ++i) {
    const FragmentRow& row = rows[i];
    const Fragment& f = row.fragment;
    if (row.masked) continue;
    const auto n = static_cast<size_t>(cells[i]);
    const size_t first = data.size();
    data.same_version.insert(data.same_version.end(), n, row.version == version ? 1 : 0);
    for (std::vector<double>* column : data.columns()) column->resize(first + n, 0.0);
    data.own.resize(first + n, -1);
    if (!row.mine) continue;
    const auto at = static_cast<int64_t>(data.actions.size() / acted);
    std::iota(data.own.begin() + static_cast<int64_t>(first), data.own.end(), at);
    final_values.clear();
    if (!f.final_observations.empty()) network_.Forward(f.final_observations, final_heads, final_values);
    network_.Forward(f.observations, heads, values);
    const auto estimated = FragmentAdvantages(f, values, final_values, o.gamma, o.lambda);
    data.observations.insert(data.observations.end(), f.observations.begin(),
                             f.observations.begin() + static_cast<int64_t>(n * observed));
    data.actions.insert(data.actions.end(), f.actions.begin(), f.actions.end());
    for (size_t c = 0; c < n; ++c) {
      // As the rollout rounds it: equal bits where the weights are the same.
      data.old_logp[first + c] =
          static_cast<float>(Evaluate(spec, std::span(heads).subspan(c * width, width), log_std,
                                      std::span(f.actions).subspan(c * acted, acted))
                                 .logp);
      data.behave_logp[first + c] = f.log_probs[c];
      data.advantages[first + c] = estimated.advantages[c];
      data.returns[first + c] = estimated.returns[c];
      data.old_values[first + c] = values[c];
      if (row.version == version)
        data.value_gap = std::max(data.value_gap, std::fabs(static_cast<double>(values[c]) - f.values[c]));
    }
  }
  for (std::vector<double>* column : data.columns()) TP_RETURN_IF_ERROR(AddRanks(group, *column, "columns"));
  TP_ASSIGN_OR_RETURN(data.value_gap, Largest(group, data.value_gap, "value_gap"));
  return data;
}

Status PolicyTrainer::Update(const StepData& data, std::span<const int64_t> minibatch, double rate,
                             bool first_pass, comm::Collective* group, StepSums& sums) {
  const PolicyTrainerOptions& o = options_;
  const PolicySpec& spec = o.policy;
  const std::span<const float> log_std = spec.continuous ? network_.log_std() : std::span<const float>();
  // This rank's cells of the minibatch; the weights count all of them.
  std::vector<size_t> cells;
  for (const int64_t c : minibatch) {
    if (data.own[static_cast<size_t>(c)] >= 0) cells.push_back(static_cast<size_t>(c));
  }
  const auto m = cells.size(), width = static_cast<size_t>(spec.actions),
             observed = static_cast<size_t>(spec.observation_size),
             acted = static_cast<size_t>(spec.action_size());
  std::vector<float> observations(m * observed);
  const auto own = [&](size_t i) { return static_cast<size_t>(data.own[cells[i]]); };
  for (size_t i = 0; i < m; ++i) {
    std::copy_n(data.observations.begin() + static_cast<int64_t>(own(i) * observed), observed,
                observations.begin() + static_cast<int64_t>(i * observed));
  }
  const auto taken = [&](const std::vector<double>& column) {
    std::vector<double> out;
    for (const size_t c : cells) out.push_back(column[c]);
    return out;
  };
  const std::vector<double> old_logp = taken(data.old_logp), behave = taken(data.behave_logp),
                            advantages = taken(data.advantages);
  std::vector<double> logp(m), entropy(m), now(m);
  const auto action = [&](size_t i) { return std::span(data.actions).subspan(own(i) * acted, acted); };
  std::vector<float> heads, values;
  network_.Forward(observations, heads, values);
  for (size_t i = 0; i < m; ++i) {
    const ActionTerms terms = Evaluate(spec, std::span(heads).subspan(i * width, width), log_std, action(i));
    logp[i] = terms.logp;
    entropy[i] = terms.entropy;
    now[i] = values[i];
  }
  const Cells shape = Cells::Packed({0, static_cast<int64_t>(m)});
  algorithms::Aggregation mean;
  mean.global_tokens = static_cast<double>(minibatch.size());
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, algorithms::AggregationWeights(mean, shape));
  TP_ASSIGN_OR_RETURN(const auto policy, algorithms::PolicyLoss(o.loss, shape,
                                                                {.logp = logp,
                                                                 .advantages = advantages,
                                                                 .old_logp = old_logp,
                                                                 .behave_logp = behave,
                                                                 .entropy = entropy},
                                                                weights));
  const auto value =
      algorithms::ValueLoss(o.value, now, taken(data.old_values), taken(data.returns), shape, weights);

  gradients_.Zero();
  std::vector<float> d_heads(m * width), d_values(m);
  std::vector<double> d_log_std(spec.continuous ? width : 0, 0.0);
  for (size_t i = 0; i < m; ++i) {
    EvaluateBack(spec, std::span(heads).subspan(i * width, width), log_std, action(i), policy.grad_logp[i],
                 policy.grad_entropy.empty() ? 0 : policy.grad_entropy[i],
                 std::span(d_heads).subspan(i * width, width), d_log_std);
    d_values[i] = static_cast<float>(o.value_coef * value.grad_values[i]);
  }
  const std::span<float> gradients = gradients_.values();
  if (m > 0) network_.Backward(d_heads, d_values, gradients);
  for (size_t k = 0; k < d_log_std.size(); ++k)
    gradients[static_cast<size_t>(network_.log_std_offset()) + k] += static_cast<float>(d_log_std[k]);
  if (group != nullptr) TP_RETURN_IF_ERROR(group->AllReduceSum(gradients, "gradients"));

  // A loss that is not finite shows in its gradients, on every rank alike.
  const train::UpdateResult update = optimizer_->Update(gradients.data(), rate);
  network_.WeightsChanged();
  sums.finite = update.finite;
  sums.norm = std::max(sums.norm, update.grad_norm);
  sums.updates += update.finite ? 1 : 0;
  sums.cells.loss += policy.policy_term;
  sums.cells.entropy_loss += policy.entropy_term;
  sums.value_loss += value.loss;
  sums.value_clip += value.clip_frac * static_cast<double>(m);
  for (size_t i = 0; i < m; ++i) {
    sums.cells.AddToken(
        {.logprob = logp[i],
         .old_logprob = old_logp[i],
         .entropy = entropy[i],
         .advantage = advantages[i],
         .importance = policy.is_weights.empty() ? 1 : policy.is_weights[i],
         .clipped = !policy.terms.clipped.empty() && policy.terms.clipped[i] != 0,
         .dual_clipped = !policy.terms.dual_clipped.empty() && policy.terms.dual_clipped[i] != 0});
    if (first_pass && data.same_version[cells[i]] != 0) sums.cells.AddGap(old_logp[i], behave[i]);
  }
  return OkStatus();
}

StatusOr<train::StepResult> PolicyTrainer::Step(StepNumber step, Version version,
                                                std::span<const FragmentRow> rows,
                                                const train::ProgressCallback& progress,
                                                comm::Collective* group, std::vector<BadRow>* bad) {
  const PolicyTrainerOptions& o = options_;
  const PolicySpec& spec = o.policy;
  const auto start = std::chrono::steady_clock::now();
  TP_RETURN_IF_ERROR(CheckRows(rows, step, spec, group, bad));
  network_.WeightsChanged();
  TP_ASSIGN_OR_RETURN(StepData data, Observe(rows, version, group));
  train::StepResult result;
  StepSums sums;
  const size_t n = data.size();
  const std::vector<uint8_t> all(n, 1);
  const double explained = algorithms::ExplainedVariance(data.returns, data.old_values, all),
               mean_return = algorithms::Mean(data.returns), mean_value = algorithms::Mean(data.old_values);
  if (o.whiten && n > 0) algorithms::Whiten(data.advantages, all, {});
  const double rate = train::LearningRate(o.schedule, step.value), prepared = Seconds(start);
  const auto minibatches = std::min<int64_t>(o.minibatches, static_cast<int64_t>(n));
  const int64_t todo = o.epochs * minibatches;
  std::vector<int64_t> order(n);
  std::iota(order.begin(), order.end(), int64_t{0});
  int64_t done = 0;
  for (int64_t epoch = 0; epoch < o.epochs && sums.finite; ++epoch) {
    Rng rng = Rng(o.seed)
                  .Fork("minibatches")
                  .Fork(static_cast<uint64_t>(step.value))
                  .Fork(static_cast<uint64_t>(epoch));
    rng.Shuffle(std::span(order));
    for (int64_t u = 0; u < minibatches && sums.finite; ++u, ++done) {
      if (progress != nullptr && !progress({done, todo})) {
        return Aborted("policy trainer: step " + std::to_string(step.value) + " was stopped at update " +
                       std::to_string(done) + " of " + std::to_string(todo));
      }
      const auto from = static_cast<size_t>(u * static_cast<int64_t>(n) / minibatches),
                 to = static_cast<size_t>((u + 1) * static_cast<int64_t>(n) / minibatches);
      TP_RETURN_IF_ERROR(
          Update(data, std::span(order).subspan(from, to - from), rate, epoch == 0, group, sums));
    }
  }
  result.finite = sums.finite;
  result.updates = sums.updates;
  if (progress != nullptr) (void)progress({todo, todo});
  result.digest = weights_.Digest();
  if (group != nullptr) {
    TP_RETURN_IF_ERROR(sums.cells.AddOtherRanks(*group));
    std::vector<double> more = {sums.value_loss, sums.value_clip};
    TP_RETURN_IF_ERROR(group->AllReduceSum(std::span<double>(more), "value_loss"));
    sums.value_loss = more[0];
    sums.value_clip = more[1];
    TP_RETURN_IF_ERROR(train::CheckSameWeights(*group, result.digest, "policy trainer", step));
  }

  const auto passes = static_cast<double>(std::max<int64_t>(1, result.updates)),
             seen = static_cast<double>(std::max<int64_t>(1, sums.cells.tokens));
  TP_RETURN_IF_ERROR(ScoreMetrics(rows, group, result.metrics));
  train::TokenMetrics(sums.cells, /*policy=*/true, result.metrics);
  result.metrics["actor/pg_loss"] = sums.cells.loss / passes;
  result.metrics["critic/vf_loss"] = sums.value_loss / passes;
  result.metrics["critic/vf_clipfrac"] = sums.value_clip / seen;
  // Of equal returns there is nothing to explain.
  result.metrics["critic/vf_explained_var"] = algorithms::Deviation(data.returns, 0) == 0 ? 0 : explained;
  result.metrics["critic/values/mean"] = mean_value;
  result.metrics["critic/returns/mean"] = mean_return;
  result.metrics["training/rollout_value_diff/max"] = data.value_gap;
  result.metrics["actor/loss"] =
      (sums.cells.loss - o.loss.entropy_coef * sums.cells.entropy_loss + o.value_coef * sums.value_loss) /
      passes;
  result.metrics["actor/grad_norm"] = sums.norm;
  result.metrics["actor/lr"] = rate;
  result.metrics["actor/updates"] = static_cast<double>(result.updates);
  result.metrics["actor/nonfinite"] = result.finite ? 0 : 1;
  if (spec.continuous) {
    const auto s = network_.log_std();
    double mean = 0;
    for (const float x : s) mean += std::exp(x) / static_cast<double>(s.size());
    result.metrics["actor/action_std"] = mean;
  }
  result.metrics["timing_s/advantages"] = prepared;
  result.metrics["timing_s/update_actor"] = Seconds(start);
  result.metrics["perf/total_num_tokens"] = static_cast<double>(n);
  return result;
}

}  // namespace tidepool::policy
