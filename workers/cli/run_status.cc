#include "workers/cli/run_status.h"

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/storage/run_directory.h"
#include "workers/cli/run_lookup.h"

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

template <typename T>
T Value(const Json& object, const char* key, T fallback) {
  const auto it = object.find(key);
  if (it == object.end()) return fallback;
  if constexpr (std::is_same_v<T, std::string>) {
    return it->is_string() ? it->template get<T>() : fallback;
  } else if constexpr (std::is_same_v<T, bool>) {
    return it->is_boolean() ? it->template get<T>() : fallback;
  } else {
    return it->is_number() ? it->template get<T>() : fallback;
  }
}

Json Workers(const Json& live, const std::optional<JobConfig>& config) {
  Json workers = Json::array();
  const auto it = live.find("workers");
  if (it == live.end() || !it->is_array()) return workers;
  for (const Json& worker : *it) {
    if (!worker.is_object()) continue;
    Json w = worker;
    const auto place = Value<int64_t>(worker, "place", -1);
    const int64_t devices = config ? config->cluster.slots : 0;
    if (!config) {
      w["name"] = "place-" + std::to_string(place);
    } else {
      w["name"] = place < devices ? "device-" + std::to_string(place)
                                  : (config->environment() == nullptr ? "reward-" : "environment-") +
                                        std::to_string(place - devices);
    }
    const auto pid = Value<int64_t>(worker, "pid", 0);
    // No pid: it was started by hand, perhaps on another machine.
    w["alive"] = pid > 0 ? Json(IsTidepoolProcess(pid)) : Json(nullptr);
    workers.push_back(std::move(w));
  }
  return workers;
}

