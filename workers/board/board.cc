#include "workers/board/board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <list>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/base/thread_annotations.h"
#include "core/observe/comparison.h"
#include "core/observe/live_curves.h"
#include "core/observe/pages.h"
#include "core/observe/pool_history.h"
#include "core/observe/progress.h"
#include "core/observe/report.h"
#include "core/observe/samples_writer.h"
#include "core/storage/run_directory.h"
#include "workers/board/looks.h"
#include "workers/cli/run_list.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kListsMax = 5;              // that are made at a time
constexpr size_t kWatchedMax = 24;        // runs whose curves are kept
constexpr int64_t kLogBytes = 128 << 10;  // of one answer
constexpr size_t kSamplesMax = 60;        // of one step
constexpr size_t kSampleStepsMax = 400;   // that are offered

// Size and time of files, as text that differs when one of them changed.
std::string StampOf(std::initializer_list<std::string> paths) {
  std::string stamp;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) info = {};
    stamp += std::to_string(info.st_ino) + "." + std::to_string(info.st_size) + "." +
             std::to_string(info.st_mtim.tv_sec) + "." + std::to_string(info.st_mtim.tv_nsec) + " ";
  }
  return stamp;
}

std::string JournalStamp(const std::string& dir) {
  std::string newest;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(storage::RunPaths(dir).journal(), error)) {
    if (entry.path().extension() == ".tpj") newest = std::max(newest, entry.path().string());  // not its lock
  }
  return StampOf({newest});
}

// Something made of files. Due: they changed (or what it says may have, by itself), and making it again would
// take less than a twentieth of the time.
template <typename T>
struct Kept {
  T value{};
  std::string stamp;
  Clock::time_point made{};
  Clock::duration cost{};
  [[nodiscard]] bool Due(const std::string& now_stamp, bool restless = false) const {
    if (made == Clock::time_point{}) return true;
    const auto age = Clock::now() - made;
    return (now_stamp != stamp || (restless && age > std::chrono::seconds(4))) && age > 20 * cost;
  }
  template <typename Make>
  void Renew(std::string now_stamp, const Make& make) {
    const auto begin = Clock::now();
    value = make();
    made = Clock::now();
    cost = made - begin;
    stamp = std::move(now_stamp);
  }
};

// What is kept of a run in the list.
struct Briefed {
  explicit Briefed(const std::string& dir) : reader(dir) {}
  BriefReader reader;  // of whoever has the look at the run
  Kept<RunBrief> brief;
};

// What is kept of a run that somebody looks at.
struct Watched {
  explicit Watched(const std::string& dir) : curves(storage::RunPaths(dir).metrics()), journal(files, dir) {}
  Mutex mu;
  observe::LiveCurves curves TP_GUARDED_BY(mu);
  Kept<std::vector<int64_t>> sample_steps TP_GUARDED_BY(mu);
  RealFileSystem files;
  observe::PoolFollower journal;  // of whoever has the look at the journal
  Mutex pool_mu;                  // mu is held while curves are read
  Kept<json> pool TP_GUARDED_BY(pool_mu);
};

HttpResponse Json(const json& data, int status = 200) {
  return {.status = status,
          .type = "application/json; charset=utf-8",
          .body = data.dump(-1, ' ', false, json::error_handler_t::replace)};
}

HttpResponse Error(int status, const std::string& why) { return Json({{"error", why}}, status); }
HttpResponse Error(const Status& status) {
  return Error(status.code() == StatusCode::kNotFound      ? 404
               : status.code() == StatusCode::kUnavailable ? 503
                                                           : 400,
               status.message());
}
Status Busy(const std::string& name) {
  return Unavailable(name + ": its files are being read, and that takes long; a disk that hangs does so");
}

std::optional<int64_t> NumberOf(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

json Logs(const std::string& dir) {
  json list = json::array();
  std::map<std::string, int64_t> logs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(storage::RunPaths(dir).logs(), error)) {
    struct stat info {};
    if (::lstat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode))
      logs[entry.path().filename().string()] = info.st_size;
  }
  for (const auto& [name, bytes] : logs) list.push_back({{"name", name}, {"bytes", bytes}});
  return list;
}

