#include "core/train/trainer.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/algorithms/metrics.h"
#include "core/algorithms/value_loss.h"
#include "core/base/hash.h"
#include "core/device/cpu/cpu_device.h"
#include "core/model/memory_use.h"
#include "core/model/routing.h"
#include "core/model/sum_cuts.h"
#include "core/train/bad_rows.h"
#include "core/train/group_update.h"
#include "core/train/packing.h"
#include "core/train/trainer_impl.h"

namespace tidepool::train {
namespace {

Status CheckRouting(const model::ModelSpec& spec, const std::string& routing, size_t tokens) {
  if (routing.empty()) return OkStatus();
  const auto row = static_cast<size_t>(model::RoutingBytes(spec));
  if (row == 0) return InvalidArgument("routing was recorded, but the model has no experts");
  if (routing.size() % row != 0 || routing.size() / row > tokens) {
    return InvalidArgument(std::to_string(routing.size()) + " bytes of routing for " +
                           std::to_string(tokens) + " response tokens of " + std::to_string(row) + " bytes");
  }
  const auto* ids = reinterpret_cast<const unsigned char*>(routing.data());
  for (size_t at = 0; at < routing.size(); at += static_cast<size_t>(model::RoutingIdBytes(spec))) {
    if (const int32_t id = model::GetRoutingId(spec, ids + at); id >= spec.moe.experts) {
      return InvalidArgument("routing names expert " + std::to_string(id) + " of " +
                             std::to_string(spec.moe.experts));
    }
  }
  return OkStatus();
}

int64_t Tokens(const Row& row) { return row.prompt_tokens() + row.response_tokens(); }

}  // namespace

TrainerImpl::TrainerImpl(model::Weights& w, const TrainerOptions& o, const Companions& c)
    : weights(w), options(o), companions(c), early(o.early_rows), controls(&spare) {}

Status TrainerImpl::CheckRow(const Row& row, bool recorded) const {
  const int64_t vocab = weights.spec().vocab_size;  // of the whole model
  const auto n = static_cast<size_t>(row.response_tokens());
  if (row.prompt_tokens() < 1) return InvalidArgument("the prompt is empty; at least one token is needed");
  for (const auto* ids : {&row.prompt, &row.response}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= vocab) {
        return InvalidArgument("token id " + std::to_string(id) + " is outside the model's vocabulary of " +
                               std::to_string(vocab));
      }
    }
  }
  if (recorded && !row.elsewhere && row.logprobs.size() != n) {
    return InvalidArgument(std::to_string(row.logprobs.size()) + " log-probs for " + std::to_string(n) +
                           " response tokens");
  }
  if ((!row.versions.empty() && row.versions.size() != n) ||
      (!row.loss_mask.empty() && row.loss_mask.size() != n) ||
      (!row.log_kept.empty() && row.log_kept.size() != n)) {
    return InvalidArgument("versions, log_kept or loss_mask differ in length from the " + std::to_string(n) +
                           " response tokens");
  }
  TP_RETURN_IF_ERROR(CheckRouting(weights.spec(), row.routing, n));
  if (!std::isfinite(row.reward)) return InvalidArgument("the reward is not finite");
  const int64_t length = Tokens(row);
  if (length > weights.spec().max_position) {
    return InvalidArgument(std::to_string(length) + " tokens, but the model has " +
                           std::to_string(weights.spec().max_position) + " positions");
  }
  return OkStatus();
}

Status TrainerImpl::Check(std::span<const Row> rows, bool recorded) const {
  for (const Row& row : rows) TP_RETURN_IF_ERROR(CheckRow(row, recorded).At("row " + ToString(row.tid)));
  return OkStatus();
}

Trainer::Trainer() = default;
Trainer::~Trainer() = default;

