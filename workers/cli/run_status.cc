#include "workers/cli/run_status.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/places.h"
#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/observe/progress.h"
#include "core/observe/run_data.h"
#include "core/observe/run_files.h"
#include "core/storage/run_directory.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/table.h"
#include "workers/data/best_model.h"
#include "workers/net/http_get.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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
    w["name"] = NameOfPlace(worker.place, config);
    // No pid: it was started by hand, perhaps on another machine.
    w["alive"] = worker.pid > 0 ? Json(IsTidepoolProcess(worker.pid)) : Json(nullptr);
    workers.push_back(std::move(w));
  }
  return workers;
}

Json Restarting(const observe::StatusFile& live, const std::optional<JobConfig>& config) {
  Json restarting = Json::array();
  for (const observe::RestartFacts& place : live.restarting) {
    Json r = JsonOf<Json>(place);
    r["name"] = NameOfPlace(place.place, config);
    restarting.push_back(std::move(r));
  }
  return restarting;
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
  return "held-out " + h.measure + " " + observe::HeldOutShort(h.measure, *now) + " at step " +
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
  if (status["state"] != "dead") {
    for (const std::string& wait : observe::WaitsText(live)) row("waits", wait);
  }
  if (live.paced) row("paced", "slots take the time of " + *live.paced);
  row("faults", n(live.restarts) + " restarts, " + n(live.refused) +
                    " messages refused (late ones of workers that are gone, or without a token)");
  row("warning", live.last_warning);
  for (size_t i = 0; i < live.workers.size(); ++i) {
    const observe::WorkerFacts& worker = live.workers[i];
    const Json& seen = status["workers"][i];
    row(seen["name"].get<std::string>().c_str(),
        "pid " + (worker.pid > 0 ? n(worker.pid) : "?") + (seen["alive"] == false ? " (gone)" : "") +
            ", incarnation " + n(worker.inc) + ", peak memory " + BytesText(worker.peak_bytes));
  }
  for (size_t i = 0; i < live.restarting.size(); ++i) {
    row(status["restarting"][i]["name"].get<std::string>().c_str(),
        status["state"] == "dead" ? "had died: " + live.restarting[i].why
                                  : observe::RestartText(live.restarting[i]));
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
  observe::SummaryFile s{.exit = -1};
  FromJson(json, s);
  row("ended", Joined({"exit code " + std::to_string(s.exit) + " after " + std::to_string(s.steps) + " steps",
                       s.policy_version.empty() ? "" : "weights " + s.policy_version}));
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
  const std::string seconds = Listed<double>(s.seconds, [](double x) { return Number(x, "%.1f"); });
  row("seconds", seconds.empty() ? "" : "since its last start: " + seconds);
  row("peak memory", Listed<int64_t>(s.peak_bytes, BytesText));
  // What was begun for a step that was not needed any more is no loss.
  const std::string leftover = Name(DropReason::kOperator);
  if (const auto left = s.drops.find(leftover); s.finished && left != s.drops.end()) {
    row("left over", std::to_string(left->second) + " samples that were begun beyond the last step");
    s.drops.erase(left);
  }
  for (const std::string& line : observe::LossLines(s)) row("lost", line);
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

std::optional<JobConfig> ConfigOf(const std::string& run_dir) {
  auto loaded = config::ReadCheckedConfig(storage::RunPaths(run_dir).config());
  if (!loaded.ok()) return std::nullopt;
  return std::move(loaded->config);
}

std::string NameOfPlace(int64_t place, const std::optional<JobConfig>& config) {
  return config ? PlaceName(*config, place) : "place-" + std::to_string(place);
}

bool HasController(const std::string& run_dir) {
  const storage::RunPaths paths(run_dir);
  return RealFileSystem().Exists(paths.control()) &&
         RealFileSystem::IsLocked(JoinPath(paths.journal(), "lock"));
}

std::string ResumeHint(const std::string& dir) {
  return ProgramAsTyped() + " train " + ShellWord(dir) + " --resume";
}

std::string StartOverHint(const std::string& config, const std::string& dir,
                          const std::vector<std::string>& overrides) {
  std::string line =
      ProgramAsTyped() + " train " + ShellWord(config) + " --run-dir " + ShellWord(dir) + " --fresh";
  for (const std::string& o : overrides) line += " " + ShellWord(o);
  return line;
}

namespace {

// Who holds a run that has no controller which says what it does.
void LookAtHolder(const std::string& run_dir, RunState& s) {
  const storage::RunHolder holder = storage::HolderOf(run_dir);
  if (holder.as.empty() || s.state == "warm_start") return;
  if (holder.as != storage::kController) {
    s.pruned = true;
    s.why = "`tidepool prune` is at work on it (pid " + std::to_string(holder.pid) + ")";
    return;
  }
  // Of a run that has ended it may be the controller that ended it, and is about to go.
  if (s.state != "new" && holder.pid == s.pid) return;
  s.begins = true;
  s.why = "its controller begins, and has said nothing yet";
}

RunState WithoutHolder(const std::string& run_dir, ReadJournal journal) {
  const storage::RunPaths paths(run_dir);
  RunState s;
  observe::StatusFile live;
  if (s.live = observe::ReadObject(paths.status()); !s.live.is_null()) {
    s.live["age_s"] = std::max(0.0, AgeSeconds(paths.status()));
    FromJson(s.live, live);
    s.pid = live.pid;
    s.step = live.step;
    s.steps = live.steps;
    s.why = live.last_warning;
  }
  if (const Json control = observe::ReadObject(paths.control()); !control.is_null()) {
    s.pid = 0;
    if (const auto pid = control.find("pid"); pid != control.end()) FromJson(*pid, s.pid);
  }
  s.alive = HasController(run_dir);
  if (s.alive) {
    s.state = "running";
    if (!s.live.is_null()) s.silent_s = s.live["age_s"];
    s.paused = IsPaused(s.pid);
    if (s.paused || s.silent_s > kSilent_s) {
      s.why = "its controller has said nothing for " + Number(s.silent_s, "%.0f") + " s: " +
              (s.paused ? "it is paused (SIGSTOP); kill -CONT " + std::to_string(s.pid) + " lets it go on"
               : !live.call_held.empty() ? "it waits for " + live.call_held
                                         : "it stands still, or the disk does not answer");
    }
    return s;
  }
  s.summary = observe::EndOf(run_dir);
  bool said = false;
  if (!s.summary.is_null()) {
    observe::SummaryFile summary{.exit = -1};
    FromJson(s.summary, summary);
    said = summary.exit != 0 || s.summary.contains("finished");  // an older program left that to the journal
    s.state = summary.exit != 0 ? "failed" : summary.finished ? "finished" : "stopped";
    s.step = summary.steps;
    s.why = summary.why;
  }
  if (journal == ReadJournal::kAlways || (!said && journal == ReadJournal::kWhereNothingElseTells)) {
    RealFileSystem real;
    const auto read = storage::ReadRunOnDisk(real, run_dir);
    if (!read.ok()) {
      s.journal_error = read.status().message();
    } else if (read->has_journal) {
      s.journal = *read;
    }
  }
  if (said || (journal == ReadJournal::kNever && !s.summary.is_null())) return s;
  if (!s.journal_error.empty()) {
    s.state = "unreadable";
    s.why = s.journal_error;
  } else if (s.journal) {
    s.state = s.journal->complete         ? "finished"
              : !s.journal->end_code      ? "dead"
              : *s.journal->end_code == 0 ? "stopped"
                                          : "failed";
    s.step = std::max<int64_t>(s.journal->last_step.value, 0);
    s.steps = s.journal->steps;
  } else if (journal == ReadJournal::kNever && !s.live.is_null()) {
    s.state = "dead";
  } else if (const std::string warm = paths.warm_start();
             RealFileSystem().Exists(storage::RunPaths(warm).config())) {
    const RunState first = StateOf(warm, journal);
    if (first.state == "running") {
      s.state = "warm_start";
      s.why = first.why;
      s.silent_s = first.silent_s;
    } else if (first.state != "new" && first.state != "finished") {
      s.state = first.state;
      s.why = first.why;
      s.pid = first.pid;
    }
  }
  return s;
}

}  // namespace

RunState StateOf(const std::string& run_dir, ReadJournal journal) {
  RunState s = WithoutHolder(run_dir, journal);
  if (!s.alive) LookAtHolder(run_dir, s);
  return s;
}

Json RunStatus(const std::string& run_dir, ReadJournal journal) {
  const storage::RunPaths paths(run_dir);
  RunState state = StateOf(run_dir, journal);
  Json s;
  s["run"] = run_dir;
  s["state"] = state.state;
  const std::optional<JobConfig> config = ConfigOf(run_dir);
  // A config of another version of the program is no reason not to tell the rest.
  if (config) {
    s["name"] = config->name;
    s["job"] = Name(config->kind());
  }
  if (state.begins) s["begins"] = true;
  if (state.pruned) s["pruned"] = true;
  if (state.pid > 0) {
    s["controller"] = {{"pid", state.pid}, {"alive", state.alive}};
    if (state.alive) {
      s["controller"]["silent_s"] = state.silent_s;
      s["controller"]["paused"] = state.paused;
      if (state.paused || state.silent_s > kSilent_s) s["controller"]["silent"] = state.why;
    }
  }
  if (!state.journal_error.empty()) {
    s["journal"] = {{"error", state.journal_error}};
  } else if (state.journal) {
    s["journal"] = {{"records", state.journal->records},
                    {"last_step", state.journal->last_step.value},
                    {"steps", state.journal->steps}};
    if (state.state != "finished" && !state.alive)
      s["resume_step"] = std::max<int64_t>(state.journal->checkpoint_step.value, 0);
    s["journal"]["end_code"] = state.journal->end_code ? Json(*state.journal->end_code) : Json(nullptr);
  }
  if (const Json best = observe::ReadObject(paths.best_model() + "/" + kBestModelFile); !best.is_null())
    s["best"] = best;
  if (!state.live.is_null() && (state.alive || state.state == "dead")) {
    observe::StatusFile shown;
    FromJson(state.live, shown);
    s["workers"] = Workers(shown, config);
    s["restarting"] = Restarting(shown, config);
    s["live"] = std::move(state.live);
  } else if (!state.live.is_null()) {  // it has ended
    for (const char* name : {"reward", "loss"}) {
      if (state.live.contains(name)) s["last"][name] = state.live[name];
    }
  }
  if (!state.summary.is_null()) s["summary"] = std::move(state.summary);
  if (RealFileSystem().Exists(storage::RunPaths(paths.warm_start()).config()))
    s["warm_start"] = RunStatus(paths.warm_start(), journal);
  return s;
}

namespace {

// "10.0.0.7:9100" of what was typed, perhaps as a browser has it; empty: it is no address.
std::string AddressOf(std::string_view text) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (text.starts_with(scheme)) text.remove_prefix(scheme.size());
  }
  while (text.ends_with('/')) text.remove_suffix(1);
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return "";
  const std::string_view port = text.substr(colon + 1);
  int number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_port =
      error == std::errc() && end == port.data() + port.size() && number > 0 && number <= 65535;
  return is_port && text.find('/') == std::string_view::npos ? std::string(text) : "";
}

// Of a page that may be anybody's: what has another type is as if it were not there.
template <typename T>
T ValueOf(const Json& object, const char* key, T value) {
  if (const auto at = object.find(key); at != object.end()) FromJson(*at, value);
  return value;
}

}  // namespace

