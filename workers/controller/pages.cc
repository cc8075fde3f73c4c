// What the controller shows over HTTP (workers/net/watch_pages.h), and where a scraper finds the pages of all
// processes of the run.

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/base/json_fields.h"
#include "core/base/loopback.h"
#include "core/observe/append_file.h"
#include "core/observe/log.h"
#include "core/storage/run_directory.h"
#include "workers/controller/process_impl.h"
#include "workers/controller/reward_outage.h"

namespace tidepool::workers {
namespace {

double Number(int64_t n) { return static_cast<double>(n); }

}  // namespace

Status ControllerProcess::OpenPages(const std::string& operator_token) {
  operator_digest_ = Sha256Hex(operator_token);
  if (config_.observe.metrics_bind.empty()) return OkStatus();
  auto opened = WatchPages::Start({.host = config_.observe.metrics_bind,
                                   .advertise = config_.cluster.advertise,
                                   .port = static_cast<uint16_t>(config_.observe.metrics_port),
                                   .token_digest = operator_digest_,
                                   .identity = identity_});
  if (!opened.ok())
    return {opened.status().code(),
            "observe.metrics_bind, observe.metrics_port: " + opened.status().message()};
  pages_ = *std::move(opened);
  return OkStatus();
}

observe::Exposition ControllerProcess::Metrics(const scheduler::ControllerView& view) {
  const RunMetrics::Totals& t = metrics_->totals();
  observe::Exposition m;
  // Other labels than those that targets have (ShowPages), which Prometheus adds.
  m.Gauge("tidepool_run_info", 1,
          {{"id", request_.run_id}, {"name", config_.name}, {"kind", Name(config_.kind())}});
  m.Gauge("tidepool_controller_epoch", storage_->ctl_epoch());
  m.Gauge("tidepool_phase", 1, {{"phase", view.phase}});
  m.Gauge("tidepool_step", Number(std::max<int64_t>(view.step.value, 0)));
  m.Gauge("tidepool_steps_wanted", Number(config_.train.steps));
  const TimePoint now = Now();
  m.Gauge("tidepool_step_age_seconds",
          Seconds(metrics_->last_write() ? now - *metrics_->last_write() : now.since_start));
  m.Gauge("tidepool_policy_version", Number(view.version.number), {{"of", "actor"}});
  std::map<Role, int64_t> slots = {
      {Role::kNone, config_.cluster.slots}, {Role::kRollout, 0}, {Role::kActor, 0}};
  std::optional<int64_t> oldest;
  for (const auto& [slot, role] : metrics_->held()) {
    if (role == Role::kNone) continue;
    ++slots[role];
    --slots[Role::kNone];
    const auto loaded = metrics_->loaded().find(slot);
    if (role == Role::kRollout && loaded != metrics_->loaded().end())
      oldest = std::min(oldest.value_or(loaded->second.number), loaded->second.number);
  }
  if (oldest) m.Gauge("tidepool_policy_version", Number(*oldest), {{"of", "oldest_rollout"}});
  for (const auto& [role, count] : slots) m.Gauge("tidepool_slots", Number(count), {{"role", Name(role)}});
  for (const auto& [state, count] :
       {std::pair("running", view.running), std::pair("awaiting_reward", view.awaiting),
        std::pair("waiting_env", view.waiting_env)})
    m.Gauge("tidepool_samples", Number(count), {{"state", state}});
  for (const auto& [state, count] : {std::pair("open", view.open_groups), std::pair("queued", view.queued),
                                     std::pair("leased", view.leased)})
    m.Gauge("tidepool_groups", Number(count), {{"state", state}});
  m.Gauge("tidepool_groups_capacity", Number(view.capacity));
  m.Gauge("tidepool_chunks_in_flight", Number(view.in_flight));
  const std::string side = SideName(config_);
  std::map<std::string, int64_t> here = {{"device", 0}, {side, 0}};
  for (const auto& [place, at] : places_->places())
    if (at.joined) ++here[place < options_.device_workers() ? "device" : side];
  for (const auto& [kind, count] : here) {
    m.Gauge("tidepool_workers_connected", Number(count), {{"kind", kind}});
    m.Gauge("tidepool_workers_wanted",
            Number(kind == "device" ? options_.device_workers() : options_.side_workers()), {{"kind", kind}});
  }
  m.Gauge("tidepool_unreachable_servers_workers", Number(static_cast<int64_t>(waits_for_.size())));
  m.Counter("tidepool_generated_tokens_total", Number(t.tokens));
  m.Counter("tidepool_prefill_tokens_total", Number(t.prefill_tokens));
  m.Counter("tidepool_prefix_hit_tokens_total", Number(t.prefix_hit_tokens));
  m.Counter("tidepool_steps_total", Number(t.steps));
  m.Counter("tidepool_issued_samples_total", Number(view.issued_samples));
  m.Counter("tidepool_trained_samples_total", Number(t.trained_samples));
  m.Gauge("tidepool_trained_samples", Number(view.trained_samples));
  for (size_t i = 0; i < view.drops.size(); ++i)
    m.Counter("tidepool_dropped_samples_total", Number(view.drops[i]),
              {{"reason", Name(static_cast<DropReason>(i))}});
  for (const GradeOutcome outcome : {GradeOutcome::kOk, GradeOutcome::kInfra, GradeOutcome::kData}) {
    const auto count = [&](const std::map<GradeOutcome, int64_t>& of) {
      const auto it = of.find(outcome);
      return it == of.end() ? 0.0 : Number(it->second);
    };
    m.Counter("tidepool_gradings_total", count(t.graded), {{"outcome", Name(outcome)}});
    if (environment_)
      m.Counter("tidepool_environment_turns_total", count(t.turns), {{"outcome", Name(outcome)}});
  }
  m.Counter("tidepool_reward_retries_total", Number(t.reward_retries));
  m.Counter("tidepool_loaded_weights_bytes_total", Number(t.loaded_bytes));
  m.Counter("tidepool_pulled_weights_bytes_total", Number(t.pulled_bytes));
  m.Counter("tidepool_worker_restarts_total", Number(view.restarts));
  m.Counter("tidepool_rollbacks_total", Number(view.rollbacks));
  m.Counter("tidepool_refused_messages_total", Number(view.refused + hub_->refused_calls()));
  for (const auto& [of_class, count] : t.faults)
    m.Counter("tidepool_faults_total", Number(count), {{"class", of_class}});
  m.Counter("tidepool_received_bytes_total", Number(hub_->received_bytes()));
  m.Counter("tidepool_sent_bytes_total", Number(hub_->sent_bytes()));
  m.Durations("tidepool_step_seconds", t.step_s);
  m.Durations("tidepool_decision_seconds", t.decision_s);
  m.Durations("tidepool_journal_sync_seconds", t.sync_s);
  m.Durations("tidepool_checkpoint_seconds", t.checkpoint_s);
  if (const int64_t free = disk_->free.load(); free >= 0) {
    m.Gauge("tidepool_disk_free_bytes", Number(free));
    m.Gauge("tidepool_disk_size_bytes", Number(disk_->size.load()));
  }
  m.Figures(metrics_->last());
  m.Figures(metrics_->last_eval());
  return m;
}

// What it lacks for its work.
std::vector<std::string> ControllerProcess::Unready(const scheduler::ControllerView& view) const {
  std::vector<std::string> missing;
  for (int64_t place = 0; place < options_.device_workers() + options_.side_workers(); ++place) {
    const auto at = places_->places().find(place);
    if (at == places_->places().end() || !at->second.joined)
      missing.push_back("worker " + PlaceName(place) + " is not here");
  }
  if (!waits_for_.empty())
    missing.push_back("rewards wait for " + ServersText(config_.reward, waits_for_.begin()->second));
  if (slow_disk_told_) missing.emplace_back("the disk is slow");
  if (storage_failing_ || storage_failed_) missing.emplace_back("the disk takes nothing more");
  if (stop_seen_ > 0) missing.emplace_back("it was told to stop");
  return missing;
}

void ControllerProcess::ShowPages(const scheduler::ControllerView& view) {
  if (pages_ == nullptr) return;
  nlohmann::json status = {{"run", request_.run_dir}, {"job", Name(config_.kind())}};
  status["live"] = JsonOf<nlohmann::json>(status_);
  pages_->Show(Metrics(view), Unready(view), status.dump());
  nlohmann::json targets = nlohmann::json::array();
  const std::string folder =
      (std::filesystem::path(request_.run_dir) / "").lexically_normal().parent_path().filename().string();
  const auto add = [&](const std::string& address, const std::string& worker, const std::string& host) {
    nlohmann::json labels = {{"run", folder}, {"worker", worker}, {"host", host}};
    if (pages_->encrypted()) labels["__scheme__"] = "https";
    targets.push_back({{"targets", {address}}, {"labels", labels}});
  };
  add(pages_->address(), "controller", observe::HostName());
  for (const observe::WorkerFacts& worker : status_.workers)
    if (!worker.pages.empty()) add(worker.pages, worker.name, worker.host);
  if (std::string text = targets.dump(1) + "\n"; text != targets_) {
    targets_ = std::move(text);
    files_.Do("write of prometheus_targets.json",
              [fs = fs_, path = storage::RunPaths(request_.run_dir).prometheus_targets(),
               text = targets_](const DiskThread::Say&) {
                const Status written = fs->WriteFile(path, text);
                if (!written.ok()) observe::Log(LogLevel::kWarn, "targets", {{"text", written.message()}});
              });
  }
  if (const auto at = Clock::now(); at >= next_disk_look_) {
    next_disk_look_ = at + std::chrono::seconds(5);
    files_.Do("look at the free space", [disk = disk_, dir = request_.run_dir](const DiskThread::Say&) {
      struct statvfs s {};
      if (::statvfs(dir.c_str(), &s) != 0) return;
      disk->free = static_cast<int64_t>(s.f_bavail) * static_cast<int64_t>(s.f_frsize);
      disk->size = static_cast<int64_t>(s.f_blocks) * static_cast<int64_t>(s.f_frsize);
    });
  }
}

}  // namespace tidepool::workers