StatusOr<std::unique_ptr<Trainer>> Trainer::Create(model::Weights& weights, TrainerOptions o,
                                                   const Companions& companions) try {
  if (o.device == nullptr) o.device = std::make_shared<device::CpuDevice>();
  if (!(o.temperature > 0)) return InvalidArgument("trainer: temperature must be above 0");
  if (o.epochs < 1 || o.minibatches < 1)
    return InvalidArgument("train.epochs and train.minibatches must be at least 1");
  if (o.head_rows == 0) o.head_rows = model::kHeadRows;
  if (o.head_rows < 1) return InvalidArgument("trainer: head_rows must be at least 1");
  if (o.micro_batch_tokens < 1) return InvalidArgument("train.micro_batch_tokens must be at least 1");
  if (!(o.schedule.peak >= 0) || !std::isfinite(o.schedule.peak))
    return InvalidArgument("train.learning_rate must be at least 0");
  const bool reward = o.objective == JobKind::kRewardModel;
  if (!o.part.whole()) {
    const bool experts = o.part.what == model::Cut::kExperts;
    const std::string key = experts ? "train.mesh.ep" : "train.mesh.tp";
    TP_RETURN_IF_ERROR(model::CheckCut(weights.spec(), o.part.of, o.part.what).At(key));
    if (reward || Needed(o).critic || o.objective == JobKind::kDistill)
      return Unimplemented(key + ": a critic, a reward model or a student cannot be cut; write 1");
    if (experts && o.shard.world > 1)
      return Unimplemented(
          "train.zero: what has a part of the experts (train.mesh.ep) is not shared; write 0");
    if (o.share_gradients)
      return Unimplemented(
          "train.zero: gradients of a model that is cut (train.mesh.tp) are not shared; write 1");
    // What recorded has these bits only if its sums are cut at the same places.
    o.clean_records =
        o.clean_records && model::SumCuts(weights.spec(), o.part.of_matrices(), o.device->sums_in_tiles())
                               .as_whole(weights.spec());
    o.early_rows = 0;  // a rank cannot compute any alone
  }
  if (weights.spec().value_head != reward) {
    return InvalidArgument(
        reward ? "trainer: a reward model has a value head, these weights have none"
               : "trainer: these weights are a reward model (a value head in place of logits)");
  }
  o.share_weights = o.share_weights && o.shard.world > 1;
  if (o.share_weights && (reward || !o.device->host_memory()))
    return Unimplemented(
        "train.zero: weights of a reward model, or of a device with memory of its own, are not shared; "
        "write 2");
  if (o.share_weights) weights.LayOutByParts();
  const NeededCompanions needed = Needed(o);
  for (const auto& [name, need, found] :
       {std::tuple{"reference", needed.reference, companions.reference},
        {"teacher", needed.teacher, companions.teacher},
        {"critic", needed.critic, static_cast<const model::Weights*>(companions.critic)}}) {
    if (!need) continue;
    if (found == nullptr) return InvalidArgument(std::string("trainer: a ") + name + " model is needed");
    if (found->spec().vocab_size != weights.spec().vocab_size) {
      return InvalidArgument(std::string("trainer: the ") + name + " model has a vocabulary of " +
                             std::to_string(found->spec().vocab_size) + ", this model one of " +
                             std::to_string(weights.spec().vocab_size));
    }
    if (found->spec().max_position < weights.spec().max_position && found->spec().ends_at_max_position) {
      return InvalidArgument(std::string("trainer: the ") + name + " model has " +
                             std::to_string(found->spec().max_position) + " positions, this model " +
                             std::to_string(weights.spec().max_position));
    }
  }
  std::unique_ptr<Trainer> t(new Trainer());
  t->impl_ = std::make_unique<TrainerImpl>(weights, o, companions);
  TrainerImpl& m = *t->impl_;
  const ValueModelOptions value{.optimizer = o.optimizer,
                                .micro_batch_tokens = o.micro_batch_tokens,
                                .recompute = o.recompute,
                                .device = o.device,
                                .shard = o.shard,
                                .share_gradients = o.share_gradients};
  if (reward) {
    TP_ASSIGN_OR_RETURN(m.value, ValueModel::Create(weights, value));
  } else {
    m.decoder = std::make_unique<model::Decoder>(weights, o.device, o.part);
    if (m.divides_experts() && o.sum_each_micro_batch) m.decoder->SumEachRankApart();
    auto keeper = o.share_gradients && o.shard.world > 1
                      ? std::make_unique<GradientShard>(weights, o.device, o.shard)
                      : nullptr;
    m.gradient_shard = keeper.get();
    m.gradients = std::make_unique<model::Gradients>(m.decoder->weights(), std::move(keeper));
    TP_ASSIGN_OR_RETURN(m.optimizer, AdamW::Create(weights, m.decoder->weights(), o.optimizer, o.shard));
    if (needed.critic) {
      TP_ASSIGN_OR_RETURN(m.value, ValueModel::Create(*companions.critic, value));
    }
  }
  if (needed.reference) m.reference = std::make_unique<model::Decoder>(*companions.reference, o.device);
  if (needed.teacher) m.teacher = std::make_unique<model::Decoder>(*companions.teacher, o.device);
  if (m.rl() && (o.shaping.running || (o.loss.kl && o.loss.kl->target))) {
    static_assert(std::is_trivially_copyable_v<Controls>);  // it is saved as bytes
    TP_ASSIGN_OR_RETURN(m.controls_memory, device::PageBuffer::Create(sizeof(Controls)));
    m.controls = new (m.controls_memory.bytes().data()) Controls();
  }
  if (o.loss.kl) m.controls->kl_coef = o.loss.kl->coef;
  return t;
} catch (...) {
  return AtTheDoor(*o.device);
}

