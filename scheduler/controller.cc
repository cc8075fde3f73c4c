#include "scheduler/controller.h"

#include <algorithm>
#include <utility>

#include "core/base/hash.h"
#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {
namespace {

HealthOptions HealthOf(const JobConfig& c) {
  return {.heartbeat_s = c.cluster.heartbeat_s,
          .start_timeout_s = c.cluster.start_timeout_s,
          .seed = c.seed,
          .launch = c.cluster.launch_workers};
}

GradingOptions GradingOf(const JobConfig& c) {
  double timeout = 0;
  for (const RewardFunction& f : c.reward.functions) timeout += f.timeout_s;  // one after the other
  return {.max_retries = c.reward.max_retries,
          .in_flight_per_worker = 16,
          .timeout = FromSeconds(timeout > 0 ? timeout : 15)};
}

EpisodeOptions EpisodesOf(const JobConfig& c) {
  const EnvironmentConfig& e = c.environment;
  return {.max_retries = e.max_retries,
          .reset_timeout = FromSeconds(e.reset_timeout_s),
          .step_timeout = FromSeconds(e.step_timeout_s),
          .episode_timeout = FromSeconds(e.episode_timeout_s)};
}

int64_t EvalQuestions(const ControllerOptions& o) {
  const EvalConfig& e = o.config.eval;
  if (TrainsOnPairs(o.config)) return 0;  // judged by the trainer, in the step
  if (!e.before_train && !e.after_train && e.every_steps <= 0) return 0;
  return e.samples > 0 ? std::min(e.samples, o.eval_rows) : o.eval_rows;
}

Status Validate(const ControllerOptions& o) {
  const JobConfig& c = o.config;
  if (c.job != "rl" && c.job != "sft" && c.job != "distill" && !TrainsOnPairs(c)) {
    return InvalidArgument("job is '" + c.job +
                           "'; the controller runs rl, sft, dpo, reward_model and distill");
  }
  if (o.data_rows <= 0) return InvalidArgument("the data set has no rows; a run needs at least one");
  if (c.train.groups_per_step <= 0) return InvalidArgument("train.groups_per_step has to be positive");
  if (c.job == "rl" && c.rollout.group_size <= 0)
    return InvalidArgument("rollout.group_size has to be positive");
  if (c.job == "rl" && c.rollout.max_new_tokens <= 0)
    return InvalidArgument("rollout.max_new_tokens has to be positive");
  if (c.scheduler.max_lag_versions < 0)
    return InvalidArgument("scheduler.max_lag_versions has to be 0 or more");
  if (c.cluster.slots <= 0) return InvalidArgument("cluster.slots has to be positive");
  const PolicyRegistry builtin;
  const NamedPolicy* policy = (o.policies == nullptr ? builtin : *o.policies).Find(c.scheduler.placement);
  if (policy == nullptr) {
    std::string known;
    for (const NamedPolicy* p : (o.policies == nullptr ? builtin : *o.policies).All())
      known += (known.empty() ? "" : ", ") + p->name;
    return InvalidArgument("scheduler.placement is '" + c.scheduler.placement + "'; known: " + known);
  }
  const int64_t actors = c.scheduler.actor_slots;
  const bool generates = c.job == "rl" || EvalQuestions(o) > 0;
  if (actors <= 0) return InvalidArgument("scheduler.actor_slots has to be positive");
  if (c.scheduler.placement == "split" && generates && actors >= c.cluster.slots) {
    return InvalidArgument("scheduler.placement split needs cluster.slots above scheduler.actor_slots (" +
                           std::to_string(actors) + "): those train, the rest generate");
  }
  if (c.scheduler.placement == "multiplexed" && c.cluster.slots - actors < c.scheduler.rollout_floor) {
    return InvalidArgument("scheduler.actor_slots " + std::to_string(actors) + " of " +
                           std::to_string(c.cluster.slots) +
                           " slots leaves fewer than scheduler.rollout_floor " +
                           std::to_string(c.scheduler.rollout_floor) + " to generate");
  }
  if (c.scheduler.placement == "elastic" && c.cluster.slots <= c.scheduler.rollout_floor) {
    return InvalidArgument("scheduler.rollout_floor " + std::to_string(c.scheduler.rollout_floor) + " of " +
                           std::to_string(c.cluster.slots) + " slots leaves none to train");
  }
  if (c.scheduler.placement == "elastic" && c.deterministic) {
    return InvalidArgument(
        "scheduler.placement elastic changes how many slots train, and with it how sums round; "
        "deterministic needs colocated, split or multiplexed");
  }
  const int64_t dp = c.scheduler.placement == "colocated" ? c.cluster.slots : actors;
  if (c.scheduler.placement != "elastic" && !ValidDp(dp, c.train.groups_per_step, c.scheduler.uneven_dp)) {
    return InvalidArgument(
        std::to_string(dp) + " slots cannot share train.groups_per_step " +
        std::to_string(c.train.groups_per_step) +
        (c.scheduler.uneven_dp ? "; train on fewer" : " evenly; change one of them, or scheduler.uneven_dp"));
  }
  const std::string& stale = c.scheduler.on_stale;
  if (stale != "reissue" && stale != "mask" && stale != "drop") {
    return InvalidArgument("scheduler.on_stale is '" + stale + "'; known: reissue, mask, drop");
  }
  const std::string& mode = c.scheduler.oversample_mode;
  if (mode != "start_order" && mode != "first_done" && mode != "tail_rounds") {
    return InvalidArgument("scheduler.oversample_mode is '" + mode +
                           "'; known: start_order, first_done, tail_rounds");
  }
  if (c.scheduler.oversample < 1) return InvalidArgument("scheduler.oversample has to be 1 or more");
  if (c.scheduler.min_step_batch_fraction <= 0 || c.scheduler.min_step_batch_fraction > 1) {
    return InvalidArgument("scheduler.min_step_batch_fraction has to be in (0, 1]");
  }
  if ((c.job == "rl" || EvalQuestions(o) > 0) && c.environment.name.empty() && c.reward.workers <= 0)
    return InvalidArgument("reward.workers has to be positive");
  if (!c.environment.name.empty() && c.job != "rl")
    return InvalidArgument("environment.name belongs to job: rl");
  if (!c.environment.name.empty() && c.environment.workers <= 0)
    return InvalidArgument("environment.workers has to be positive");
  return OkStatus();
}

Status SameRun(const record::RunTerms& was, const ControllerOptions& o) {
  const JobConfig& c = o.config;
  const auto differs = [](const char* key, const std::string& a, const std::string& b) {
    return InvalidArgument(std::string(key) + " is " + b + ", but the run was begun with " + a +
                           "; it cannot change on --resume (start anew with --fresh)");
  };
  const int64_t group_size = SamplesPerRow(c);
  if (was.job != c.job) return differs("job", was.job, c.job);
  if (was.groups_per_step != c.train.groups_per_step) {
    return differs("train.groups_per_step", std::to_string(was.groups_per_step),
                   std::to_string(c.train.groups_per_step));
  }
  if (was.group_size != group_size)
    return differs("rollout.group_size", std::to_string(was.group_size), std::to_string(group_size));
  if (was.data_size != o.data_rows)
    return differs("the number of data rows", std::to_string(was.data_size), std::to_string(o.data_rows));
  return OkStatus();
}

}  // namespace