StatusOr<Json> StatusFrom(const std::string& typed, const std::string& token_file) {
  const std::string address = AddressOf(typed);
  if (address.empty())
    return InvalidArgument("'" + typed +
                           "' is no address; with --token-file write HOST:PORT, as RUN/control.json has it "
                           "(`pages`)");
  HttpGetOptions get{.address = address, .target = "/status"};
  TP_ASSIGN_OR_RETURN(get.credentials, ReadCredentials(token_file));
  TP_ASSIGN_OR_RETURN(const HttpGot got, HttpGet(get));
  if (got.status == 401)
    return PermissionDenied(token_file + ": the process at " + address +
                            " does not know this token; name security/operator.token of its run");
  const Json page = Json::parse(got.body, nullptr, /*allow_exceptions=*/false);
  const Json shown = page.is_object() ? page.value("live", Json()) : Json();
  if (got.status != 200 || !shown.is_object())
    return Unavailable(address + ": answers " + std::to_string(got.status) +
                       " and no status; RUN/control.json has the controller's address (`pages`)");
  observe::StatusFile live;
  FromJson(shown, live);
  const double age_s = ValueOf(page, "age_s", 0.0);
  Json s = {{"run", ValueOf(page, "run", std::string())},
            {"state", "running"},
            {"name", live.name},
            {"job", ValueOf(page, "job", std::string())}};
  s["controller"] = {{"pid", live.pid}, {"alive", true}, {"silent_s", age_s}, {"paused", false}};
  if (age_s > kSilent_s)
    s["controller"]["silent"] = "its controller has said nothing for " + Number(age_s, "%.0f") + " s" +
                                (live.call_held.empty() ? "" : ": it waits for " + live.call_held);
  s["workers"] = Json::array();
  for (const observe::WorkerFacts& worker : live.workers) {
    s["workers"].push_back(JsonOf<Json>(worker));
    s["workers"].back()["alive"] = true;  // by its heartbeats
  }
  s["restarting"] = Json::array();
  for (const observe::RestartFacts& place : live.restarting) s["restarting"].push_back(JsonOf<Json>(place));
  s["live"] = shown;
  s["live"]["age_s"] = age_s;
  return s;
}

