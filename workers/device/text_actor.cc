#include "workers/device/text_actor.h"

#include <algorithm>
#include <utility>

#include "core/model/hugging_face.h"
#include "core/model/sum_cuts.h"
#include "workers/data/row_source.h"
#include "workers/device/part_pieces.h"

namespace tidepool::workers {

namespace {

// As the trainer takes it; moves out of `in`.
train::Row RowOf(BatchRow& in) {
  const sample::Trajectory& t = in.trajectory;
  train::Row row;
  row.tid = t.tid;
  row.gid = in.gid;
  row.digest = in.stored.payload_file < 0 ? 0 : in.stored.digest;
  if (t.is_outline()) {
    row.elsewhere = {.prompt = t.prompt_size(), .response = t.size()};
  } else if (t.prompt != nullptr) {
    row.prompt = t.prompt->ids;
  }
  row.response = t.Ids();
  row.logprobs = t.Logprobs();
  row.log_kept = t.LogKept();
  row.routing = t.Routing();
  for (const auto& [v, count] : t.Versions())
    row.versions.insert(row.versions.end(), static_cast<size_t>(count), v);
  row.loss_mask = t.LossMask(in.without_loss);
  row.reward = in.reward;
  row.components = std::move(in.components);
  row.turns = t.Turns();
  row.truncated = t.finish == sample::Finish::kLength;
  return row;
}

}  // namespace

StatusOr<std::unique_ptr<Actor>> TextActor::Create(const JobConfig& config, model::Weights& weights,
                                                   ModelReader& models, const Shard& shard) {
  std::unique_ptr<TextActor> actor(new TextActor(config, models.model_dir()));
  TP_ASSIGN_OR_RETURN(train::TrainerOptions options, train::OptionsFromJob(actor->config_));
  const train::NeededCompanions needed = train::Needed(options);
  const RlJob* rl = actor->config_.rl();  // set wherever a part of rl is needed
  train::Companions companions;
  if (needed.reference) {
    const auto* dpo = std::get_if<DpoJob>(&actor->config_.job);
    const std::string& folder = dpo != nullptr ? dpo->preference.reference : rl->algorithm.kl.reference;
    // What the run starts from: below a new adapter it is there already.
    const std::string& first = actor->config_.model.lora.path;
    if (folder.empty() && weights.base() != nullptr && !first.empty()) {
      auto adapter = model::LoadAdapter(first, weights.base(), *weights.adapter());
      if (!adapter.ok()) return adapter.status().At("model.lora.path");
      actor->reference_ = *std::move(adapter);
    } else if (folder.empty() && weights.base() != nullptr) {
      companions.reference = weights.base().get();
    } else {
      const char* key = dpo != nullptr ? "preference.reference" : "algorithm.kl.reference";
      TP_ASSIGN_OR_RETURN(actor->reference_, models.Read(key, folder));
    }
  }
  if (needed.teacher) {
    const auto* distill = std::get_if<DistillJob>(&actor->config_.job);
    TP_ASSIGN_OR_RETURN(actor->teacher_,
                        models.Read(distill != nullptr ? "distill.teacher" : "algorithm.teacher",
                                    distill != nullptr ? distill->distill.teacher : rl->algorithm.teacher));
  }
  if (needed.critic) {
    // Always from the start: what it has learned is in the state that is restored next, or there is none
    // yet.
    TP_ASSIGN_OR_RETURN(actor->critic_, models.Read("algorithm.critic.path", rl->algorithm.critic.path));
    if (!actor->critic_->spec().value_head) {
      TP_ASSIGN_OR_RETURN(actor->critic_, model::WithValueHead(*actor->critic_));
    }
  }
  for (const model::Weights* further :
       {actor->reference_.get(), actor->teacher_.get(), actor->critic_.get()}) {
    if (further != nullptr) TP_RETURN_IF_ERROR(models.TryInvariance(further->spec(), further->dtype()));
  }
  options.device = models.NewDevice();
  options.part = {shard.part, shard.parts, CutOfTraining(config)};
  options.shard = {.rank = shard.rank, .world = shard.world};
  // Engines of many ranks cut sums at places of their own.
  if (config.rollout.mesh.tp > 1)
    options.clean_records =
        options.clean_records &&
        model::SumCuts(weights.spec(), {0, config.rollout.mesh.tp}, options.device->sums_in_tiles())
            .as_whole(weights.spec());
  for (model::Weights* frozen : {actor->reference_.get(), actor->teacher_.get()})
    if (frozen != nullptr && frozen->adapter() == nullptr) frozen->LayOutFor(*options.device);
  if (actor->reference_ != nullptr) companions.reference = actor->reference_.get();
  companions.teacher = actor->teacher_.get();
  companions.critic = actor->critic_.get();
  TP_ASSIGN_OR_RETURN(actor->trainer_, train::Trainer::Create(weights, options, companions));
  return std::unique_ptr<Actor>(std::move(actor));
}

int64_t TextActor::further_bytes() const {
  int64_t sum = 0;
  for (const model::Weights* further : {reference_.get(), teacher_.get(), critic_.get()})
    if (further != nullptr) sum += further->size() + further->strips_bytes();
  return sum;
}

StatusOr<train::StepResult> TextActor::Step(StepNumber step, Version version, std::vector<BatchRow> rows,
                                            const TrainProgress& progress, const comm::RankGroups& groups,
                                            std::vector<BadRow>& bad) {
  train::Batch batch;
  batch.step = step;
  batch.version = version;
  int64_t turns = 0;  // of episodes
  for (BatchRow& in : rows) {
    const sample::Trajectory& t = in.trajectory;
    for (const sample::Segment& s : t.segments)
      if (config_.environment() != nullptr && s.kind == sample::SegmentKind::kTokens && s.size() > 0) ++turns;
    batch.rows.push_back(RowOf(in));
  }
  trainer_->Join(groups.parts, groups.same);
  struct Leave {
    train::Trainer& trainer;
    ~Leave() { trainer.Join(nullptr); }
  } leave{*trainer_};
  std::map<std::string, double> evaluated;
  if (const Status before = Evaluate(step, /*before=*/true, progress, evaluated); !before.ok()) {
    if (before.code() != StatusCode::kAborted || !progress.trains("train")) return before;
    // Without it the run would never have its first figures.
    return Unavailable(
        "the evaluation before training was stopped; it and this step are made again when the run goes on");
  }
  TP_ASSIGN_OR_RETURN(
      train::StepResult result,
      trainer_->Step(
          batch,
          [&](const train::StepProgress& p) {
            return progress.trains("train " + std::to_string(p.done) + "/" + std::to_string(p.total));
          },
          groups.data, &bad));
  // The step was made, whatever becomes of its evaluation.
  if (const Status after = Evaluate(step, /*before=*/false, progress, evaluated);
      !after.ok() && after.code() != StatusCode::kAborted)
    return after;
  result.metrics.insert(evaluated.begin(), evaluated.end());
  if (turns > 0) result.metrics["turns/mean"] = static_cast<double>(turns) / static_cast<double>(rows.size());
  return result;
}

Status TextActor::Preview(std::vector<BatchRow> rows, const Version& version) {
  std::vector<train::Row> group;
  for (BatchRow& row : rows) group.push_back(RowOf(row));
  return trainer_->Preview(std::move(group), version);
}

// Held-out rows. Every rank judges them for itself: all come to the same, and none waits for another.
Status TextActor::Evaluate(StepNumber step, bool before, const TrainProgress& progress,
                           std::map<std::string, double>& metrics) {
  const EvalConfig& e = config_.eval;
  const bool last = step.value == config_.train.steps;
  const bool due = before ? step.value == 1 && e.before_train
                          : (e.every_steps > 0 && step.value % e.every_steps == 0) || (last && e.after_train);
  const bool pairs = TrainsOnPairs(config_);
  if ((!pairs && config_.kind() != JobKind::kSft) || !due) return OkStatus();
  if (config_.data.held_out == 0 && config_.data.eval_path.empty()) return OkStatus();
  // Ranks that have parts of the model read them together, so that none is left alone where another stops.
  TP_ASSIGN_OR_RETURN(const bool all_have, trainer_->Agree(held_out_.has_value()));
  if (!all_have) {
    TP_ASSIGN_OR_RETURN(const auto source, RowSource::Create(config_, model_dir_));
    const int64_t all = source->data().held_out_size(), n = e.samples > 0 ? std::min(e.samples, all) : all;
    std::vector<train::Row> rows;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 1024 == 0) {
        TP_ASSIGN_OR_RETURN(const bool go_on,
                            trainer_->Agree(progress.evaluates("read held-out rows " + std::to_string(i) +
                                                               "/" + std::to_string(n))));
        if (!go_on) return Aborted("not waited for");
      }
      const StatusOr<EncodedRow> row = source->HeldOut(i);
      if (!row.ok()) continue;  // as a training row that is bad: left out
      for (int32_t k = 0; k < (pairs ? 2 : 1); ++k) {
        train::Row answer;
        answer.tid = {i, 0, k};
        answer.gid = GroupId{i};
        answer.prompt = row->prompt;
        answer.response = k == 0 ? row->response : row->rejected;
        answer.loss_mask = k == 0 ? row->loss_mask : row->rejected_mask;
        answer.reward = k == 0 ? 1 : 0;
        rows.push_back(std::move(answer));
      }
    }
    held_out_ = std::move(rows);
  }
  if (held_out_->empty()) return OkStatus();
  TP_ASSIGN_OR_RETURN(const auto found, trainer_->Evaluate(*held_out_, [&](const train::StepProgress& p) {
    return progress.evaluates("evaluate " + std::to_string(p.done) + "/" + std::to_string(p.total));
  }));
  const std::string when = before ? "/before" : "";
  for (const auto& [name, number] : found) metrics["eval/" + name + when] = number;
  metrics["eval/loss" + when] = found.at(std::string(Name(config_.kind())) + "/loss");
  return OkStatus();
}

}  // namespace tidepool::workers
