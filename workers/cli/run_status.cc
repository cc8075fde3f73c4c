#include "workers/cli/run_status.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/observe/progress.h"
#include "core/observe/run_files.h"
#include "core/storage/run_directory.h"
#include "workers/cli/run_lookup.h"
#include "workers/data/best_model.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A JSON object in a file; nullopt if it is not there or half written by an old version.
std::optional<Json> ReadObject(const fs::path& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  return json;
}

double AgeSeconds(const fs::path& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (error) return -1;
  return std::chrono::duration<double>(fs::file_time_type::clock::now() - time).count();
}

Json Workers(const observe::StatusFile& live, const std::optional<JobConfig>& config) {
  Json workers = Json::array();
  for (const observe::WorkerFacts& worker : live.workers) {
    Json w = JsonOf<Json>(worker);
    if (!config) {
      w["name"] = "place-" + std::to_string(worker.place);
    } else if (worker.place < config->cluster.slots) {
      w["name"] = "device-" + std::to_string(worker.place);
    } else {
      w["name"] = (config->environment() == nullptr ? "reward-" : "environment-") +
                  std::to_string(worker.place - config->cluster.slots);
    }
    // No pid: it was started by hand, perhaps on another machine.
    w["alive"] = worker.pid > 0 ? Json(IsTidepoolProcess(worker.pid)) : Json(nullptr);
    workers.push_back(std::move(w));
  }
  return workers;
}

// A line; none where there is nothing to say.
struct Row {
  std::ostringstream& out;
  void operator()(const char* name, const std::string& text) const {
    if (text.empty()) return;
    char head[24];
    std::snprintf(head, sizeof(head), "%-11s ", name);
    out << head << text << "\n";
  }
};

std::string Number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Joined(std::initializer_list<std::string> parts) {
  std::string all;
  for (const std::string& part : parts) {
    if (!part.empty()) all += (all.empty() ? "" : ", ") + part;
  }
  return all;
}

// What the job does not have, or not yet, is not said.
std::string Part(const char* what, const std::optional<double>& value, const char* format, double times = 1) {
  return value ? what + Number(times * *value, format) : "";
}

std::string HeldOutNow(const observe::HeldOut& h) {
  const auto& now = h.last ? h.last : h.before;
  if (!now)
    return h.ungraded ? "none of " + std::to_string(h.ungraded->lost) + " held-out answers graded" : "";
  return "held-out " + h.measure + " " + observe::HeldOutText(h.measure, now->value) + " at step " +
         std::to_string(now->step);
}

void DescribeLive(const Json& status, std::ostringstream& out) {
  const Row row{out};
  observe::StatusFile live{.phase = "?", .version = "?"};
  FromJson(status["live"], live);
  row("progress", Joined({"step " + std::to_string(live.step) + " of " + std::to_string(live.steps),
                          status["state"] == "dead" ? "as it said last" : live.phase,
                          live.left_s && status["state"] != "dead"
                              ? observe::DurationText(FromSeconds(*live.left_s)) + " left"
                              : "",
                          "weights " + live.version}));
  row("learning", Joined({Part("reward ", live.reward, "%.3f"), Part("loss ", live.loss, "%.4f"),
                          live.held_out ? HeldOutNow(*live.held_out) : ""}));
  row("speed", Joined({observe::SpeedText(live), Part("mean lag ", live.lag_mean, "%.2f versions")}));
  const auto n = [](int64_t count) { return std::to_string(count); };
  row("groups", n(live.open_groups) + " open (running " + n(live.running) + ", awaiting rewards " +
                    n(live.awaiting) + ", queued " + n(live.queued) + ", leased " + n(live.leased) + "), " +
                    n(live.in_flight) + " chunks in flight");
  if (live.paced) row("paced", "slots take the time of " + *live.paced);
  row("faults", n(live.restarts) + " restarts, " + n(live.refused) + " refused calls");
  row("warning", live.last_warning);
  if (const double age = status["live"]["age_s"]; status["state"] == "running" && age > 10) {
    row("note", "status.json is " + Number(age, "%.0f") +
                    " s old although the controller is alive: it is stopped, or the disk does not answer");
  }
  for (size_t i = 0; i < live.workers.size(); ++i) {
    const observe::WorkerFacts& worker = live.workers[i];
    const Json& seen = status["workers"][i];
    row(seen["name"].get<std::string>().c_str(),
        "pid " + (worker.pid > 0 ? n(worker.pid) : "?") + (seen["alive"] == false ? " (gone)" : "") +
            ", incarnation " + n(worker.inc) + ", peak memory " + BytesText(worker.peak_bytes));
  }
}