StatusOr<StatusSource> SourceOf(const std::string& run, const std::string& token_file, ReadJournal journal) {
  if (!token_file.empty()) return StatusSource([run, token_file] { return StatusFrom(run, token_file); });
  std::error_code error;  // what cannot be looked at is not there for us
  if (!AddressOf(run).empty() && !fs::exists(run, error) && !fs::exists(fs::path("runs") / run, error))
    return InvalidArgument(run +
                           ": of an address, name the operator's token, too: --token-file "
                           "RUN/security/operator.token, or a copy");
  TP_ASSIGN_OR_RETURN(const std::string dir,
                      FindRunDirectory(run,
                                       "status reads status.json and summary.json; of an address "
                                       "(HOST:PORT) with --token-file"));
  if (journal != ReadJournal::kWhereNothingElseTells)
    return StatusSource([dir, journal]() -> StatusOr<Json> { return RunStatus(dir, journal); });
  struct Look {
    Json quick, whole;
  };
  return StatusSource([dir, last = std::make_shared<Look>()]() -> StatusOr<Json> {
    Json quick = RunStatus(dir, ReadJournal::kNever);
    if (quick["state"] == "running") return quick;
    for (Json* of : {&quick, quick.contains("warm_start") ? &quick["warm_start"] : &quick}) {
      if (of->contains("live")) (*of)["live"].erase("age_s");  // it grows, though nothing happens
    }
    if (quick != last->quick) *last = {quick, RunStatus(dir, ReadJournal::kWhereNothingElseTells)};
    return last->whole;
  });
}

