// What people and files are told: metrics, samples, warnings, status, the summary.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/process_memory.h"
#include "core/observe/log.h"
#include "core/observe/samples_writer.h"
#include "core/storage/run_directory.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {

void ControllerProcess::Do(const cmd::StepReport& c) {
  const Status written = metrics_->WriteStep(c, controller_->View(), Now());
  if (!written.ok()) Warn("metrics: " + written.message());
}

void ControllerProcess::Do(const cmd::EvalReport& c) {
  const Status written = metrics_->WriteEval(c.result, Now());
  if (!written.ok()) Warn("metrics: " + written.message());
}

void ControllerProcess::TellUndone(const record::Restore& r) {
  if (r.step >= committed_) return;
  Tell("the run goes back from step " + std::to_string(committed_.value) + " to step " +
       std::to_string(r.step.value) + " (" +
       (r.ckpt < 0 ? "recovery copy" : "checkpoint " + std::to_string(r.ckpt)) +
       "), because the newer state was lost with the process that held it; the steps after it are trained "
       "again on the same samples");
}

void ControllerProcess::Remember(const JournalRecord& r) {
  if (const auto* commit = std::get_if<record::StepCommit>(&r)) committed_ = commit->step;
  if (const auto* restore = std::get_if<record::Restore>(&r)) {
    committed_ = restore->step;
    evals_.erase(evals_.upper_bound(restore->step), evals_.end());
  }
  if (const auto* enq = std::get_if<record::Enq>(&r); enq != nullptr) {
    if (fragments_ != nullptr) fragments_->Remember(*enq);
    samples_.Drop(enq->tid);  // from here on it is read from the payload file
  }
  step_rows_->Remember(r);
  if (const auto* eval = std::get_if<record::EvalResult>(&r)) evals_[eval->step] = *eval;
}

void ControllerProcess::Do(const cmd::Warn& c) { Warn(c.line); }

void ControllerProcess::Warn(const std::string& line) {
  status_.last_warning = line;
  Log(line);
}

void ControllerProcess::Tell(const std::string& line) {
  if (request_.say) request_.say(line);
  Log(line);
}

void ControllerProcess::Log(const std::string& line) {
  files_.Do("write of logs/controller.log", [line](const DiskThread::Say&) {
    observe::Log(observe::LogLevel::kWarn, "controller", {{"why", line}});
  });
}

void ControllerProcess::Do(const cmd::Finish& c) {
  finished_ = true;
  result_.exit = c.code;
  result_.why = c.why;
  result_.finished = c.complete;
  result_.stopped = stop_seen_ > 0 && !c.complete;
}

void ControllerProcess::CheckSignals() {
  const int count = request_.stop_signals == nullptr ? 0 : request_.stop_signals->load();
  while (stop_seen_ < count && stop_seen_ < 2) {
    ++stop_seen_;
    Feed(ev::StopRequested{stop_seen_ == 1 ? "signal" : "second signal", stop_seen_ > 1});
  }
}

void ControllerProcess::WriteSamples(StepNumber step, const std::vector<BatchRow>& batch) {
  if (config_.rl() == nullptr || config_.observe.samples_per_step == 0) return;
  std::vector<observe::SampleRow> lines;
  int64_t left = config_.observe.samples_per_step < 0 ? static_cast<int64_t>(batch.size())
                                                      : config_.observe.samples_per_step;
  for (const BatchRow& row : batch) {
    if (left-- <= 0) break;
    const sample::Trajectory& t = row.trajectory;
    observe::SampleRow line;
    line.tid = t.tid;
    if (EnsureRow(t.tid)) {
      line.prompt = samples_.FindRow(t.tid)->question.prompt;
      line.answer = samples_.FindRow(t.tid)->question.answer;
    }
    line.ids = t.Ids();
    line.text = rows_->ResponseText(line.ids);
    line.logprobs = t.Logprobs();
    if (environment_) line.loss_mask = t.LossMask(row.without_loss);
    for (const auto& [version, count] : t.Versions())
      line.versions.insert(line.versions.end(), static_cast<size_t>(count), version.number);
    line.reward = row.reward;
    const auto& named = controller_->Rewards(t.tid);
    line.rewards = {named.begin(), named.end()};
    line.ended = t.finish != sample::Finish::kLength;
    lines.push_back(std::move(line));
  }
  files_.Do("write of samples/", [inbox = inbox_, dir = request_.run_dir, step = step.value,
                                  lines = std::move(lines), this](const DiskThread::Say&) {
    const Status written = observe::WriteSamples(dir, step, lines);
    if (!written.ok()) inbox->Put(Answer([this, written] { Warn("samples: " + written.message()); }));
  });
}

