#include "workers/controller/run_metrics.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/base/thread_annotations.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {
namespace {

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Processor time of the calling thread.
double ThreadSeconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace

// What is written, by whoever's turn it is on the thread for files.
struct RunMetrics::Files {
  std::optional<observe::MetricsWriter> jsonl;
  std::optional<observe::TensorBoardWriter> board;
  Mutex mu;
  Status error TP_GUARDED_BY(mu);  // the first that nobody was told of
};

StatusOr<std::unique_ptr<RunMetrics>> RunMetrics::Open(const JobConfig& config, const std::string& run_dir,
                                                       DiskThread& files) {
  std::unique_ptr<RunMetrics> metrics(new RunMetrics(files));
  if (!config.cluster.pace.empty()) metrics->pace_scale_ = config.cluster.pace_scale;
  const std::string path = storage::RunPaths(run_dir).metrics();
  metrics->environment_ = config.environment() != nullptr;
  // What cannot be read of earlier lives is left out: it decides nothing.
  (void)observe::ForEachMetricsRow(path, [&](const observe::MetricsRow& row) {
    metrics->earlier_s_ = std::max(metrics->earlier_s_, row.wall_s);
    observe::AddFigures({row.step}, row.metrics, metrics->figures_);
  });
  metrics->files_ = std::make_shared<Files>();
  TP_ASSIGN_OR_RETURN(metrics->files_->jsonl, observe::MetricsWriter::Create(path));
  if (config.observe.tensorboard) {
    TP_ASSIGN_OR_RETURN(metrics->files_->board, observe::TensorBoardWriter::Create(
                                                    storage::RunPaths(run_dir).tensorboard(), UnixSeconds()));
  }
  return metrics;
}

void RunMetrics::OnTokens(const up::StepTokens& step, TimePoint) {
  int64_t made = 0;
  for (const auto& c : step.chunks) made += c.tokens.size();
  tokens_ += made;
  totals_.tokens += made;
  totals_.prefill_tokens += step.prefill_tokens;
  totals_.prefix_hit_tokens += step.prefix_hit_tokens;
  prefill_ += step.prefill_tokens;
  prefix_hits_ += step.prefix_hit_tokens;
  gen_s_ += step.step_s;
  time_.Busy(Role::kRollout, step.step_s);
  kv_usage_ = std::max(kv_usage_, step.kv_usage);
  running_ = std::max(running_, step.running);
  waiting_ = std::max(waiting_, step.waiting);
}

// A plug-in may say anything: a sum takes no NaN, and names are not without end.
void RunMetrics::AddRewards(const std::vector<std::pair<std::string, double>>& rewards) {
  constexpr size_t kMostNames = 256;
  for (const auto& [name, value] : rewards) {
    if (!std::isfinite(value) || (rewards_.size() >= kMostNames && !rewards_.contains(name))) continue;
    auto& [sum, count] = rewards_[name];
    sum += value;
    ++count;
  }
}

void RunMetrics::OnGraded(const up::Graded& graded) {
  reward_s_ += graded.seconds;
  ++totals_.graded[graded.outcome];
  totals_.reward_retries += graded.retries;
  if (graded.retries > 0) counts_["reward/retries"] += static_cast<double>(graded.retries);
  if (graded.tid.is_eval()) return;
  AddRewards(graded.rewards);
  if (graded.outcome == GradeOutcome::kInfra) counts_["reward/infra_errors"] += 1;
  if (graded.outcome == GradeOutcome::kData) counts_["reward/data_errors"] += 1;
}

void RunMetrics::OnEnvironment(const up::EnvStepped& stepped) {
  (stepped.turn == 0 ? reset_s_ : turn_s_) += stepped.seconds;
  ++(stepped.turn == 0 ? resets_ : turns_);
  ++totals_.turns[stepped.outcome];
  if (stepped.outcome == GradeOutcome::kInfra) counts_["env/infra_errors"] += 1;
  if (stepped.outcome == GradeOutcome::kData) counts_["env/data_errors"] += 1;
  if (stepped.timed_out) counts_["env/timeouts"] += 1;
  if (stepped.replayed > 0) counts_["env/replayed_turns"] += static_cast<double>(stepped.replayed);
  if (!stepped.done || stepped.tid.is_eval()) return;
  AddRewards(stepped.rewards);
}

void RunMetrics::OnBatch(const std::vector<BatchRow>& rows) {
  int64_t tokens = 0, prompt = 0, response = 0;
  batch_bytes_ = 0;
  for (const BatchRow& row : rows) {
    const record::Enq& e = row.stored;
    prompt = std::max(prompt, e.prompt_len);
    response = std::max(response, e.response_len);
    tokens += e.prompt_len + e.response_len;
    batch_bytes_ += static_cast<double>(e.payload_bytes);
  }
  // A rectangle of the longest prompt and the longest response, as many bytes a token.
  const double padded = static_cast<double>((prompt + response) * static_cast<int64_t>(rows.size())) /
                        static_cast<double>(std::max<int64_t>(1, tokens));
  padded_bytes_ = batch_bytes_ * std::max(0.0, padded - 1);
}

void RunMetrics::OnRowsServed(int64_t bytes) {
  counts_["data_plane/bytes"] += static_cast<double>(bytes - std::exchange(row_bytes_, bytes));
  counts_["data_plane/batch_bytes"] = batch_bytes_;
  counts_["data_plane/padded_bytes_avoided"] = padded_bytes_;
}

void RunMetrics::OnTrainDone(const up::TrainDone& done) {
  auto& m = trained_[done.step];
  m.clear();
  double early = 0;  // of this rank
  for (const auto& [name, value] : done.metrics) {
    (name == up::kColumnsEarly ? early : m[name]) = value;
  }
  if (early > 0) m["timing_s/columns_early"] = early;
  m["timing_s/update_actor"] = done.seconds;
  counts_["data_plane/read_bytes"] += static_cast<double>(done.read_bytes);
  if (done.change.generates) {
    counts_["phase_change/bytes"] += static_cast<double>(done.change.bytes);
    counts_["phase_change/bound_bytes"] += static_cast<double>(done.change.bound_bytes);
    double& slowest = counts_["timing_s/phase_change"];
    slowest = std::max(slowest, done.change.seconds);
  }
  time_.Busy(Role::kActor, done.seconds + early);
}

void RunMetrics::OnPulled(const up::Pulled& pulled) {
  if (pulled.bytes == 0) return;  // it is still coming, or another worker has brought it
  totals_.pulled_bytes += pulled.bytes;
  counts_["weights/pulled_bytes"] += static_cast<double>(pulled.bytes);
  counts_["weights/pulled_whole_bytes"] += static_cast<double>(pulled.whole_bytes);
}

void RunMetrics::OnLoaded(const up::Loaded& loaded) {
  load_s_ += loaded.seconds;
  totals_.loaded_bytes += loaded.bytes;
  if (loaded.error.empty()) loaded_[loaded.slot] = loaded.v;
  counts_["weights/bytes"] += static_cast<double>(loaded.bytes);
}

void RunMetrics::OnHeartbeat(int64_t place, const up::Heartbeat& beat) {
  peak_bytes_[place] = std::max(peak_bytes_[place], beat.rss_bytes);
  Beat& now = beats_[place] = {.doing = beat.op, .pages = beat.pages};
  for (const scheduler::event::EngineSample& engine : beat.engines) {
    now.running += engine.running;
    now.waiting += engine.waiting;
    now.kv_usage = std::max(now.kv_usage, engine.kv_usage);
  }
  if (beat.paced_steps == 0) return;
  PaceCount& last = pace_[place];
  if (beat.paced_steps < last.steps) {  // another incarnation
    pace_ended_.steps += last.steps;
    pace_ended_.missed += last.missed;
    pace_ended_.scale_needed = std::max(pace_ended_.scale_needed, last.scale_needed);
  }
  last = {beat.paced_steps, beat.paced_missed, beat.pace_scale_needed};
}

PaceCount RunMetrics::paced() const {
  PaceCount all = pace_ended_;
  for (const auto& [place, c] : pace_) {
    all.steps += c.steps;
    all.missed += c.missed;
    all.scale_needed = std::max(all.scale_needed, c.scale_needed);
  }
  return all;
}

void RunMetrics::OnHold(SlotId slot, Role role, TimePoint now) {
  time_.Hold(slot.value, role, Seconds(now.since_start));
  held_[slot] = role;
}

void RunMetrics::OnCheckpoint(double seconds) {
  checkpoint_s_ += seconds;
  phase_seconds_["save"] += seconds;
  totals_.checkpoint_s.Add(seconds);
}

Status RunMetrics::Write(int64_t step, const Version& version, TimePoint now,
                         const std::map<std::string, double>& metrics) {
  thread_.Do("write of metrics.jsonl",
             [files = files_, step, unix_s = UnixSeconds(),
              row = observe::MetricsRow{step, version, earlier_s_ + Seconds(now.since_start), metrics}](
                 const DiskThread::Say&) {
               Status written = files->jsonl->Write(row);
               if (files->board && written.ok()) written = files->board->Write(step, unix_s, row.metrics);
               const MutexLock lock(files->mu);
               if (files->error.ok()) files->error = written;
             });
  const MutexLock lock(files_->mu);
  return std::exchange(files_->error, OkStatus());
}

Status RunMetrics::WriteStep(const scheduler::command::StepReport& report,
                             const scheduler::ControllerView& view, TimePoint now) {
  std::map<std::string, double> m;
  if (const auto it = trained_.find(report.step); it != trained_.end()) m = std::move(it->second);
  trained_.erase(trained_.begin(), trained_.upper_bound(report.step));
  for (const auto& [name, sum] : rewards_) {
    if (sum.second > 0) m["reward/" + name + "/mean"] = sum.first / static_cast<double>(sum.second);
  }
  const double wall = any_write_ ? Seconds(now - last_write_) : 0;
  ++totals_.steps;
  if (wall > 0) totals_.step_s.Add(wall);
  m["staleness/mean"] = report.lag_mean;
  m["staleness/max"] = static_cast<double>(report.lag_max);
  for (size_t i = 0; i < report.lag_hist.size(); ++i)
    m["staleness/hist/" + std::to_string(i)] = static_cast<double>(report.lag_hist[i]);
  m["drop/stale"] = static_cast<double>(report.dropped_stale);
  m["drop/filtered"] = static_cast<double>(report.filtered);
  if (report.redundant > 0) {
    const auto redundant = static_cast<double>(report.redundant);
    m["drop/overflow_policy"] = redundant;
    m["drop/overflow_policy/length"] = static_cast<double>(report.redundant_tokens) / redundant;
  }
  if (const scheduler::GroupSignal& signal = report.signal; signal.groups > 0) {
    const auto share = [&](int64_t n) { return static_cast<double>(n) / static_cast<double>(signal.groups); };
    m["reward/frac_reward_zero_std"] = share(signal.equal);
    if (signal.verdicts) {
      m["reward/solve_all"] = share(signal.all_right);
      m["reward/solve_none"] = share(signal.all_wrong);
    }
  }
  m["ledger/open"] = static_cast<double>(view.open_groups);
  m["ledger/running"] = static_cast<double>(view.running);
  m["ledger/awaiting"] = static_cast<double>(view.awaiting);
  m["ledger/queued"] = static_cast<double>(view.queued);
  m["ledger/capacity"] = static_cast<double>(view.capacity);
  m["rollout/kv_usage"] = kv_usage_;
  m["rollout/running"] = static_cast<double>(running_);
  m["rollout/waiting"] = static_cast<double>(waiting_);
  if (tokens_ > 0) m["rollout/prefill_tokens"] = static_cast<double>(prefill_);
  if (prefill_ + prefix_hits_ > 0)
    m["rollout/prefix_hit_ratio"] =
        static_cast<double>(prefix_hits_) / static_cast<double>(prefill_ + prefix_hits_);
  m["timing_s/gen"] = gen_s_;
  m["timing_s/reward"] = reward_s_;
  m["timing_s/update_weights"] = load_s_;
  m["timing_s/save"] = checkpoint_s_;
  const double used = ThreadSeconds(), controller_s = used - std::exchange(thread_s_, used);
  m["timing_s/controller"] = controller_s;
  m["timing_s/journal"] = sync_s_;
  m["worker/restarts"] = static_cast<double>(view.restarts);
  if (environment_) {
    for (const char* name : {"env/infra_errors", "env/data_errors", "env/timeouts"}) m[name] = 0;
    if (turns_ > 0) m["env/step_s"] = turn_s_ / static_cast<double>(turns_);
    if (resets_ > 0) m["env/reset_s"] = reset_s_ / static_cast<double>(resets_);
    m["dispatch/waiting_env"] = static_cast<double>(view.waiting_env);
    m["dispatch/env_turns"] = static_cast<double>(view.env_turns - env_turns_);
    m["dispatch/env_retries"] = static_cast<double>(view.env_retries - env_retries_);
    env_turns_ = view.env_turns;
    env_retries_ = view.env_retries;
    turn_s_ = reset_s_ = 0;
    turns_ = resets_ = 0;
  }
  for (const auto& [name, value] : counts_) m[name] = value;
  const scheduler::SlotTime::Cut time = time_.Take(Seconds(now.since_start));
  if (wall > 0) {
    if (time.rollout.held > 0) m["perf/idle_ratio/rollout"] = time.rollout.idle();
    if (time.actor.held > 0) m["perf/idle_ratio/actor"] = time.actor.idle();
    m["pool/held_s/rollout"] = time.rollout.held;
    m["pool/held_s/actor"] = time.actor.held;
    m["pool/busy_s/rollout"] = time.rollout.busy;
    m["pool/busy_s/actor"] = time.actor.busy;
    if (time.all > 0) m["pool/expanded_share"] = time.rollout.held / time.all;
  }
  if (pace_scale_ > 0) {
    const PaceCount pace = paced();
    m["paced/scale"] = pace_scale_;
    m["paced/missed_ratio"] =
        pace.steps > 0 ? static_cast<double>(pace.missed) / static_cast<double>(pace.steps) : 0;
    if (wall > 0) m["paced/time_per_step"] = wall / pace_scale_;
  }
  int64_t host_bytes = 0;
  for (const auto& [place, bytes] : peak_bytes_) host_bytes += bytes;
  m["memory/host_bytes"] = static_cast<double>(host_bytes);
  if (wall > 0) {
    m["timing_s/step"] = wall;
    m["perf/time_per_step"] = wall;
    m["rollout/tok_s"] = static_cast<double>(tokens_) / wall;
    const auto trained = m.find("perf/total_num_tokens");
    if (trained != m.end()) m["perf/throughput"] = trained->second / wall;
    for (const char* rate : {"rollout/tok_s", "perf/throughput"}) {
      const auto now_per_s = m.find(rate);
      if (now_per_s == m.end()) continue;
      rates_[rate].sum += now_per_s->second * wall;
      rates_[rate].seconds += wall;
    }
    const auto update = m.find("timing_s/update_actor");
    const double busy = gen_s_ + (update == m.end() ? 0 : update->second);
    // Share of the step that neither engine nor trainer had: what the framework itself costs. With both
    // at once on different slots (split) it can be below zero; then nothing was lost.
    m["perf/overhead_ratio"] = std::max(0.0, 1.0 - busy / wall);
  }
  phase_seconds_["gen"] += gen_s_;
  phase_seconds_["reward"] += reward_s_;
  phase_seconds_["update_weights"] += load_s_;
  if (const auto u = m.find("timing_s/update_actor"); u != m.end())
    phase_seconds_["update_actor"] += u->second;
  phase_seconds_["controller"] += controller_s;
  phase_seconds_["journal"] += sync_s_;
  last_write_ = now;
  any_write_ = true;
  rewards_.clear();
  counts_.clear();
  tokens_ = prefill_ = prefix_hits_ = running_ = waiting_ = 0;
  kv_usage_ = gen_s_ = reward_s_ = load_s_ = sync_s_ = checkpoint_s_ = 0;
  const Status written = Write(report.step.value, report.v, now, m);
  last_ = std::move(m);
  observe::AddFigures(report.step, last_, figures_);
  return written;
}

std::optional<double> RunMetrics::MeanRate(const std::string& name) const {
  const auto rate = rates_.find(name);
  return rate == rates_.end() ? std::nullopt : std::optional(rate->second.sum / rate->second.seconds);
}

Status RunMetrics::WriteEval(const record::EvalResult& result, TimePoint now) {
  // What was generated for the evaluation is not part of the next step.
  (void)time_.Take(Seconds(now.since_start));
  phase_seconds_["eval"] += gen_s_;
  tokens_ = prefill_ = prefix_hits_ = running_ = waiting_ = 0;
  gen_s_ = 0;
  last_write_ = now;
  any_write_ = true;
  last_eval_ = observe::EvalMetrics(result);
  return Write(result.step.value, result.v, now, last_eval_);
}

}  // namespace tidepool::workers