Status AtTheDoor(const device::Device& device) {
  try {
    throw;
  } catch (const c10::OutOfMemoryError&) {  // the process's door (workers/device/device_worker.cc)
    throw;
  } catch (
      const std::bad_alloc&) {  // the host's: its caller knows which keys count (workers/device/caught.h)
    throw;
  } catch (const model::PeersFailed& e) {  // in the midst of a computation
    return e.status();
  } catch (const c10::Error& e) {
    if (!device.host_memory()) throw device::DeviceFailed(e.what_without_backtrace());
    return Internal(std::string("trainer: ") + e.what());
  } catch (const std::exception& e) {
    return Internal(std::string("trainer: ") + e.what());
  }
}

Status Trainer::Preview(std::vector<Row> rows, Version version) try {
  return impl_->Preview(std::move(rows), version);
} catch (...) {
  return AtTheDoor(*impl_->options.device);
}

void Trainer::Join(comm::Collective* others, comm::Collective* same) {
  TrainerImpl& m = *impl_;
  if (others == nullptr)
    m.part_ranks.reset();
  else
    m.part_ranks.emplace(*others, m.options.part.what);
  m.same_part = same;
  if (m.decoder != nullptr) m.decoder->UsePeers(m.part_ranks ? &*m.part_ranks : nullptr);
}

StatusOr<bool> Trainer::Agree(bool yes) try {
  return impl_->part_ranks ? impl_->part_ranks->Agree(yes) : yes;
} catch (const model::PeersFailed& e) {
  return e.status();
}

ProgressCallback TrainerImpl::Agreed(const ProgressCallback& progress) {
  if (!part_ranks) return progress;
  return [this, progress](const StepProgress& p) {
    return part_ranks->Agree(progress == nullptr || progress(p));
  };
}

bool Trainer::HasPreview() const { return !impl_->previewed.parts.empty(); }

StatusOr<Scored> Trainer::PreviewPiece() try { return impl_->PreviewPiece(); } catch (...) {
  return AtTheDoor(*impl_->options.device);
}

// What will be done: micro-batches by update.
Status TrainerImpl::Split(StepContext& step) const {
  const auto mine = [&](int64_t row) { return !step.batch.rows[static_cast<size_t>(row)].elsewhere; };
  for (size_t i = 0; i < step.batch.rows.size(); ++i) {
    if (mine(static_cast<int64_t>(i))) step.mine.push_back(static_cast<int64_t>(i));
  }
  step.minibatches = SplitGroups(step.batch.rows, options.minibatches);
  for (const auto& mini : step.minibatches) {
    std::vector<int64_t> share;
    std::copy_if(mini.begin(), mini.end(), std::back_inserter(share), mine);
    // A reward model's rows are a token longer: the place of the score.
    const bool longer = options.objective == JobKind::kRewardModel;
    const std::vector<Row> rows = longer ? WithScorePlace(step.batch.rows) : std::vector<Row>();
    TP_ASSIGN_OR_RETURN(auto parts,
                        MicroBatches(longer ? rows : step.batch.rows, share, options.micro_batch_tokens,
                                     longer ? 0 : model::RoutingBytes(weights.spec())));
    step.todo += static_cast<int64_t>(parts.size()) * options.epochs;
    step.micros.push_back(std::move(parts));
  }
  return OkStatus();
}

StatusOr<std::vector<double>> TrainerImpl::Gather(const StepContext& step,
                                                  const std::vector<std::vector<float>>& rows,
                                                  const char* what) const {
  std::vector<double> flat;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto n = static_cast<size_t>(step.batch.rows[i].response_tokens());
    if (rows[i].empty())
      flat.insert(flat.end(), n, 0.0);
    else
      flat.insert(flat.end(), rows[i].begin(), rows[i].end());
  }
  if (step.group() != nullptr) TP_RETURN_IF_ERROR(step.group()->AllReduceSum(std::span<double>(flat), what));
  return flat;
}