struct Row {
  std::ostringstream& out;
  void operator()(const char* name, const std::string& text) const {
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

void DescribeLive(const Json& status, std::ostringstream& out) {
  const Row row{out};
  const Json& live = status["live"];
  const auto step = std::max<int64_t>(Value<int64_t>(live, "step", 0), 0);
  std::string line = "step " + std::to_string(step) + " of " +
                     std::to_string(Value<int64_t>(live, "steps", 0)) + ", " +
                     Value<std::string>(live, "phase", "?");
  if (const auto left = Value<double>(live, "left_s", -1); left >= 0)
    line += ", " + DurationText(left) + " left";
  row("progress", line + ", weights " + Value<std::string>(live, "version", "?"));
  // What the job does not have, or not yet, is not said.
  const auto list = [&](const char* name, auto... parts) {
    std::string all;
    const auto add = [&](const std::tuple<const char*, const char*, double, const char*>& part) {
      const auto& [key, before, times, format] = part;
      if (live.contains(key))
        all += (all.empty() ? "" : ", ") + std::string(before) +
               Number(times * Value<double>(live, key, 0), format);
    };
    (add(parts), ...);
    if (!all.empty()) row(name, all);
  };
  list("learning", std::tuple("reward", "reward ", 1.0, "%.3f"), std::tuple("loss", "loss ", 1.0, "%.4f"),
       std::tuple("accuracy", "held-out accuracy ", 100.0, "%.1f %%"));
  list("speed", std::tuple("tokens_per_s", "", 1.0, "%.0f tokens/s"),
       std::tuple("lag_mean", "mean lag ", 1.0, "%.2f versions"));
  const auto count = [&](const char* key) { return std::to_string(Value<int64_t>(live, key, 0)); };
  row("groups", count("open_groups") + " open (running " + count("running") + ", awaiting rewards " +
                    count("awaiting") + ", queued " + count("queued") + ", leased " + count("leased") +
                    "), " + count("in_flight") + " chunks in flight");
  if (const auto paced = Value<std::string>(live, "paced", ""); !paced.empty())
    row("paced", "slots take the time of " + paced);
  row("faults", count("restarts") + " restarts, " + count("refused") + " refused calls");
  if (const auto warning = Value<std::string>(live, "last_warning", ""); !warning.empty())
    row("warning", warning);
  if (const auto age = Value<double>(live, "age_s", 0); status["state"] == "running" && age > 10) {
    row("note", "status.json is " + Number(age, "%.0f") +
                    " s old although the controller is alive: it is stopped, or the disk does not answer");
  }
  for (const Json& worker : status["workers"]) {
    std::string text =
        "pid " + (Value<int64_t>(worker, "pid", 0) > 0 ? std::to_string(Value<int64_t>(worker, "pid", 0))
                                                       : std::string("?"));
    if (worker["alive"] == false) text += " (gone)";
    text += ", incarnation " + std::to_string(Value<int64_t>(worker, "inc", -1)) + ", peak memory " +
            BytesText(Value<int64_t>(worker, "peak_bytes", 0));
    row(Value<std::string>(worker, "name", "?").c_str(), text);
  }
}

void DescribeSummary(const Json& summary, std::ostringstream& out) {
  const Row row{out};
  row("ended", "exit code " + std::to_string(Value<int64_t>(summary, "exit", -1)) + " after " +
                   std::to_string(Value<int64_t>(summary, "steps", 0)) + " steps, weights " +
                   Value<std::string>(summary, "policy_version", "?"));
  if (const auto why = Value<std::string>(summary, "why", ""); !why.empty()) row("why", why);
  if (const auto paced = Value<std::string>(summary, "paced_note", ""); !paced.empty()) row("note", paced);
  if (summary.contains("accuracy") && summary["accuracy"].is_object()) {
    const Json& a = summary["accuracy"];
    std::string line;
    if (a.contains("before")) line += "before " + Number(100 * Value<double>(a, "before", 0), "%.1f %%");
    if (a.contains("after"))
      line += (line.empty() ? "" : ", ") + std::string("after ") +
              Number(100 * Value<double>(a, "after", 0), "%.1f %%");
    if (!line.empty()) row("held out", line);
  }
  if (summary.contains("seconds") && summary["seconds"].is_object()) {
    std::string line;
    for (const auto& [phase, seconds] : summary["seconds"].items()) {
      if (seconds.is_number())
        line += (line.empty() ? "" : ", ") + phase + " " + Number(seconds.get<double>(), "%.1f");
    }
    if (!line.empty()) row("seconds", line);
  }
  if (summary.contains("peak_bytes") && summary["peak_bytes"].is_object()) {
    std::string line;
    for (const auto& [name, bytes] : summary["peak_bytes"].items()) {
      if (bytes.is_number())
        line += (line.empty() ? "" : ", ") + name + " " + BytesText(bytes.get<int64_t>());
    }
    if (!line.empty()) row("peak memory", line);
  }
  if (summary.contains("drops") && summary["drops"].is_object() && !summary["drops"].empty()) {
    std::string line;
    for (const auto& [reason, count] : summary["drops"].items())
      line += (line.empty() ? "" : ", ") + reason + " " + count.dump();
    row("dropped", line);
  }
}

}  // namespace

std::string ResumeHint(const std::string& dir) {
  return "tidepool train " + dir + "/config.yaml --resume --run-dir " + dir;
}

StatusOr<Json> RunStatus(const std::string& run_dir) {
  const fs::path dir(run_dir);
  RealFileSystem real;
  Json s;
  s["run"] = run_dir;
  s["state"] = "new";
  std::optional<JobConfig> config;
  if (auto loaded = config::LoadConfig((dir / "config.yaml").string()); loaded.ok()) config = loaded->config;
  // A config of another version of the program is no reason not to tell the rest.
  if (config) {
    s["name"] = config->name;
    s["job"] = Name(config->kind());
  }
  const auto control = ReadObject(dir / "control.json");
  auto live = ReadObject(dir / "status.json");
  const auto summary = ReadObject(dir / "summary.json");
  if (live) (*live)["age_s"] = std::max(0.0, AgeSeconds(dir / "status.json"));
  const int64_t pid = control ? Value<int64_t>(*control, "pid", 0)
                      : live  ? Value<int64_t>(*live, "pid", 0)
                              : 0;
  // control.json goes when a controller ends in order; a process of its number without it is not ours.
  const bool alive = control && IsTidepoolProcess(pid);
  if (pid > 0) s["controller"] = {{"pid", pid}, {"alive", alive}};
  if (alive) {
    s["state"] = "running";
  } else {
    TP_ASSIGN_OR_RETURN(const storage::RunState state, storage::ReadRunState(real, run_dir));
    if (state.has_journal) {
      s["journal"] = {
          {"records", state.records}, {"last_step", state.last_step.value}, {"steps", state.steps}};
      s["journal"]["end_code"] = state.end_code ? Json(*state.end_code) : Json(nullptr);
      if (state.complete) {
        s["state"] = "finished";
      } else if (state.end_code) {
        s["state"] = *state.end_code == 0 ? "stopped" : "failed";
      } else {
        s["state"] = summary ? "failed" : "dead";  // a journal on a full disk may lack its end
      }
    }
  }
  const std::string state = s["state"];
  if (live && (state == "running" || state == "dead")) {
    s["workers"] = Workers(*live, config);
    s["live"] = std::move(*live);
  }
  if (summary && (state == "finished" || state == "stopped" || state == "failed")) s["summary"] = *summary;
  if (real.Exists((dir / "warm_start" / "config.yaml").string())) {
    TP_ASSIGN_OR_RETURN(s["warm_start"], RunStatus((dir / "warm_start").string()));
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
  if (state == "failed") line = "failed; see why below and " + dir + "/logs/" + go_on;
  row("state", line);
  if (status.contains("live")) DescribeLive(status, out);
  if (status.contains("summary")) DescribeSummary(status["summary"], out);
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