namespace {

// `resume`: the run directory to go on with; a warm start is resumed by the run that it belongs to.
void Describe(const Json& status, const std::string& resume, std::ostringstream& out) {
  const Row row{out};
  const std::string state = status["state"];
  const std::string dir = status["run"];
  const bool begins = status.contains("begins"), pruned = status.contains("pruned");
  const std::string go_on = resume.empty() || begins || pruned ? "" : "; go on with: " + ResumeHint(resume);
  row("run", dir + (status.contains("job") ? " (job " + status["job"].get<std::string>() + ")" : ""));
  std::string line = state;
  if (state == "running") line += ", controller pid " + status["controller"]["pid"].dump();
  if (state == "warm_start")
    line = "running its warm start, controller pid " + status["warm_start"]["controller"]["pid"].dump();
  if (state == "new" && !begins) line = "nothing has happened yet";
  if (state == "unreadable") line = "unreadable, and it did not say how it ended";
  if (state == "dead") line = "dead: its controller is gone and did not say why" + go_on;
  if (state == "stopped") line = "stopped before its last step" + go_on;
  if (state == "failed") line = "failed; see why below and " + storage::RunPaths(dir).logs() + "/" + go_on;
  if (begins) {
    line = (state == "new" ? "" : state + "; ") +
           "its controller begins, and has said nothing yet; its log is " + storage::RunPaths(dir).logs() +
           "/controller.log";
  }
  if (pruned) line += "; `tidepool prune` is at work on it";
  row("state", line);
  if (status.contains("resume_step")) row("resume", "begins at step " + status["resume_step"].dump());
  if (status.contains("controller")) row("silent", status["controller"].value("silent", ""));
  if (status.contains("live")) DescribeLive(status, out);
  if (status.contains("last")) {
    observe::StatusFile last;
    FromJson(status["last"], last);
    row("learning", Joined({Part("reward ", last.reward, "%.3f"), Part("loss ", last.loss, "%.4f")}) +
                        " in the last step");
  }
  if (status.contains("summary")) DescribeSummary(status["summary"], out);
  if (status.contains("best")) {
    BestModel best;
    FromJson(status["best"], best);
    row("best", best.metric + " " + Number(best.value, "%.4g") + " at step " + std::to_string(best.step) +
                    ", its model is " + storage::RunPaths(dir).best_model());
  }
  if (status.contains("journal") && status["journal"].contains("error")) {
    row("journal", status["journal"]["error"].get<std::string>());
  } else if (status.contains("journal") &&
             (!status.contains("summary") || status["journal"]["end_code"].is_null())) {
    const Json& j = status["journal"];
    row("journal", (status.contains("summary") ? "lacks the end of the run: " : "") + j["records"].dump() +
                       " records, last committed step " +
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

bool IsHealthy(const nlohmann::ordered_json& status) {
  constexpr double kMost_s = 30;
  if (status.value("state", "") == "finished") return true;
  const auto controller = status.find("controller");
  if (controller != status.end() && controller->value("alive", false) &&
      controller->value("silent_s", 0.0) < kMost_s)
    return true;
  const auto warm = status.find("warm_start");
  return warm != status.end() && warm->value("state", "") != "finished" && IsHealthy(*warm);
}

std::string DescribeStatus(const Json& status) {
  std::ostringstream out;
  Describe(status, status["run"].get<std::string>(), out);
  return WithoutControls(out.str());
}

}  // namespace tidepool::workers