StatusOr<UpdatesDone> TrainerImpl::Update(StepContext& step, const UpdateTarget& target) const {
  UpdatesDone done;
  for (int64_t epoch = 0; epoch < options.epochs && done.finite; ++epoch) {
    for (size_t u = 0; u < step.micros.size() && done.finite; ++u) {
      target.gradients.Zero();
      if (target.before) TP_RETURN_IF_ERROR(target.before(u));
      const auto& micros = step.micros[u];
      GroupGradients shared({.gradients = target.gradients,
                             .shard = target.shard,
                             .optimizer = target.optimizer,
                             .device = *options.device,
                             .one_memory = target.one_memory},
                            step.groups, options.sum_each_micro_batch);
      TP_RETURN_IF_ERROR(shared.Begin(static_cast<int64_t>(micros.size())));
      const auto passes = static_cast<size_t>(shared.passes());
      const auto rounds = static_cast<size_t>(target.serve ? shared.most_micro_batches() : 0);
      for (size_t i = 0; i < std::max({micros.size(), passes, rounds}); ++i) {
        if (step.progress != nullptr && !step.progress({step.done, step.todo})) {
          return Aborted("trainer: step " + std::to_string(step.batch.step.value) +
                         " was stopped at micro-batch " + std::to_string(step.done) + " of " +
                         std::to_string(step.todo));
        }
        if (i < micros.size()) {
          TP_RETURN_IF_ERROR(target.micro(micros[i], u, epoch));
          ++step.done;
        } else if (target.serve) {
          target.serve();
        }
        if (i >= passes) continue;
        Stopwatch of_pass;
        TP_RETURN_IF_ERROR(shared.EndPass());
        step.times.reduce += of_pass.Lap();
      }
      if (target.shard != nullptr)
        step.gradient_bytes = std::max(step.gradient_bytes, target.shard->peak_bytes());
      Stopwatch watch;
      // Every rank learns what the others found before it decides, so all decide alike.
      double bad = target.finite() ? 0 : 1;
      if (step.group() != nullptr) {
        TP_RETURN_IF_ERROR(step.group()->AllReduceSum(std::span<double>(&bad, 1), "finite"));
        if (bad == 0) TP_RETURN_IF_ERROR(shared.Finish());
        step.times.reduce += watch.Lap();
      }
      done.finite = bad == 0;
      if (done.finite) {
        UpdateResult update;
        TP_ASSIGN_OR_RETURN(update, shared.Update(target.rate));
        done.finite = update.finite;
        done.grad_norm = update.finite ? std::max(done.grad_norm, update.grad_norm) : update.grad_norm;
        done.updates += update.finite ? 1 : 0;
      }
      step.times.optimizer += watch.Lap();
    }
  }
  return done;
}

// Everything that advantages and losses read, as far as this algorithm does.
Status TrainerImpl::PreparePolicy(StepContext& step, StepPlan& plan) {
  const algorithms::ResolvedAlgorithm& a = options.loss;
  TP_RETURN_IF_ERROR(FindEarly(step));
  if (NeedsOld(step.minibatches.size())) {
    const bool squares = a.advantage->Uses(algorithms::Provision::kSquares);
    TP_RETURN_IF_ERROR(FillOld(step, plan, squares));
  }
  if (reference != nullptr) {
    TP_ASSIGN_OR_RETURN(plan.ref, WholeColumn(step, Column::kReference));
  }
  if (teacher != nullptr) {
    TP_ASSIGN_OR_RETURN(plan.teacher, WholeColumn(step, Column::kTeacher));
  }
  if (a.kl && a.kl->in_reward) {
    plan.kl.assign(plan.cells.mask.size(), 0.0);
    for (size_t c = 0; c < plan.kl.size(); ++c) {
      if (plan.cells.mask[c] != 0)
        plan.kl[c] = algorithms::KlEstimate(a.kl->estimate, plan.old[c], plan.ref[c]).value;
    }
  }
  if (value != nullptr) {
    TP_ASSIGN_OR_RETURN(plan.values, WholeColumn(step, Column::kValues));
  }
  Stopwatch of_loss;
  std::vector<double> repetition = RepetitionPenalties(options.shaping, step.batch.rows);
  if (step.group() != nullptr && !repetition.empty())
    TP_RETURN_IF_ERROR(step.group()->AllReduceSum(std::span<double>(repetition), "repetition"));
  plan.scores = ShapedRewards(options.shaping, step.batch.rows, repetition, controls->rewards);
  TP_RETURN_IF_ERROR(FillAdvantages(step.batch, a, options.component_weights, controls->kl_coef, plan));
  FillRejection(a, plan);
  step.times.loss += of_loss.Lap();
  return OkStatus();
}

// Weights of every token come from counts of its whole update, never of a micro-batch.
Status TrainerImpl::FillWeights(const StepContext& step, StepPlan& plan) const {
  for (const auto& mini : step.minibatches) {
    const algorithms::Cells cells = Only(plan.cells, mini);
    algorithms::Aggregation aggregation = options.loss.aggregation;
    if (rl() && options.loss.policy.options.Text("denominator") == "mask_after_rejection") {
      TP_ASSIGN_OR_RETURN(aggregation.global_tokens,
                          algorithms::TokensAfterRejection(
                              options.loss.policy, cells,
                              {.logp = plan.old, .old_logp = plan.old, .behave_logp = plan.behave}));
    }
    TP_ASSIGN_OR_RETURN(const std::vector<double> share, algorithms::AggregationWeights(aggregation, cells));
    for (size_t c = 0; c < share.size(); ++c) plan.weights[c] += share[c];
  }
  return OkStatus();
}