Controller::Impl::Impl(const ControllerOptions& o)
    : options(o),
      rl(o.config.job == "rl"),
      policy(*(o.policies == nullptr ? PolicyRegistry() : *o.policies).Find(o.config.scheduler.placement)),
      fleet{.slots = {},
            .actor_slots = o.config.scheduler.actor_slots,
            .rollout_floor = o.config.scheduler.rollout_floor,
            .uneven_dp = o.config.scheduler.uneven_dp,
            .need_bytes_rollout = o.device_bytes_need_rollout,
            .need_bytes_actor = o.device_bytes_need_actor},
      eval_questions(EvalQuestions(o)),
      environment(rl && !o.config.environment.name.empty() && o.config.model.policy.empty()),
      needs_rollout(rl || eval_questions > 0),
      needs_reward((rl || eval_questions > 0) && !environment),
      max_new(o.config.rollout.max_new_tokens),
      out(state),
      health(HealthOf(o.config)),
      pool({.need_bytes_rollout = o.device_bytes_need_rollout, .need_bytes_actor = o.device_bytes_need_actor},
           state, out, waits),
      dispatcher(
          {.chunk_tokens = ChunkTokens(o.config.rollout.chunk_tokens, max_new, o.config.rollout.block_tokens),
           .max_concurrent = std::max<int64_t>(o.config.rollout.max_concurrent, 1),
           .kv_cache_tokens = o.config.rollout.kv_cache_tokens,
           .order = o.dispatch.order,
           .oracle = o.dispatch.oracle,
           .reserve = o.config.rollout.admission != "adaptive",
           .pin = o.config.rollout.pin_version,
           .group_size = SamplesPerRow(o.config)}),
      grading(GradingOf(o.config)),
      episodes(EpisodesOf(o.config)),
      evaluation(eval_questions),
      checkpoints({.every_steps = o.config.checkpoint.every_steps, .keep = o.config.checkpoint.keep}),
      watchdog(FromSeconds(o.config.cluster.stall_timeout_s)),
      tokens_kept(SamplesPerRow(o.config)) {
  if (o.config.rollout.admission != "adaptive") return;
  const auto most = static_cast<double>(std::max<int64_t>(o.config.rollout.max_concurrent, 1));
  const auto slots = static_cast<double>(o.config.cluster.slots);
  const auto whole = static_cast<double>(std::max<int64_t>(o.config.data.max_prompt_tokens + max_new, 1));
  const double start = o.config.rollout.kv_cache_tokens > 0
                           ? slots * static_cast<double>(o.config.rollout.kv_cache_tokens) / whole
                           : most;
  kv.emplace(std::clamp(start, 1.0, most), 1.0, most);
  dispatcher.SetCap(kv->cap());
}