void ControllerProcess::Show() {
  const scheduler::ControllerView view = controller_->View();
  NameMissing(view.absent);
  observe::StatusFile& s = status_;
  s.name = config_.name;
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
  if (!config_.cluster.pace.empty()) s.paced = config_.cluster.pace;
  const auto find = [](const std::map<std::string, double>& in, const char* name) {
    const auto it = in.find(name);
    return it == in.end() ? std::nullopt : std::optional<double>(it->second);
  };
  const std::map<std::string, double>& last = metrics_->last();
  if (config_.rl() != nullptr) {
    s.reward = find(last, "critic/score/mean");
    s.response_tokens = find(last, "response_length/mean");
    s.lag_mean = find(last, "staleness/mean");
    if (const auto lag = find(last, "staleness/max")) s.lag_max = static_cast<int64_t>(*lag);
    s.tokens_per_s = find(last, "rollout/tok_s");
  } else {
    s.loss = find(last, "actor/loss");
    s.tokens_per_s = find(last, "perf/throughput");
  }
  if (s.reward) s.best_reward = std::max(s.best_reward.value_or(*s.reward), *s.reward);
  s.held_out = observe::HeldOutOf(evals_);
  s.elapsed_s = Seconds(Now().since_start);
  time_left_.OnStep(view.step.value, Now());
  const auto left = time_left_.Estimate(s.steps);
  s.left_s = left ? std::optional<double>(Seconds(*left)) : std::nullopt;
  s.workers.clear();
  for (const auto& [place, at] : places_->places()) {
    if (!at.joined) continue;
    const auto peak = metrics_->peak_bytes().find(place);
    s.workers.push_back({.place = place,
                         .inc = at.inc.value,
                         .pid = launcher_.Pid(place),
                         .peak_bytes = peak == metrics_->peak_bytes().end() ? 0 : peak->second});
  }
  if (request_.on_progress) request_.on_progress(s);
  // A picture of now: renamed into place so that a reader never sees half, but not worth a sync, and not
  // worth a queue where the disk is slow.
  if (files_.Busy()) return;
  files_.Do("write of status.json", [path = storage::RunPaths(request_.run_dir).status(),
                                     text = JsonOf<nlohmann::json>(s).dump(1)](const DiskThread::Say&) {
    std::ofstream(path + ".tmp") << text << "\n";
    std::error_code error;
    std::filesystem::rename(path + ".tmp", path, error);
  });
}

void ControllerProcess::WriteSummary() {
  observe::SummaryFile& s = result_;
  const scheduler::ControllerView view = controller_->View();
  s.steps = std::max<int64_t>(view.step.value, 0);
  s.job = Name(config_.kind());
  s.name = config_.name;
  s.run_id = request_.run_id;
  s.version = BuildVersion();
  s.commit = BuildCommit();
  s.policy_version = ToString(view.version);
  s.held_out = observe::HeldOutOf(evals_);
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
  files_.Do("write of summary.json",
            [fs = fs_, path = storage::RunPaths(request_.run_dir).summary(),
             text = JsonOf<nlohmann::json>(s).dump(2) + "\n"](const DiskThread::Say&) {
              const Status written = fs->WriteFile(path, text);
              if (!written.ok())
                observe::Log(observe::LogLevel::kWarn, "summary", {{"why", written.message()}});
            });
  if (!files_.Drain(std::chrono::seconds(storage_failed_ ? 1 : 30))) result_.disk_hangs = true;
}

}  // namespace tidepool::workers