// "name text, name text" of what a map holds.
template <typename T>
std::string Listed(const std::map<std::string, T>& items, std::string (*text)(T)) {
  std::string line;
  for (const auto& [name, item] : items) line += (line.empty() ? "" : ", ") + name + " " + text(item);
  return line;
}

void DescribeSummary(const Json& json, std::ostringstream& out) {
  const Row row{out};
  observe::SummaryFile s{.exit = -1, .policy_version = "?"};
  FromJson(json, s);
  row("ended", "exit code " + std::to_string(s.exit) + " after " + std::to_string(s.steps) +
                   " steps, weights " + s.policy_version);
  row("why", s.why);
  row("note", s.paced_note.value_or(""));
  if (s.held_out) {
    for (const std::string& line : observe::HeldOutLines(*s.held_out, s.steps)) row("held out", line);
  }
  // An older program said the accuracy alone.
  std::string accuracy;
  for (const char* when : {"before", "after"}) {
    if (const auto it = s.accuracy.find(when); !s.held_out && it != s.accuracy.end())
      accuracy = Joined({accuracy, when + Number(100 * it->second, " %.1f %%")});
  }
  row("held out", accuracy);
  row("seconds", Listed<double>(s.seconds, [](double x) { return Number(x, "%.1f"); }));
  row("peak memory", Listed<int64_t>(s.peak_bytes, BytesText));
  // What was begun for a step that was not needed any more is no loss.
  const std::string leftover = Name(DropReason::kOperator);
  if (const auto left = s.drops.find(leftover); s.finished && left != s.drops.end()) {
    row("left over", std::to_string(left->second) + " samples that were begun beyond the last step");
    s.drops.erase(left);
  }
  row("dropped", Listed<int64_t>(s.drops, [](int64_t x) { return std::to_string(x); }));
}

}  // namespace

std::string ProgramAsTyped() {
  std::ifstream in("/proc/self/cmdline");
  std::string first;
  std::getline(in, first, '\0');
  // Of a test, or of a link of another name, it would be no command.
  const std::string name = first.substr(first.rfind('/') + 1);
  return name == "tidepool" ? ShellWord(first) : "tidepool";
}