// `name` is one of Logs(): no path of it leads elsewhere, and a link is not followed.
StatusOr<json> LogPart(const std::string& path, std::optional<int64_t> from) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return NotFound(path + ": cannot be read");
  struct stat info {};
  ::fstat(fd, &info);
  // A log that became shorter is another one.
  const bool end = !from || *from > info.st_size;
  const int64_t at = end ? std::max<int64_t>(0, info.st_size - kLogBytes) : *from;
  std::string text(static_cast<size_t>(std::min(kLogBytes, info.st_size - at)), '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), at);
  ::close(fd);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  size_t skipped = 0;
  if (end && at > 0) skipped = std::min(text.find('\n'), text.size() - 1) + 1;
  return json{{"text", text.substr(skipped)},
              {"from", at + static_cast<int64_t>(skipped)},
              {"to", at + static_cast<int64_t>(text.size())},
              {"bytes", info.st_size}};
}

}  // namespace

struct Board::Impl {
  std::string root;
  Looks looks{kLooksMax};
  Mutex mu;
  std::string runs TP_GUARDED_BY(mu);                                                     // the last list
  std::map<std::string, Briefed> briefs TP_GUARDED_BY(mu);                                // by folder
  std::list<std::pair<std::string, std::shared_ptr<Watched>>> watched TP_GUARDED_BY(mu);  // latest first

  // A name is one folder of the root and nothing else. Looks at no file.
  StatusOr<std::string> DirOf(const std::string& name) const {
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      return InvalidArgument("run: '" + name + "' is no name of a run; /api/runs lists them");
    return (fs::path(root) / name).string();
  }
  [[nodiscard]] Status IsThere(const std::string& dir) const {
    const storage::RunPaths paths(dir);
    if (!Exists(paths.config()) && !Exists(paths.journal()) && !Exists(paths.metrics()))
      return NotFound(fs::path(dir).filename().string() + ": no such run in " + root +
                      "; its folder is gone, or was moved");
    return OkStatus();
  }

  std::shared_ptr<Watched> Watch(const std::string& dir) {
    const MutexLock lock(mu);
    for (auto it = watched.begin(); it != watched.end(); ++it) {
      if (it->first != dir) continue;
      watched.splice(watched.begin(), watched, it);
      return it->second;
    }
    watched.emplace_front(dir, std::make_shared<Watched>(dir));
    if (watched.size() > kWatchedMax) watched.pop_back();
    return watched.front().second;
  }

  StatusOr<RunBrief> Brief(const std::string& dir) {
    const storage::RunPaths paths(dir);
    Briefed known(dir);
    {
      const MutexLock lock(mu);
      if (const auto at = briefs.find(dir); at != briefs.end()) known = at->second;
    }
    Kept<RunBrief>& kept = known.brief;
    const std::string stamp =
        StampOf({paths.config(), paths.metrics(), paths.summary(), paths.status(), paths.control(),
                 paths.warm_start(), paths.last_words(), paths.lock()});
    // One that is new may be about to begin: its controller holds a lock, and no file changes.
    const std::string& state = kept.value.state;
    const bool restless = state == "running" || state == "warm_start" || state == "new" || kept.value.begins;
    if (!kept.Due(stamp, restless)) return kept.value;
    Status failed;
    kept.Renew(stamp, [&] {
      auto brief = known.reader.Read();
      if (brief.ok()) return *std::move(brief);
      failed = brief.status();
      return RunBrief{};
    });
    TP_RETURN_IF_ERROR(failed);
    const MutexLock lock(mu);
    briefs.insert_or_assign(dir, known);
    return kept.value;
  }

  // What is known of it without a look, or a word that nothing is.
  RunBrief WithoutALook(const RunFolder& folder) {
    const MutexLock lock(mu);
    if (const auto at = briefs.find(folder.dir); at != briefs.end()) return at->second.brief.value;
    RunBrief brief;
    brief.run = fs::path(folder.dir).filename().string();
    brief.dir = folder.dir;
    brief.state = "unreadable";
    brief.last_line = Busy(brief.run).message();
    return brief;
  }