StatusOr<UpdatesDone> TrainerImpl::UpdateCritic(StepContext& step, const StepPlan& plan,
                                                std::map<std::string, double>& metrics) {
  Stopwatch watch;
  decoder->ReleaseScratch();  // the critic's activations take its place for a while
  std::vector<double> weights_of(plan.cells.mask.size(), 0.0);
  for (const auto& mini : step.minibatches) {
    TP_ASSIGN_OR_RETURN(const std::vector<double> share,
                        algorithms::AggregationWeights({}, Only(plan.cells, mini)));
    for (size_t c = 0; c < share.size(); ++c) weights_of[c] += share[c];
  }
  double sums[3] = {0, 0, 0};  // loss, clipped cells, cells
  const double rate = LearningRate(options.critic_schedule, step.batch.step.value);
  const auto loss_of = [&](std::span<const int64_t> order, const auto& values, auto& slopes) {
    std::vector<int64_t> from;
    const algorithms::Cells cells = plan.cells.Rows(order, from);
    std::vector<double> now, old, returns, share;
    for (const auto& row : values) now.insert(now.end(), row.begin(), row.end());
    for (const int64_t c : from) {
      old.push_back(plan.values[static_cast<size_t>(c)]);
      returns.push_back(plan.returns[static_cast<size_t>(c)]);
      share.push_back(weights_of[static_cast<size_t>(c)]);
    }
    const algorithms::ValueLossResult loss =
        algorithms::ValueLoss(options.loss.value, now, old, returns, cells, share);
    size_t at = 0;
    for (auto& row : slopes) {
      for (double& slope : row) slope = loss.grad_values[at++];
    }
    const auto n = static_cast<double>(cells.Tokens());
    sums[0] += loss.loss;
    sums[1] += loss.clip_frac * n;
    sums[2] += n;
    return OkStatus();
  };
  const auto updates =
      Update(step, {.gradients = value->gradients(),
                    .shard = value->gradient_shard(),
                    .optimizer = value->optimizer(),
                    .rate = rate,
                    .micro = [&](const std::vector<int64_t>& micro, size_t,
                                 int64_t) { return value->MicroStep(step.batch.rows, micro, loss_of); },
                    .finite = [&] { return std::isfinite(sums[0]); }});
  if (!updates.ok()) return updates.status();
  if (step.group() != nullptr)
    TP_RETURN_IF_ERROR(step.group()->AllReduceSum(std::span<double>(sums), "critic_sums"));
  const auto passes = static_cast<double>(std::max<int64_t>(1, updates.value().updates));
  metrics["critic/vf_loss"] = sums[0] / passes;
  metrics["critic/vf_clipfrac"] = sums[1] / std::max(1.0, sums[2]);
  metrics["critic/vf_explained_var"] =
      algorithms::ExplainedVariance(plan.returns, plan.values, plan.cells.mask);
  metrics["critic/grad_norm"] = updates.value().grad_norm;
  metrics["critic/lr"] = rate;
  ColumnMetrics("critic/values", plan.values, plan.cells, metrics);
  ColumnMetrics("critic/returns", plan.returns, plan.cells, metrics);
  value->ReleaseScratch();  // the policy's gradients and activations take its place
  step.times.critic += watch.Lap();
  return updates;
}

StatusOr<UpdatesDone> TrainerImpl::UpdateWeights(StepContext& step, StepPlan& plan) {
  const bool whole_batch = rl() && options.loss.policy.loss->whole_batch;
  std::vector<int64_t> pairs_of;
  std::vector<double> tokens_of;  // of all ranks
  const auto tokens = [&](const std::vector<int64_t>& rows) {
    int64_t sum = 0;
    for (const int64_t i : rows) sum += Tokens(step.batch.rows[static_cast<size_t>(i)]);
    return static_cast<double>(sum);
  };
  for (const auto& mini : step.minibatches) {
    pairs_of.push_back(static_cast<int64_t>(mini.size()) / 2);
    tokens_of.push_back(tokens(mini));
  }
  UpdateTarget target{.gradients = *gradients,
                      .shard = gradient_shard,
                      .optimizer = *optimizer,
                      .one_memory = options.share_weights,
                      .rate = LearningRate(options.schedule, step.batch.step.value),
                      .micro =
                          [&](const std::vector<int64_t>& micro, size_t update, int64_t epoch) {
                            return MicroStep(step, micro, plan, pairs_of[update],
                                             tokens(micro) / tokens_of[update], epoch == 0,
                                             epoch == 0 && update == 0);
                          },
                      .finite =
                          [&] {
                            return std::isfinite(step.sums.loss) && std::isfinite(step.sums.entropy_loss) &&
                                   std::isfinite(step.sums.kl_loss);
                          }};
  if (divides_experts()) {
    target.serve = [this] { decoder->ServeBackward(decoder->ServeTraining(options.recompute), *gradients); };
  }
  if (whole_batch) {
    target.before = [&](size_t update) -> Status {
      TP_ASSIGN_OR_RETURN(const auto rows,
                          Compute(Column::kOld, step.batch.rows, step.mine, nullptr, step.Progress()));
      TP_ASSIGN_OR_RETURN(const std::vector<double> every, Gather(step, rows, "log_probs"));
      const algorithms::Cells cells = Only(plan.cells, step.minibatches[update]);
      plan.selected =
          algorithms::SelectTokens(options.loss.policy, cells,
                                   {.logp = algorithms::Masked(every, cells), .advantages = plan.advantages});
      return OkStatus();
    };
  }
  return Update(step, target);
}

