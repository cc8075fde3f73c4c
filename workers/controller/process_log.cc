// What the controller says in its log and on the terminal.

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/base/host_name.h"
#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/log.h"
#include "core/storage/disk_use.h"
#include "core/storage/run_directory.h"
#include "workers/build_info.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {
namespace {

std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", seconds);
  return text;
}

}  // namespace

void ControllerProcess::Log(LogLevel level, const std::string& event, LogFields fields,
                            const std::string& text) {
  if (level < config_.observe.log_level) return;
  if (!text.empty()) fields.emplace_back("text", text);
  files_.Do("write of logs/controller.log",
            [level, line = observe::LogLine(event, fields), when = std::chrono::system_clock::now()](
                const DiskThread::Say&) { observe::LogAt(when, level, line); });
}

void ControllerProcess::Warn(const std::string& text, const std::string& event, const LogFields& fields) {
  status_.last_warning = text;
  Log(LogLevel::kWarn, event, fields, text);
}

// What the loop would say next of the run is not said before the call comes back: the picture of before it
// is completed.
void ControllerProcess::TellHeld(const PluginCall& call) {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g s", call.Seconds());
  const std::string held = call.what + " to come back from " + call.on + ", for at most " + limit +
                           (call.key.empty() ? "" : " (" + call.key + ")");
  Log(LogLevel::kWarn, "call_held", {}, "the controller waits for " + held);
  files_.Do("write of status.json",
            [path = storage::RunPaths(request_.run_dir).status(), held](const DiskThread::Say&) {
              observe::StatusFile status;
              if (const auto text = RealFileSystem().ReadFile(path); text.ok()) {
                if (const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
                    json.is_object())
                  FromJson(json, status);
              }
              if (status.state.empty()) status.state = "running";
              status.pid = getpid();
              status.call_held = held;
              (void)observe::ShowInFile(path, JsonOf<nlohmann::json>(status).dump(1));
            });
}

void ControllerProcess::Tell(const std::string& text, const std::string& event, const LogFields& fields) {
  if (request_.say) request_.say(text);
  Log(LogLevel::kInfo, event, fields, text);
}

void ControllerProcess::Do(const cmd::Log& c) {
  LogEvent said = EventOf(c, [this](int64_t place) { return PlaceName(place); });
  const auto of_evaluation = [](const auto& field) {
    return field.first == "tid" && field.second.ends_with(".eval");  // told with the evaluation
  };
  if (std::ranges::find(observe::kLosses, c.event) != std::end(observe::kLosses) &&
      std::ranges::none_of(c.fields, of_evaluation)) {
    lost_[c.event] = said.text;
  }
  if (c.level >= LogLevel::kWarn) return Warn(said.text, c.event, said.fields);
  Log(c.level, c.event, std::move(said.fields), said.text);
}

void ControllerProcess::LogStart() {
  Log(LogLevel::kInfo, "start",
      {{"version", BuildVersion()},
       {"commit", BuildCommit()},
       {"run_id", request_.run_id},
       {"config", request_.config_digest},
       {"job", Name(config_.kind())},
       {"name", config_.name},
       {"steps", std::to_string(config_.train.steps)},
       {"pid", std::to_string(getpid())},
       {"dir", request_.run_dir}});
}

void ControllerProcess::LogRecord(const JournalRecord& r) {
  auto said = EventOf(r, [this](int64_t place) { return PlaceName(place); });
  if (const auto* fault = std::get_if<record::Fault>(&r)) metrics_->OnFault(fault->kind);
  if (const auto* commit = std::get_if<record::StepCommit>(&r))
    metrics_->OnCommitted(static_cast<int64_t>(commit->rows.size()));
  if (!said) return;
  LogEvent& e = *said;
  if (const auto* join = std::get_if<record::Join>(&r)) {
    e.fields.emplace_back("pid", std::to_string(places_->HelloOf(join->worker.worker).pid));
  } else if (const auto* grant = std::get_if<record::Grant>(&r)) {
    // Where slots change hands at every step, only their first role is news.
    if (granted_.insert(grant->slot).second) e.level = LogLevel::kInfo;
  } else if (const auto* restore = std::get_if<record::Restore>(&r); restore && restore->step < committed_) {
    e.text = "the run goes back from step " + std::to_string(committed_.value) + " to step " +
             std::to_string(restore->step.value) + " (" +
             (restore->ckpt < 0 ? "recovery copy" : "checkpoint " + std::to_string(restore->ckpt)) +
             "), because the newer state was lost with the process that held it; the steps after it are "
             "trained again on the same samples";
    if (request_.say) request_.say(e.text);
  } else if (const auto* written = std::get_if<record::CheckpointCommit>(&r)) {
    if (e.level < config_.observe.log_level) return;
    const std::string dir = checkpoints_->FolderOf(written->step);
    e.fields.emplace_back("seconds", SecondsText(checkpoint_s_));
    e.fields.emplace_back("path", dir);
    return files_.Do(
        "write of logs/controller.log",
        [e = std::move(e), dir, fs = fs_, when = std::chrono::system_clock::now()](const DiskThread::Say&) {
          LogFields fields = e.fields;
          fields.emplace_back("bytes", std::to_string(storage::CheckpointBytes(*fs, dir)));
          observe::LogAt(when, e.level, observe::LogLine(e.event, fields));
        });
  }
  if (e.level >= LogLevel::kWarn) status_.last_warning = e.text;
  Log(e.level, e.event, std::move(e.fields), e.text);
}

void ControllerProcess::LogEnd() {
  Log(result_.exit == 0 ? LogLevel::kInfo : LogLevel::kError, "end",
      {{"exit", std::to_string(result_.exit)},
       {"state", result_.exit != 0  ? "failed"
                 : result_.finished ? "finished"
                                    : "stopped"},
       {"step", std::to_string(std::max<int64_t>(controller_->View().step.value, 0))},
       {"seconds", SecondsText(Seconds(Now().since_start))}},
      result_.why);
}

}  // namespace tidepool::workers