  HttpResponse Runs() {
    // One that hangs at a run leaves the others to the next, some times.
    std::optional<Looks::Look> whole;
    for (int i = 0; i < kListsMax && !whole; ++i)
      whole = looks.At(root + " " + std::to_string(i), Looks::How::kNow);
    if (!whole) {
      const MutexLock lock(mu);
      return runs.empty() ? Error(Busy(root))
                          : HttpResponse{.type = "application/json; charset=utf-8", .body = runs};
    }
    json list = json::array();
    const std::vector<RunFolder> folders = RunFolders(root);
    for (const RunFolder& folder : folders) {
      const auto look = looks.At(folder.dir, Looks::How::kWithin);
      StatusOr<RunBrief> brief = look ? Brief(folder.dir) : WithoutALook(folder);
      if (!brief.ok()) continue;  // it went while we looked
      brief->started = folder.started;
      list.push_back(JsonOf<json>(*brief));
    }
    const MutexLock lock(mu);
    std::erase_if(briefs, [&](const auto& entry) {
      return std::ranges::none_of(folders, [&](const RunFolder& f) { return f.dir == entry.first; });
    });
    HttpResponse answer = Json({{"root", root}, {"runs", list}});
    runs = answer.body;
    return answer;
  }

  HttpResponse Run(const std::string& dir, const HttpRequest& request) {
    const storage::RunPaths paths(dir);
    const auto brief = Brief(dir);
    if (!brief.ok()) return Error(brief.status());
    json out = {{"brief", JsonOf<json>(*brief)}, {"more", false}};
    if (brief->live.is_object()) {
      observe::StatusFile status;
      FromJson(brief->live, status);
      std::vector<std::string> waits = observe::WaitsText(status);
      for (const observe::RestartFacts& place : status.restarting)
        waits.push_back(place.name + ": " + observe::RestartText(place));
      out["waits"] = waits;
      out["live"] = json(brief->live);
    }
    std::vector<int64_t> steps;
    {
      const std::shared_ptr<Watched> kept = Watch(dir);
      const MutexLock lock(kept->mu);
      // A file for each step: a list of them takes as long as the run is.
      const std::string stamp = StampOf({paths.samples()});
      if (kept->sample_steps.Due(stamp))
        kept->sample_steps.Renew(stamp, [&] { return observe::SampleSteps(dir); });
      steps = kept->sample_steps.value;
      if (const auto more = kept->curves.Read(); more.ok()) out["more"] = *more;
      out["curves"] = kept->curves.Since(request.Query("cursor"));
    }
    const std::string seen = StampOf({paths.config(), paths.summary(), paths.last_words()});
    out["seen"] = seen;
    out["steps"] = json::array();
    const size_t offered = std::min(steps.size(), kSampleStepsMax);
    for (size_t i = 0; i < offered; ++i)  // first and last among them
      out["steps"].push_back(steps[offered == 1 ? 0 : i * (steps.size() - 1) / (offered - 1)]);
    if (request.Query("seen") == seen) return Json(out);
    if (const auto run = observe::ReadRun(dir, observe::RunParts::kFacts); run.ok()) {
      const json facts = observe::CurvesData(*run);
      for (const char* key : {"folder", "facts", "exit_code", "problems", "config", "values"})
        out[key] = facts[key];
      out["seconds"] = run->summary.seconds;
      out["peak_bytes"] = run->summary.peak_bytes;
      out["drops"] = run->summary.drops;
      out["lost"] = observe::LossLines(run->summary);
    }
    return Json(out);
  }

  // null: it is being read for the first time. A long journal takes seconds, and curves do not wait for it.
  HttpResponse Pool(const std::string& dir) {
    const std::shared_ptr<Watched> kept = Watch(dir);
    const auto look = looks.At(dir + "/journal", Looks::How::kNow);
    Kept<json> fresh;
    const Status there = look ? IsThere(dir) : OkStatus();
    if (!there.ok()) return Error(there);
    const std::string stamp = look ? JournalStamp(dir) : "";
    {
      const MutexLock lock(kept->pool_mu);
      if (!look || !kept->pool.Due(stamp)) return Json(kept->pool.value);
    }
    fresh.Renew(stamp, [&] {
      auto pool = kept->journal.Read();
      json data = observe::PoolData(pool.ok() ? *pool : observe::PoolHistory{});
      data["faults"] = pool.ok() ? pool->faults : std::map<std::string, int64_t>{};
      if (!pool.ok() && pool.status().code() != StatusCode::kNotFound)
        data["problem"] = pool.status().message();
      return data;
    });
    const MutexLock lock(kept->pool_mu);
    kept->pool = std::move(fresh);
    return Json(kept->pool.value);
  }