void TrainerImpl::Adapt(const Batch& batch, double kl) {
  if (!options.loss.kl || !options.loss.kl->target) return;
  controls->kl_coef =
      algorithms::AdaptKlCoefficient(controls->kl_coef, kl, *options.loss.kl->target,
                                     static_cast<double>(batch.rows.size()), options.loss.kl->horizon);
}

Status TrainerImpl::CheckStep(StepContext& step, std::vector<BadRow>& bad) const {
  const std::vector<Row>& rows = step.batch.rows;
  if (step.group() == nullptr &&
      std::ranges::any_of(rows, [](const Row& r) { return r.elsewhere.has_value(); }))
    return InvalidArgument("trainer: rows are elsewhere, and there is no group of ranks");
  // A reward model's rows are a token longer: the place of the score.
  const int64_t score_place = options.objective == JobKind::kRewardModel ? 1 : 0;
  for (const Row& row : rows) {
    Status usable = CheckRow(row, /*recorded=*/rl());
    if (usable.ok()) usable = CheckFits(row, options.micro_batch_tokens, score_place);
    if (usable.ok() && rl()) usable = CheckScores(row, options.loss, options.component_weights.size());
    if (usable.ok() && pairs()) usable = CheckAnswer(row);
    if (!usable.ok()) bad.push_back({row.tid, usable.message()});
  }
  if (!bad.empty()) return OkStatus();
  TP_RETURN_IF_ERROR(Split(step));
  if (pairs()) CheckPairs(step, bad);
  return OkStatus();
}

StatusOr<UpdatesDone> TrainerImpl::MakeUpdates(StepContext& step, StepPlan& plan, Stopwatch& watch,
                                               std::map<std::string, double>& metrics) {
  UpdatesDone done;
  if (rl()) {
    TP_RETURN_IF_ERROR(PreparePolicy(step, plan));
    step.times.prepare = watch.Lap();
    if (value != nullptr) {
      TP_ASSIGN_OR_RETURN(done, UpdateCritic(step, plan, metrics));
    }
  } else if (reference != nullptr) {
    TP_ASSIGN_OR_RETURN(plan.ref, WholeColumn(step, Column::kReference));
  }
  if (options.objective == JobKind::kRewardModel) return UpdateRewardModel(step);
  if (done.finite && !CriticAlone(step)) {
    TP_RETURN_IF_ERROR(FillWeights(step, plan));
    TP_ASSIGN_OR_RETURN(done, UpdateWeights(step, plan));
    if (value != nullptr) gradients->Release();  // the next step's critic takes its place
  }
  return done;
}

double TrainerImpl::KlToReference(const StepContext& step, const StepPlan& plan) const {
  // Also in steps of the critic alone.
  if (!plan.kl.empty()) return algorithms::TokenMean(plan.kl, plan.cells);
  return step.sums.reference_kl / std::max(1.0, step.sums.reference_tokens);
}

void TrainerImpl::PolicyMetrics(const StepContext& step, const StepPlan& plan,
                                std::map<std::string, double>& metrics) {
  RowMetrics(step.batch.rows, plan.scores, metrics);
  if (!plan.teacher.empty()) {  // KL(student || teacher) on the student's own samples
    metrics["teacher/kl"] = -algorithms::TokenMean(
        algorithms::OnPolicyDistillAdvantages(plan.old, plan.teacher, 1, plan.cells), plan.cells);
  }
  if (!plan.steps.row.empty()) metrics["turns/shared_states"] = SharedStates(plan);
  if (!plan.keep.empty()) metrics["is/masked_frac"] = plan.masked_fraction;
}

