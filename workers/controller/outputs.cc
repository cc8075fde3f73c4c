// What people and files are told: metrics, samples, warnings, status, the summary.

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/process_memory.h"
#include "core/observe/append_file.h"
#include "core/observe/log.h"
#include "core/storage/run_directory.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"
#include "workers/controller/reward_outage.h"
#include "workers/controller/run_log.h"
#include "workers/net/bounded_text.h"

namespace tidepool::workers {

void ControllerProcess::Do(const cmd::StepReport& c) {
  metrics_->OnRowsServed(hub_->served_row_bytes());
  const Status written = metrics_->WriteStep(c, controller_->View(), Now());
  if (!written.ok()) Warn("metrics: " + written.message(), "metrics");
  if (const std::string silent = learning_.OnStep(metrics_->last()); !silent.empty())
    Warn(silent, "nothing_learned", {{"step", std::to_string(c.step.value)}});
}

void ControllerProcess::Do(const cmd::EvalReport& c) {
  const Status written = metrics_->WriteEval(c.result, Now());
  if (!written.ok()) Warn("metrics: " + written.message(), "metrics");
}

void ControllerProcess::Remember(const JournalRecord& r) {
  if (const auto* commit = std::get_if<record::StepCommit>(&r)) committed_ = commit->step;
  if (const auto* written = std::get_if<record::CheckpointCommit>(&r))
    result_.checkpoint_step = written->step.value;
  if (const auto* restore = std::get_if<record::Restore>(&r)) {
    committed_ = restore->step;
    evals_.erase(evals_.upper_bound(restore->step), evals_.end());
    if (restore->ckpt >= 0) result_.checkpoint_step = restore->step.value;
    if (metrics_ != nullptr) metrics_->Undo(restore->step);
  }
  if (const auto* enq = std::get_if<record::Enq>(&r); enq != nullptr) {
    if (fragments_ != nullptr) fragments_->Remember(*enq);
    samples_.Drop(enq->tid);  // from here on it is read from the payload file
  }
  if (const auto* graded = std::get_if<record::Graded>(&r)) samples_.OnGraded(*graded);
  if (step_rows_ != nullptr) step_rows_->Remember(r);
  logged_->Remember(r);
  if (const auto* eval = std::get_if<record::EvalResult>(&r)) evals_[eval->step] = *eval;
}

// Said when the first worker begins to wait and when the last one is done, whatever the causes between.
void ControllerProcess::OnWaitsFor(int64_t place, const std::vector<up::Unreachable>& said) {
  const std::vector<up::Unreachable> servers = ServersOf(config_.reward, said);
  const bool waited = !waits_for_.empty();
  if (!servers.empty()) {
    waits_for_[place] = servers;
    if (!waited) Tell(UnreachableText(config_, servers, any_graded_), "rewards_wait");
  } else if (waits_for_.erase(place) > 0 && waits_for_.empty()) {
    Tell("rewards wait no longer: the server answers", "rewards_answered");
  }
}

void ControllerProcess::OnVerdict(up::Graded& verdict) {
  metrics_->OnGraded(verdict);
  // Its servers answer: told now, because a short run may end before the next heartbeat.
  if (verdict.outcome == GradeOutcome::kOk) OnWaitsFor(verdict.grader.worker.value, {});
  OnGradeEnded(verdict);
  // The row is at fault: which one.
  if (verdict.outcome == GradeOutcome::kData && fragments_ == nullptr &&
      samples_.FindRow(verdict.tid) != nullptr)
    verdict.why = rows_->Place({verdict.tid.ordinal, verdict.tid.is_eval()}) + ": " + verdict.why;
  // Of an evaluation there are no samples on record that could show it.
  if (verdict.tid.is_eval()) return;
  std::erase_if(verdict.details, [this](const auto& detail) {
    return std::ranges::none_of(config_.reward.functions,
                                [&](const auto& function) { return function.name == detail.first; });
  });
  for (auto& [function, text] : verdict.details) text = Clean(text);
  samples_.PutDetails(verdict.tid, verdict.grader, std::move(verdict.details));
}

// Said at the first grading that fails after one that did not, once a minute at most: a server that is slow
// now and then would fill the terminal.
void ControllerProcess::OnGradeEnded(const up::Graded& graded) {
  if (graded.outcome != GradeOutcome::kInfra) {
    any_graded_ = any_graded_ || graded.outcome == GradeOutcome::kOk;
    grades_fail_ = false;
    return;
  }
  if (std::exchange(grades_fail_, true) || !waits_for_.empty()) return;
  if (fail_told_ && Now() - *fail_told_ < FromSeconds(60)) return;
  fail_told_ = Now();
  Tell(FailingText(config_, graded.why, any_graded_), "rewards_fail");
}

void ControllerProcess::Do(const cmd::Finish& c) {
  finished_ = true;
  result_.exit = c.code;
  result_.why = c.why;
  result_.finished = c.complete;
  result_.stopped = stop_seen_ > 0 && !c.complete;
}

void ControllerProcess::CheckSignals() {
  const int count = request_.stop_signals == nullptr ? 0 : request_.stop_signals->count.load();
  // Whoever signals a process and its group (timeout, a batch system) says one thing twice.
  if (stop_seen_ == 1 && Now() - stopped_at_ < FromSeconds(kOneStop_s)) stops_told_ = count;
  while (stops_told_ < count && stop_seen_ < 2) {
    stops_told_ = stop_seen_ == 0 ? count : stops_told_ + 1;
    if (++stop_seen_ == 1) stopped_at_ = Now();
    const std::string name = SignalName(request_.stop_signals->last.load());
    const std::string why = (stop_seen_ == 1 ? "signal " : "second signal, ") + name;
    Log(LogLevel::kInfo, "stop_requested", {{"by", name}},
        stop_seen_ == 1 ? "a checkpoint is written, then the run ends" : "the run ends at once");
    Feed(ev::StopRequested{why, stop_seen_ > 1});
  }
}

observe::SampleRow ControllerProcess::SampleLine(ShownRow shown) const {
  const sample::Trajectory& t = shown.row.trajectory;
  observe::SampleRow line;
  line.tid = t.tid;
  line.ids = t.Ids();
  line.text = rows_->ResponseText(line.ids);
  line.logprobs = t.Logprobs();
  line.ended = t.finish != sample::Finish::kLength;
  if (!shown.source && t.prompt != nullptr) line.prompt = rows_->ResponseText(t.prompt->ids);
  if (shown.source) {
    tasks::RewardInput seen = rows_->InputOf(t.tid, *shown.source, line.ids, line.ended);
    line.prompt = std::move(seen.prompt);
    line.answer = std::move(seen.answer);
    line.fields = std::move(seen.fields);
    line.rendered_prompt = std::move(seen.rendered_prompt);
    line.file = std::move(seen.file);
    line.line = seen.line;
    line.row = seen.row;
    for (tasks::Message& m : seen.messages)
      line.messages.push_back({std::move(m.role), std::move(m.content)});
  }
  if (environment_) {
    line.loss_mask = t.LossMask(shown.row.without_loss);
    line.messages.clear();  // the turns say who speaks
    line.turns.push_back({"environment", line.prompt});
    for (const sample::Segment& s : t.segments) {
      if (s.size() == 0) continue;
      const bool said = s.kind == sample::SegmentKind::kTokens;
      line.turns.push_back({said ? "policy" : "environment",
                            said ? rows_->ResponseText(s.ids) : rows_->ObservationText(s.ids)});
    }
  }
  for (const auto& [version, count] : t.Versions())
    line.versions.insert(line.versions.end(), static_cast<size_t>(count), version.number);
  line.reward = shown.row.reward;
  line.rewards = std::move(shown.rewards);
  line.details = std::move(shown.details);
  return line;
}

void ControllerProcess::WriteSamples(StepNumber step, const std::vector<BatchRow>& batch) {
  // The trajectories of a policy of control tasks are numbers, no text.
  if (config_.rl() == nullptr || config_.model.is_policy() || config_.observe.samples_per_step == 0) return;
  std::vector<int64_t> groups;
  for (const BatchRow& row : batch) groups.push_back(row.gid.value);
  std::vector<ShownRow> shown;
  std::vector<record::Enq> payloads;
  for (const size_t i : observe::ChooseSamples(groups, config_.observe.samples_per_step)) {
    const SampleId& tid = batch[i].stored.tid;
    const auto& named = controller_->Rewards(tid);
    // That of a service is gone with the last sample that waits or was dropped: nobody here begins its games.
    const bool service = config_.environment() != nullptr && config_.environment()->is_service();
    const bool row = service ? samples_.FindRow(tid) != nullptr : EnsureRow(tid);
    payloads.push_back(batch[i].stored);
    shown.push_back({.row = batch[i],
                     .source = row ? std::optional(*samples_.FindRow(tid)) : std::nullopt,
                     .rewards = {named.begin(), named.end()},
                     .details = samples_.DetailsOf(tid)});
  }
  recorded_->Read(std::move(payloads), [this, step, shown = std::move(shown)](Trajectories read) mutable {
    std::vector<observe::SampleRow> lines;
    for (size_t i = 0; i < shown.size(); ++i) {
      if (!read[i].ok()) continue;  // whoever trains on it says so
      shown[i].row.trajectory = *std::move(read[i]);
      lines.push_back(SampleLine(std::move(shown[i])));
    }
    files_.Do("write of samples/",
              [inbox = inbox_, dir = request_.run_dir, step = step.value, lines = std::move(lines),
               folder = folder_, this](const DiskThread::Say&) {
                if (folder->MovedTo())
                  return;  // or else it would be begun anew where it was; the status tells the loop
                const Status written = observe::WriteSamples(dir, step, lines);
                if (!written.ok())
                  inbox->Put(Answer([this, written] { Warn("samples: " + written.message(), "samples"); }));
              });
  });
}

// Those of the newest step.
void ControllerProcess::TakeFigures() {
  observe::StatusFile& s = status_;
  const auto find = [](const std::map<std::string, double>& in, const char* name) {
    const auto it = in.find(name);
    return it == in.end() ? std::nullopt : std::optional<double>(it->second);
  };
  const std::map<std::string, double>& last = metrics_->last();
  if (config_.rl() != nullptr) {
    s.reward = find(last, "critic/score/mean");
    s.equal_groups = find(last, "reward/frac_reward_zero_std");
    s.response_tokens = find(last, "response_length/mean");
    s.lag_mean = find(last, "staleness/mean");
    if (const auto lag = find(last, "staleness/max")) s.lag_max = static_cast<int64_t>(*lag);
    s.tokens_per_s = find(last, "rollout/tok_s");
    s.speed_of = config_.model.is_policy() ? "steps/s generated" : "tok/s generated";
  } else {
    s.loss = find(last, "actor/loss");
    s.ranked_right = find(last, "rewards/accuracies");
    s.margin = find(last, "rewards/margins");
    s.tokens_per_s = find(last, "perf/throughput");
    s.speed_of = "tok/s trained";
  }
  if (s.reward) s.best_reward = std::max(s.best_reward.value_or(*s.reward), *s.reward);
  s.held_out = observe::HeldOutOf(evals_, metrics_->figures());
  s.elapsed_s = Seconds(Now().since_start);
}

void ControllerProcess::Show() {
  const scheduler::ControllerView view = controller_->View();
  NameMissing(view.absent);
  observe::StatusFile& s = status_;
  s.name = config_.name;
  s.state = "running";
  s.phase = view.phase;
  s.step = std::max<int64_t>(view.step.value, 0);
  s.steps = config_.train.steps;
  s.version = ToString(view.version);
  s.open_groups = view.open_groups;
  s.running = view.running;
  s.awaiting = view.awaiting;
  s.queued = view.queued;
  s.leased = view.leased;
  s.in_flight = view.in_flight;
  s.restarts = view.restarts;
  s.refused = view.refused + hub_->refused_calls();
  s.pid = getpid();
  s.waits_for = waits_for_.empty() ? "" : ServersText(config_.reward, waits_for_.begin()->second);
  if (!config_.cluster.pace.empty()) s.paced = config_.cluster.pace;
  TakeFigures();
  time_left_.OnStep(view.step.value, Now());
  const auto left = time_left_.Estimate(s.steps);
  s.left_s = left ? std::optional<double>(Seconds(*left)) : std::nullopt;
  s.still_s.reset();
  if (const auto still = time_left_.Still(Now()); still && s.step < s.steps) {
    s.still_s = Seconds(*still);
    s.left_s.reset();
    s.tokens_per_s.reset();
  }
  s.workers.clear();
  for (const auto& [place, at] : places_->places()) {
    if (!at.joined) continue;
    const auto peak = metrics_->peak_bytes().find(place);
    s.workers.push_back({.place = place,
                         .inc = at.inc.value,
                         .name = PlaceName(place),
                         .pid = launcher_.Pid(place),
                         .peak_bytes = peak == metrics_->peak_bytes().end() ? 0 : peak->second,
                         .host = at.hello.host});
    observe::WorkerFacts& worker = s.workers.back();
    for (const auto& [slot, role] : at.granted)
      if (const std::string name = Name(role);
          role != Role::kNone && worker.roles.find(name) == std::string::npos)
        worker.roles += (worker.roles.empty() ? "" : ",") + name;
    if (const auto beat = metrics_->beats().find(place); beat != metrics_->beats().end()) {
      worker.doing = beat->second.doing;
      worker.running = beat->second.running;
      worker.waiting = beat->second.waiting;
      worker.kv_usage = beat->second.kv_usage;
      worker.pages = beat->second.pages;
    }
  }
  s.restarting.clear();
  for (const auto& [worker, in, deaths, why] : view.restarting)
    s.restarting.push_back({worker.value, std::max(Seconds(in), 0.0), deaths, why, PlaceName(worker.value)});
  if (request_.on_progress) request_.on_progress(s);
  ShowPages(view);
  if (!files_.Busy()) WriteStatus();  // a picture of now is not worth a queue where the disk is slow
}

void ControllerProcess::WriteStatus() {
  files_.Do("write of status.json", [path = storage::RunPaths(request_.run_dir).status(),
                                     text = JsonOf<nlohmann::json>(status_).dump(1), folder = folder_,
                                     told = result_.moved_to, inbox = inbox_, this](const DiskThread::Say&) {
    if (const auto to = folder->MovedTo(); to && to != told)
      return inbox->Put(Answer([this, to = *to] { OnMoved(to, /*journal=*/false); }));
    (void)observe::ShowInFile(path, text);  // the next one comes soon, and summary.json has the last
  });
}

void ControllerProcess::WriteSummary() {
  observe::SummaryFile& s = result_;
  const scheduler::ControllerView view = controller_->View();
  s.steps = std::max<int64_t>(view.step.value, 0);
  s.steps_wanted = config_.train.steps;
  s.job = Name(config_.kind());
  s.name = config_.name;
  s.run_id = request_.run_id;
  s.data_identity = rows_->identity();
  s.version = BuildVersion();
  s.commit = BuildCommit();
  s.policy_version = ToString(view.version);
  s.held_out = observe::HeldOutOf(evals_, metrics_->figures());
  for (const auto& [when, step] : {std::pair("before", StepNumber{0}), std::pair("after", view.step)}) {
    const auto e = evals_.find(step);
    if (e == evals_.end() || e->second.total == 0 || (step.value == 0 && when[0] == 'a')) continue;
    s.accuracy[when] = static_cast<double>(e->second.correct) / static_cast<double>(e->second.total);
  }
  s.seconds = metrics_->phase_seconds();
  s.seconds["total"] = Seconds(Now().since_start);
  for (const auto& [place, bytes] : metrics_->peak_bytes()) s.peak_bytes[PlaceName(place)] = bytes;
  s.peak_bytes["controller"] = PeakResidentBytes();
  for (size_t i = 0; i < view.drops.size(); ++i) {
    if (view.drops[i] > 0) s.drops[Name(static_cast<DropReason>(i))] = view.drops[i];
  }
  s.issued = view.issued_samples;
  for (const char* reason : observe::kLosses) {
    if (s.drops.contains(reason)) s.lost[reason] = lost_[reason];
  }
  if (!config_.cluster.pace.empty()) {
    const PaceCount pace = metrics_->paced();
    const double missed =
        pace.steps > 0 ? static_cast<double>(pace.missed) / static_cast<double>(pace.steps) : 0;
    s.paced = {{.pace = config_.cluster.pace,
                .scale = config_.cluster.pace_scale,
                .steps = pace.steps,
                .missed = pace.missed,
                .valid = missed <= kMissedPace,
                .scale_needed = pace.scale_needed}};
    char text[240];
    std::snprintf(text, sizeof(text),
                  "paced: times are those of %s, stretched %g times; %ld of %ld steps missed their pace",
                  config_.cluster.pace.c_str(), config_.cluster.pace_scale, static_cast<long>(pace.missed),
                  static_cast<long>(pace.steps));
    s.paced_note = text;
    if (missed > kMissedPace) {
      std::snprintf(text, sizeof(text),
                    " (%.1f %%, more than 1 %%): its times are INVALID; use cluster.pace_scale=%.3g",
                    100 * missed, 1.2 * std::max(pace.scale_needed, config_.cluster.pace_scale));
      *s.paced_note += text;
    }
  }
  const bool removed =
      result_.moved_to && result_.moved_to->empty();  // nothing is made where somebody cleared up
  if (!removed) {
    files_.Do("write of summary.json",
              [fs = fs_, path = storage::RunPaths(request_.run_dir).summary(),
               text = JsonOf<nlohmann::json>(s).dump(2) + "\n"](const DiskThread::Say&) {
                const Status written = fs->WriteFile(path, text);
                if (!written.ok()) observe::Log(LogLevel::kWarn, "summary", {{"text", written.message()}});
              });
  }
  status_.state = s.exit != 0 ? "failed" : s.finished ? "finished" : "stopped";
  status_.phase = status_.state;
  status_.exit = s.exit;
  status_.why = s.why;
  status_.step = s.steps;
  status_.steps = s.steps_wanted;
  TakeFigures();  // the last steps may have ended since the last picture
  // The last step alone says little: what it was trained on was often generated in the steps before.
  status_.tokens_per_s = metrics_->MeanRate(config_.rl() != nullptr ? "rollout/tok_s" : "perf/throughput");
  status_.speed_of += ", mean of the steps";
  status_.workers.clear();
  status_.restarting.clear();
  status_.left_s.reset();
  status_.still_s.reset();
  if (request_.on_progress) request_.on_progress(status_);
  if (!removed) WriteStatus();  // also for a disk that has no room for the summary: its space is there
  if (!files_.Drain(std::chrono::seconds(storage_failed_ ? 1 : 30))) result_.disk_hangs = true;
}

}  // namespace tidepool::workers