StatusOr<std::unique_ptr<Controller>> Controller::Create(const ControllerOptions& options,
                                                         const std::vector<JournalEntry>& journal) {
  TP_RETURN_IF_ERROR(Validate(options));
  auto controller = std::unique_ptr<Controller>(new Controller());
  controller->impl_ = std::make_unique<Impl>(options);
  Impl& impl = *controller->impl_;
  for (const JournalEntry& e : journal) {
    if (e.lsn.valid() && e.lsn != impl.state.next_lsn()) {
      return DataLoss("journal: record " + std::to_string(e.lsn.value) + " where " +
                      std::to_string(impl.state.next_lsn().value) + " was expected");
    }
    TP_RETURN_IF_ERROR(impl.state.Apply(e.record));
  }
  if (!journal.empty()) {
    if (!impl.state.config()) return DataLoss("journal: its first record is not CONFIG");
    TP_RETURN_IF_ERROR(SameRun(*impl.state.config(), options));
  }
  return controller;
}

Controller::Controller() = default;
Controller::~Controller() = default;

std::vector<Command> Controller::Handle(const Event& event, TimePoint now) {
  Impl& impl = *impl_;
  impl.now = now;
  if (impl.finished) return {};
  if (!impl.started && !std::holds_alternative<event::Started>(event)) return {};
  std::visit([&](const auto& e) { impl.On(e); }, event);
  // Tokens alone decide nothing.
  if (!std::holds_alternative<event::ChunkProgress>(event) &&
      !std::holds_alternative<event::Heartbeat>(event)) {
    if (!impl.finished) impl.Advance();
  }
  return impl.out.Take();
}