void TrainerImpl::LossMetrics(const StepContext& step, const UpdatesDone& done, const Controls& before,
                              std::map<std::string, double>& metrics) const {
  const TokenSums& sums = step.sums;
  const bool critic_alone = CriticAlone(step);
  const int64_t updates = critic_alone ? 0 : done.updates;
  const auto passes = static_cast<double>(std::max<int64_t>(1, updates));
  double loss = sums.loss;
  if (rl()) {
    loss -= options.loss.policy.entropy_coef * sums.entropy_loss;
    if (options.loss.policy.kl_beta) {
      loss += before.kl_coef * sums.kl_loss;
      metrics["actor/kl_loss"] = sums.kl_loss / passes;
    }
  }
  if (!pairs() && !critic_alone) TokenMetrics(sums, rl(), metrics);
  // Each update's loss is a sum of its own; the metric is their mean.
  const double mean = sums.loss / passes;
  switch (options.objective) {
    case JobKind::kRl:
      if (!critic_alone) metrics["actor/pg_loss"] = mean;
      break;
    case JobKind::kSft:
      metrics["sft/loss"] = mean;
      break;
    case JobKind::kDistill:
      metrics.erase("sft/loss");
      metrics.erase("actor/entropy");
      metrics["distill/loss"] = mean;
      metrics["distill/agreement"] = sums.agreed / std::max(1.0, sums.compared);
      break;
    case JobKind::kDpo:
    case JobKind::kRewardModel:
      PairMetrics(options.objective, mean, sums, metrics);
      break;
  }
  if (weights.spec().sparse_layers() > 0 && decoder != nullptr && !critic_alone)
    metrics["actor/router_balance"] = sums.balance / passes;
  metrics["actor/loss"] = (loss + options.router_aux_coef * sums.balance) / passes;
  metrics["actor/grad_norm"] = critic_alone ? 0 : done.grad_norm;
  metrics["actor/lr"] = critic_alone ? 0 : LearningRate(options.schedule, step.batch.step.value);
  metrics["actor/updates"] = static_cast<double>(updates);
  metrics["actor/nonfinite"] = done.finite ? 0 : 1;
}

StatusOr<StepResult> Trainer::Step(const Batch& batch, const ProgressCallback& progress,
                                   comm::Collective* group, std::vector<BadRow>* bad) try {
  TrainerImpl& m = *impl_;
  const TrainerOptions& o = m.options;
  Stopwatch total, watch;
  if (batch.rows.empty())
    return InvalidArgument("trainer: step " + std::to_string(batch.step.value) + " has no rows");
  if (batch.step.value < 1)
    return InvalidArgument("trainer: step " + std::to_string(batch.step.value) + "; steps count from 1");
  const Shard here = group == nullptr ? Shard{} : Shard{group->rank(), group->size()};
  if (o.shard.world > 1 && o.shard != here) {
    return FailedPrecondition("trainer: it has the optimizer's state of rank " +
                              std::to_string(o.shard.rank) + " of " + std::to_string(o.shard.world) +
                              ", and is rank " + std::to_string(here.rank) + " of " +
                              std::to_string(here.world));
  }
  if (!o.part.whole() && !m.part_ranks)
    return FailedPrecondition("trainer: the ranks that have the other parts of the model are not there");
  if (m.divides_experts() &&
      (group == nullptr || group->size() % o.part.of != 0 || group->rank() % o.part.of != o.part.rank)) {
    return FailedPrecondition("trainer: it has the experts of rank " + std::to_string(o.part.rank) + " of " +
                              std::to_string(o.part.of) + ", and is rank " + std::to_string(here.rank) +
                              " of " + std::to_string(here.world));
  }
  // Ranks with rows of their own do not ask it as often, and one that stops leaves the others, as one does
  // that has the whole model.
  const ProgressCallback agreed = m.divides_experts() ? progress : m.Agreed(progress);
  comm::Collective* const parts = m.part_ranks ? &m.part_ranks->group() : nullptr;
  StepContext step{
      .batch = batch, .groups = {.data = group, .parts = parts, .same = m.same_part}, .progress = agreed};
  std::vector<BadRow> found = bad != nullptr ? std::move(*bad) : std::vector<BadRow>();
  const Status checked = m.CheckStep(step, found);
  const Status usable = AgreeOnRows(group, checked, found, "trainer");
  if (bad != nullptr) *bad = std::move(found);
  TP_RETURN_IF_ERROR(usable);
  if (m.rl() && m.value != nullptr && !m.CriticAlone(step)) step.todo *= 2;
  StepPlan plan = PlanRows(batch, o.loss, m.rl());
  if (group != nullptr && m.rl())
    TP_RETURN_IF_ERROR(group->AllReduceSum(std::span<double>(plan.behave), "recorded_log_probs"));
  // Coefficients move with a step that was made, and with no other.
  const Controls before = *m.controls;
  struct Undo {
    Controls* controls;
    const Controls& before;
    ~Undo() {
      if (controls != nullptr) *controls = before;
    }
  } undo{m.controls, before};

  // What was computed early of weights that are updated is of no use afterwards, however the step ends.
  struct Moved {
    TrainerImpl& m;
    const int64_t before;
    ~Moved() {
      if (m.updates() != before) m.early.ForgetMoving();
    }
  } moved{m, m.updates()};

  StepResult result;
  TP_ASSIGN_OR_RETURN(const UpdatesDone done, m.MakeUpdates(step, plan, watch, result.metrics));
  result.finite = done.finite;
  result.updates = m.CriticAlone(step) ? 0 : done.updates;
  if (agreed != nullptr) (void)agreed({step.done, step.todo});
  watch.Lap();
  if (m.part_ranks && result.updates > 0) m.decoder->weights().Collect(*m.part_ranks);
  result.digest = m.weights.Digest();
  const uint64_t everything = m.DigestWith(result.digest);
  step.times.digest = watch.Lap();
  if (group != nullptr) {
    TP_RETURN_IF_ERROR(step.sums.AddOtherRanks(*group));
    TP_RETURN_IF_ERROR(CheckSameWeights(*group, everything, "trainer", batch.step));
  }
  if (parts != nullptr) TP_RETURN_IF_ERROR(CheckSameWeights(*parts, everything, "trainer", batch.step));
  if (m.rl() && o.loss.kl) {
    const double kl = m.KlToReference(step, plan);
    result.metrics["ref/kl"] = kl;
    result.metrics["actor/kl_coef"] = m.controls->kl_coef;
    if (result.finite) m.Adapt(batch, kl);
  }
  if (result.finite) undo.controls = nullptr;
  if (m.rl()) TrainerImpl::PolicyMetrics(step, plan, result.metrics);
  result.scored = step.scored;
  m.EarlyMetrics(step, result.metrics);
  if (step.gradient_bytes > 0)
    result.metrics["memory/gradients_bytes"] = static_cast<double>(step.gradient_bytes);
  if (o.share_weights)
    result.metrics["memory/weights_bytes"] = static_cast<double>(
        m.optimizer->owned().size() * m.optimizer->weight_bytes() + m.decoder->weights().strips_bytes());
  m.LossMetrics(step, done, before, result.metrics);
  step.times.total = total.Lap();
  int64_t tokens = 0;
  for (const Row& row : batch.rows) tokens += Tokens(row);
  TimeMetrics(step.times, tokens, step.computed, result.metrics);
  return result;
} catch (...) {
  return AtTheDoor(*impl_->options.device);
}