  HttpResponse Samples(const std::string& dir, const std::string& step) {
    const auto number = NumberOf(step);
    if (!number) return Error(400, "step: '" + step + "' is no step");
    const auto rows = observe::ReadSamples(dir, *number, kSamplesMax);
    if (!rows.ok()) return Error(rows.status());
    json list = json::array();
    for (const observe::SampleRow& row : *rows) list.push_back(observe::SampleData(row));
    return Json(list);
  }

  HttpResponse Log(const std::string& dir, const HttpRequest& request) {
    const std::string name = request.Query("name");
    for (const json& log : Logs(dir)) {
      if (log["name"] != name) continue;
      const auto part =
          LogPart(JoinPath(storage::RunPaths(dir).logs(), name), NumberOf(request.Query("from")));
      return part.ok() ? Json(*part) : Error(part.status());
    }
    return Error(404, "name: this run has no log '" + name + "'");
  }

  // `more`: of a long run only a part was read so far, and what it says is of that part.
  HttpResponse Comparison(std::string_view names) {
    std::vector<observe::ComparedRun> runs;
    bool more = false;
    while (!names.empty()) {
      const std::string_view name = names.substr(0, names.find('/'));
      names.remove_prefix(std::min(names.size(), name.size() + 1));
      const auto dir = DirOf(std::string(name));
      if (!dir.ok()) return Error(dir.status());
      const auto look = looks.At(*dir);
      const Status there = look ? IsThere(*dir) : Busy(std::string(name));
      if (!there.ok()) return Error(there);
      const auto run = observe::ReadRun(*dir, observe::RunParts::kFacts);
      if (!run.ok()) return Error(run.status());
      const std::shared_ptr<Watched> kept = Watch(*dir);
      const MutexLock lock(kept->mu);
      const auto unread = kept->curves.Read();
      more = more || (unread.ok() && *unread);  // an error: no metrics yet, none to compare
      runs.push_back(observe::ComparedRunOf(*run, *dir, kept->curves.Spans()));
      if (runs.size() > observe::kComparedRunsMax) return Error(400, "runs: eight at most can be told apart");
    }
    if (runs.empty()) return Error(400, "runs: none are named");
    const auto comparison = observe::Compare(runs);
    if (!comparison.ok()) return Error(comparison.status());
    json out = observe::ComparisonData(*comparison);
    out["more"] = more;
    return Json(out);
  }
};

Board::Board(std::string root) : impl_(std::make_unique<Impl>()) { impl_->root = std::move(root); }
Board::~Board() = default;

HttpResponse Board::Answer(const HttpRequest& request) {
  const std::string& path = request.path;
  if (path == "/") {
    const auto nonce = RandomHex();
    if (!nonce.ok()) return Error(500, nonce.status().message());
    std::string page(observe::DashboardPage());
    const std::string mark = "{{nonce}}";
    page.replace(page.find(mark), mark.size(), *nonce);
    return {
        .type = "text/html; charset=utf-8",
        .body = std::move(page),
        .headers = {{"Content-Security-Policy",
                     "default-src 'none'; script-src 'nonce-" + *nonce +
                         "'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                         "form-action 'none'; frame-ancestors 'none'"}}};
  }
  if (path == "/api/runs") return impl_->Runs();
  if (path == "/api/compare") return impl_->Comparison(request.Query("runs"));
  for (const char* of_a_run : {"/api/run", "/api/pool", "/api/samples", "/api/logs", "/api/log"}) {
    if (path != of_a_run) continue;
    const auto dir = impl_->DirOf(request.Query("run"));
    if (!dir.ok()) return Error(dir.status());
    if (path == "/api/pool") return impl_->Pool(*dir);
    const auto look = impl_->looks.At(*dir);
    const Status there = look ? impl_->IsThere(*dir) : Busy(request.Query("run"));
    if (!there.ok()) return Error(there);
    if (path == "/api/run") return impl_->Run(*dir, request);
    if (path == "/api/samples") return impl_->Samples(*dir, request.Query("step"));
    if (path == "/api/logs") return Json(Logs(*dir));
    return impl_->Log(*dir, request);
  }
  return Error(404, path + ": nothing is here; the page is at /");
}

}  // namespace tidepool::workers