bool Controller::Impl::Refuse() {
  ++refused;
  return false;
}

void Controller::Impl::Fail(const std::string& kind, const std::string& actor, Incarnation inc,
                            const std::string& what) {
  if (finished) return;
  out.Record(record::Fault{kind, actor, inc, what});
  Finish(3, "fault=" + kind + " actor=" + (actor.empty() ? "controller" : actor) +
                " step=" + std::to_string(state.step().value + (trainer.training ? 1 : 0)) + ": " + what);
}

void Controller::Impl::Finish(int code, const std::string& why, bool complete) {
  if (finished) return;
  pool.Abandon("the run ends", now);
  out.Record(record::EndRun{code, why, complete ? 1 : 0});
  out.Do(command::Finish{code, why});
  finished = true;
}

void Controller::Impl::Advance() {
  // Each step looks at facts only; the order is that in which one enables the next within one event.
  AdvanceState();
  AdvanceCheckpoint();
  AdvanceTraining();
  RollWeights();
  AdvanceEvaluation();
  Admit();
  ReleaseAhead();
  AssignGrades();
  AdvancePool();
  AdvanceEnd();
  if (!finished) Dispatch();
}

void Controller::Impl::On(const event::Heartbeat& e) {
  if (!health.IsCurrent(e.worker)) {
    Refuse();
    return;
  }
  const auto* before = health.Find(e.worker.worker);
  const int64_t seq = before->op_seq;
  health.Heard(e.worker.worker, e, now);
  SampleEngine(e);
  if (e.engine && e.engine->step_s > 0)
    token_s = token_s == 0 ? e.engine->step_s : 0.9 * token_s + 0.1 * e.engine->step_s;
  if (e.op_seq != seq) {  // a long operation moves
    Moved();
    waits.Extend({WaitKind::kTrain, e.worker.worker.value}, now + TrainPatience());
  }
}

void Controller::Impl::On(const event::StopRequested& e) {
  if (e.now || shutdown.requested()) {
    Fail("stopped", "operator", {}, e.why.empty() ? "stopped at once" : e.why);
    return;
  }
  shutdown.Request(e.why.empty() ? "stop requested" : e.why, now);
  CancelEvaluation("the run is being stopped");
}

void Controller::Impl::On(const event::StorageFailed& e) {
  // The journal itself may be what failed, so nothing is appended.
  out.Do(command::Finish{
      3, "fault=storage actor=controller step=" + std::to_string(state.step().value) + ": " + e.what});
  finished = true;
}

void Controller::Impl::On(const event::Tick&) {
  CheckHealth();
  if (!finished && environment) CheckEpisodes();
  if (!finished) CheckDeadlines();
  if (!finished) WeighWorkers();
  if (!finished) Repack();
  if (!finished) AdvancePool(/*again=*/true);
}