std::string ShellWord(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,+@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool HasController(const std::string& run_dir) {
  const storage::RunPaths paths(run_dir);
  return RealFileSystem().Exists(paths.control()) &&
         RealFileSystem::IsLocked(JoinPath(paths.journal(), "lock"));
}

std::string ResumeHint(const std::string& dir) {
  return ProgramAsTyped() + " train " + ShellWord(dir) + " --resume";
}

StatusOr<Json> RunStatus(const std::string& run_dir) {
  const storage::RunPaths paths(run_dir);
  RealFileSystem real;
  Json s;
  s["run"] = run_dir;
  s["state"] = "new";
  std::optional<JobConfig> config;
  if (auto loaded = config::LoadConfig(paths.config()); loaded.ok()) config = loaded->config;
  // A config of another version of the program is no reason not to tell the rest.
  if (config) {
    s["name"] = config->name;
    s["job"] = Name(config->kind());
  }
  const auto control = ReadObject(paths.control());
  auto live = ReadObject(paths.status());
  const auto summary = ReadObject(paths.summary());
  if (live) (*live)["age_s"] = std::max(0.0, AgeSeconds(paths.status()));
  observe::StatusFile shown;
  if (live) FromJson(*live, shown);
  int64_t pid = shown.pid;
  if (control) {
    pid = 0;
    if (const auto said = control->find("pid"); said != control->end()) FromJson(*said, pid);
  }
  const bool alive = HasController(run_dir);
  // What a controller said last, where it came to say it.
  const bool ended = live && !shown.state.empty() && shown.state != "running";
  if (pid > 0) s["controller"] = {{"pid", pid}, {"alive", alive}};
  if (alive) {
    s["state"] = "running";
  } else {
    TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(real, run_dir));
    if (state.has_journal) {
      s["journal"] = {
          {"records", state.records}, {"last_step", state.last_step.value}, {"steps", state.steps}};
      s["journal"]["end_code"] = state.end_code ? Json(*state.end_code) : Json(nullptr);
      if (state.complete) {
        s["state"] = "finished";
      } else if (state.end_code) {
        s["state"] = *state.end_code == 0 ? "stopped" : "failed";
      } else {
        // A journal on a full disk may lack its end.
        s["state"] = summary ? "failed" : ended ? shown.state : "dead";
      }
    }
  }
  if (const auto best = ReadObject(paths.best_model() + "/" + kBestModelFile)) s["best"] = *best;
  const std::string state = s["state"];
  if (live && (state == "running" || state == "dead")) {
    s["workers"] = Workers(shown, config);
    s["live"] = std::move(*live);
  }
  if (state == "finished" || state == "stopped" || state == "failed") {
    if (summary) {
      s["summary"] = *summary;
    } else if (ended) {
      s["summary"] = {{"exit", shown.exit.value_or(-1)},
                      {"why", shown.why.value_or("")},
                      {"steps", shown.step},
                      {"policy_version", shown.version}};
    }
  }
  if (real.Exists(storage::RunPaths(paths.warm_start()).config())) {
    TP_ASSIGN_OR_RETURN(s["warm_start"], RunStatus(paths.warm_start()));
    const std::string warm = s["warm_start"]["state"];
    if (state == "new" && warm == "running") s["state"] = "warm_start";
    if (state == "new" && (warm == "dead" || warm == "stopped" || warm == "failed")) s["state"] = warm;
  }
  return s;
}

namespace {

// `resume`: the run directory to go on with; a warm start is resumed by the run that it belongs to.
void Describe(const Json& status, const std::string& resume, std::ostringstream& out) {
  const Row row{out};
  const std::string state = status["state"];
  const std::string dir = status["run"];
  const std::string go_on = resume.empty() ? "" : "; go on with: " + ResumeHint(resume);
  row("run", dir + (status.contains("job") ? " (job " + status["job"].get<std::string>() + ")" : ""));
  std::string line = state;
  if (state == "running") line += ", controller pid " + status["controller"]["pid"].dump();
  if (state == "warm_start")
    line = "running its warm start, controller pid " + status["warm_start"]["controller"]["pid"].dump();
  if (state == "new") line = "nothing has happened yet";
  if (state == "dead") line = "dead: its controller is gone and did not say why" + go_on;
  if (state == "stopped") line = "stopped before its last step" + go_on;
  if (state == "failed") line = "failed; see why below and " + storage::RunPaths(dir).logs() + "/" + go_on;
  row("state", line);
  if (status.contains("live")) DescribeLive(status, out);
  if (status.contains("summary")) DescribeSummary(status["summary"], out);
  if (status.contains("best")) {
    BestModel best;
    FromJson(status["best"], best);
    row("best", best.metric + " " + Number(best.value, "%.4g") + " at step " + std::to_string(best.step) +
                    ", its model is " + storage::RunPaths(dir).best_model());
  }
  if (status.contains("journal") && !status.contains("summary")) {
    const Json& j = status["journal"];
    row("journal", j["records"].dump() + " records, last committed step " +
                       std::to_string(std::max<int64_t>(j["last_step"].get<int64_t>(), 0)) + " of " +
                       j["steps"].dump());
  }
  if (status.contains("warm_start")) {
    const Json& warm = status["warm_start"];
    if (state == "new" || state == "warm_start" || !status.contains("live")) {
      out << "\n";
      Describe(warm, "", out);
    } else {
      row("warm start", warm["state"].get<std::string>() + " (" + warm["run"].get<std::string>() + ")");
    }
  }
}

}  // namespace

std::string DescribeStatus(const Json& status) {
  std::ostringstream out;
  Describe(status, status["run"].get<std::string>(), out);
  return out.str();
}

}  // namespace tidepool::workers