std::vector<NamedBytes> Trainer::State() {
  TrainerImpl& m = *impl_;
  std::vector<NamedBytes> state = m.trained().State();
  if (m.rl() && m.value != nullptr) {
    for (const NamedBytes& part : m.value->optimizer().State())
      state.push_back({"critic." + part.name, part.bytes, part.piece});
  }
  if (m.controls != &m.spare)
    state.push_back({"controls", m.controls_memory.bytes().first(sizeof(Controls))});
  return state;
}

void Trainer::WeightsChanged() {
  TrainerImpl& m = *impl_;
  for (const auto& decoder : {m.decoder.get(), m.reference.get(), m.teacher.get()})
    if (decoder != nullptr) decoder->WeightsChanged();
  if (m.value != nullptr) m.value->WeightsChanged();
  m.early.Clear();
  m.previewed = {};
}

void Trainer::ReleaseScratch() {
  TrainerImpl& m = *impl_;
  if (m.decoder != nullptr) m.decoder->ReleaseScratch();
  if (m.gradients != nullptr) m.gradients->Release();
  if (m.value != nullptr) m.value->ReleaseScratch();
  if (m.reference != nullptr) m.reference->ReleaseScratch();
  if (m.teacher != nullptr) m.teacher->ReleaseScratch();
  m.previewed = {};
}
model::MemoryUse Trainer::held() const {
  const TrainerImpl& m = *impl_;
  model::MemoryUse use{.activations = m.options.device->scratch_bytes()};
  for (const auto& decoder : {m.decoder.get(), m.reference.get(), m.teacher.get()})
    if (decoder != nullptr) use.activations += decoder->held_bytes();
  if (m.gradients != nullptr) use.gradients = m.gradients->held_bytes();
  if (m.optimizer != nullptr) use.optimizer = m.optimizer->bytes();
  if (m.value != nullptr) use += m.value->held();
  return use;
}
int64_t TrainerImpl::updates() const {
  return trained().updates() + (rl() && value != nullptr ? value->optimizer().updates() : 0);
}
int64_t Trainer::updates() const { return impl_->updates(); }
uint64_t TrainerImpl::DigestWith(uint64_t weights_digest) const {
  if (!rl() || value == nullptr) return weights_digest;
  const uint64_t both[] = {weights_digest, value->weights().Digest()};
  return Hash64(std::as_bytes(std::span(both)), 0);
}
uint64_t Trainer::Digest(uint64_t weights) const { return impl_->DigestWith(weights); }

}  // namespace tidepool::train