ControllerView Controller::View() const {
  const Impl& i = *impl_;
  const Ledger& l = i.state.ledger();
  ControllerView v;
  v.step = i.state.step();
  v.version = i.state.version();
  v.open_groups = l.open();
  v.running = l.CountGroups(GroupPhase::kRunning);
  v.awaiting = l.CountGroups(GroupPhase::kAwaiting);
  v.queued = l.CountGroups(GroupPhase::kQueued);
  v.leased = l.CountGroups(GroupPhase::kLeased);
  v.capacity = l.rules().capacity();
  v.trained_samples = l.trained_samples();
  v.issued_samples = l.issued_samples();
  v.drops.assign(l.drops().begin(), l.drops().end());
  v.chunks = i.dispatcher.chunks();
  v.restarts = i.health.restarts();
  v.refused = i.refused;
  v.in_flight = i.dispatcher.in_flight();
  v.waiting_env = i.dispatcher.waiting_env();
  v.env_turns = i.episodes.turns();
  v.env_retries = i.episodes.retries();
  v.finished = i.finished;
  v.rollbacks = i.pool.rollbacks();
  for (const auto& [id, s] : i.pool.slots()) {
    if (s.t.valid() || s.phase == SlotPhase::kGranting || s.phase == SlotPhase::kReleasing)
      ++v.moving_slots;
    else if (s.phase == SlotPhase::kHeld)
      ++(s.role == Role::kActor ? v.actor_slots : v.rollout_slots);
  }
  v.phase = i.finished                                                  ? "done"
            : !i.started || i.trainer.phase != Impl::StatePhase::kReady ? "starting"
            : i.shutdown.requested()                                    ? "stopping"
            : i.evaluation.active()                                     ? "evaluating"
            : i.writing && i.writing->step.value == 0                   ? "checkpointing"
            : i.StepsDone() ? (i.writing ? "checkpointing" : "stopping")
                            : "running";
  return v;
}

int64_t Controller::Lag(const Version& made, const Version& trained) const {
  return impl_->state.versions().Lag(made, trained);
}

const record::Enq* Controller::FindPayload(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  if (s == nullptr || (s->phase != SamplePhase::kAwaiting && s->phase != SamplePhase::kReady)) return nullptr;
  return &s->enq;
}

bool Controller::Expects(const WorkerRef& worker, const SampleId& tid, int32_t att) const {
  const Request* r = impl_->dispatcher.Find(tid);
  return r != nullptr && r->att == att && r->on == worker && impl_->health.IsCurrent(worker);
}

double Controller::Reward(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  TP_CHECK(s != nullptr && s->phase == SamplePhase::kReady) << "no reward of " << ToString(tid);
  return s->reward;
}

const std::vector<std::pair<std::string, double>>& Controller::Rewards(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  TP_CHECK(s != nullptr && s->phase == SamplePhase::kReady) << "no rewards of " << ToString(tid);
  return s->rewards;
}

int64_t Controller::OldestPayloadFile() const {
  int64_t oldest = INT64_MAX;
  for (const auto& [key, g] : impl_->state.ledger().groups()) {
    for (const Sample& s : g.samples) {
      const bool stored = s.phase == SamplePhase::kAwaiting || s.phase == SamplePhase::kReady;
      if (stored && s.enq.payload_file >= 0) oldest = std::min(oldest, s.enq.payload_file);
    }
  }
  return oldest;
}

uint64_t Controller::StateDigest() const {
  const Impl& i = *impl_;
  uint64_t h = 0x7469646570ULL;
  const auto mix = [&h](int64_t x) { h = Mix64(h ^ static_cast<uint64_t>(x)); };
  mix(i.state.next_lsn().value);
  mix(i.state.step().value);
  mix(i.state.version().lineage);
  mix(static_cast<int64_t>(i.state.WeightsDigest(i.state.version())));
  for (const auto& [key, g] : i.state.ledger().groups()) {
    mix(key.ordinal), mix(key.issue), mix(g.gid.value), mix(static_cast<int64_t>(g.phase));
    for (const Sample& s : g.samples)
      mix(static_cast<int64_t>(s.phase)), mix(s.att), mix(static_cast<int64_t>(s.enq.digest));
  }
  for (const auto& [id, s] : i.pool.slots())
    mix(static_cast<int64_t>(s.phase)), mix(s.epoch.value), mix(s.holder.inc.value);
  for (const SampleId& tid : i.dispatcher.Requests()) {
    const Request& r = *i.dispatcher.Find(tid);
    mix(tid.ordinal), mix(tid.sample), mix(r.generated), mix(r.on.inc.value);
  }
  mix(i.dispatcher.chunks()), mix(i.health.restarts()), mix(i.refused), mix(i.finished ? 1 : 0);
  return h;
}

}  // namespace tidepool::scheduler
