#include "workers/cli/run_lookup.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <utility>

#include "core/base/names.h"
#include "core/base/real_file_system.h"
#include "core/observe/config_text.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

bool IsFolder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool HoldsSegments(const fs::path& dir) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".tpj") return true;
  }
  return false;
}

bool HoldsRun(const fs::path& dir) {
  const storage::RunPaths paths(dir.string());
  return Exists(paths.config()) || IsFolder(paths.journal());
}

// When the run was started, so that later ones sort behind: the time in its name with the count of
// runs of one second, else the folder's time.
std::pair<std::string, int64_t> Age(const fs::path& dir) {
  static const std::regex stamp(R"(-(\d{8}T\d{6}Z)(?:-(\d{1,9}))?$)");
  std::smatch match;
  const std::string name = dir.filename().string();
  if (std::regex_search(name, match, stamp)) return {match[1], match[2].matched ? std::stoll(match[2]) : 1};
  std::error_code error;
  auto time = fs::last_write_time(storage::RunPaths(dir.string()).config(), error);
  if (error) time = fs::last_write_time(dir, error);
  if (error) return {"", 0};
  const auto system = std::chrono::file_clock::to_sys(time);
  return {
      storage::UtcStamp(std::chrono::duration_cast<std::chrono::seconds>(system.time_since_epoch()).count()),
      0};
}

// As the kernel writes it, 'R' and so on; 0: there is no such process, or another program's. A zombie ('Z')
// is dead, though its parent has not looked yet.
char StateOfTidepool(int64_t pid) {
  if (pid <= 0) return '\0';
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");  // "pid (name) state ..."
  std::string stat;
  if (!std::getline(in, stat)) return '\0';
  const size_t open = stat.find('('), close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= stat.size()) return '\0';
  return stat.compare(open + 1, 8, "tidepool") == 0 ? stat[close + 2] : '\0';
}

// Newest first.
std::vector<std::string> RunsNamed(const std::string& name, const std::string& root) {
  std::vector<std::string> runs;
  for (const RunFolder& run : RunFolders(root)) {
    const auto config = RealFileSystem().ReadFile(storage::RunPaths(run.dir).config());
    const std::string stamped = storage::FolderName(name) + "-" + run.started;  // <name>-<utc time>
    if ((config.ok() && observe::ConfigValues(*config)["name"] == name) ||
        fs::path(run.dir).filename().string().starts_with(stamped)) {
      runs.push_back(run.dir);
    }
  }
  return runs;
}

// requires one, newest first
StatusOr<std::string> NewestUnfinished(const std::vector<std::string>& runs) {
  RealFileSystem files;
  for (const std::string& dir : runs) {
    TP_ASSIGN_OR_RETURN(const storage::RunOnDisk state, storage::ReadRunOnDisk(files, dir));
    if (!state.complete) return dir;
  }
  return runs.front();
}

StatusOr<RunPlace> PlaceOf(const std::string& dir) {
  if (HoldsRun(dir)) return RunPlace{dir, storage::RunPaths(dir).journal()};
  if (HoldsSegments(dir)) return RunPlace{"", dir};
  if (Exists(fs::path(dir) / "sweep.json")) {
    return InvalidArgument(dir +
                           ": a sweep, whose runs are folders in it; name one of those, or go on with all by "
                           "`tidepool sweep " +
                           dir + " --resume`");
  }
  if (Exists(storage::RunPaths(dir).lock())) {
    return InvalidArgument(dir +
                           ": its run was ended before it began (there is no config.yaml); start it with "
                           "`tidepool train CONFIG --run-dir " +
                           dir + "`");
  }
  return InvalidArgument(
      dir +
      ": neither a run directory (it has no config.yaml and no journal/) nor a journal (no NNNN.tpj); "
      "name a folder that `tidepool train` made");
}

}  // namespace

std::vector<RunFolder> RunFolders(const std::string& root) {
  std::vector<std::pair<std::pair<std::string, int64_t>, fs::path>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    if (IsFolder(entry.path()) && HoldsRun(entry.path())) found.emplace_back(Age(entry.path()), entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<RunFolder> runs;
  for (const auto& [age, path] : found) runs.push_back({path.string(), age.first});
  return runs;
}

StatusOr<RunPlace> FindRun(const std::string& name, const std::string& root) {
  std::string clean = name;
  while (clean.size() > 1 && clean.back() == '/') clean.pop_back();
  if (clean.empty())
    return InvalidArgument("a run is named by its directory, or by its name under " + root +
                           "/; the name is empty");
  const bool plain = clean.find('/') == std::string::npos;
  if (IsFolder(clean) && (!plain || HoldsRun(clean) || HoldsSegments(clean))) return PlaceOf(clean);
  if (Exists(clean) && !IsFolder(clean))
    return InvalidArgument(clean + ": a file, not a run directory; name the folder that holds it");
  if (plain && IsFolder(fs::path(root) / clean)) return PlaceOf((fs::path(root) / clean).string());
  std::string there, longer;  // the newest whose name goes on
  std::vector<std::string> names;
  int shown = 0;
  for (const RunFolder& run : RunFolders(root)) {
    const std::string folder = fs::path(run.dir).filename().string();
    if (plain && folder.starts_with(clean)) {
      if (folder.starts_with(clean + "-" + run.started)) return PlaceOf(run.dir);  // <name>-<utc time>
      if (longer.empty()) longer = run.dir;
    }
    names.push_back(folder);
    const size_t stamp = folder.rfind("-" + run.started);
    if (stamp != std::string::npos) names.push_back(folder.substr(0, stamp));
    if (shown++ < 8) there += (there.empty() ? "" : ", ") + folder;
  }
  if (!longer.empty()) return PlaceOf(longer);
  if (IsFolder(clean)) return PlaceOf(clean);  // which says what it lacks
  std::string message = clean + ": no such run: there is no folder of this name";
  if (plain) message += ", and none under " + root + "/ begins with it";
  const std::string near = plain ? Nearest(clean, names) : "";
  if (!near.empty()) message += "; did you mean " + near + "?";
  message += there.empty() ? "; " + root + "/ holds no run, start one with `tidepool train CONFIG`"
                           : "; `tidepool runs` lists what there is, the newest under " + root +
                                 "/: " + there + (shown > 8 ? ", ..." : "");
  return NotFound(message);
}

StatusOr<std::string> FindRunDirectory(const std::string& name, const std::string& why,
                                       const std::string& root) {
  TP_ASSIGN_OR_RETURN(const RunPlace place, FindRun(name, root));
  if (place.dir.empty())
    return InvalidArgument(name + ": a journal folder, but " + why +
                           "; name the run directory that it belongs to");
  return place.dir;
}

StatusOr<std::string> FindRunOfConfig(const std::string& name, const std::string& root) {
  const std::vector<std::string> runs = RunsNamed(name, root);
  if (!runs.empty()) return NewestUnfinished(runs);
  return NotFound(root + "/ holds no run of '" + name +
                  "' to go on with; start one without --resume, or name the folder of one that is elsewhere: "
                  "train FOLDER --resume");
}

StatusOr<std::string> FindRunToResume(const std::string& name, const std::string& why,
                                      const std::string& root) {
  if (name.find('/') == std::string::npos && !HoldsRun(name) && !IsFolder(fs::path(root) / name)) {
    std::vector<std::string> runs = RunsNamed(name, root);
    if (runs.empty()) {
      for (const RunFolder& run : RunFolders(root)) {
        if (fs::path(run.dir).filename().string().starts_with(name)) runs.push_back(run.dir);
      }
    }
    if (!runs.empty()) return NewestUnfinished(runs);
  }
  return FindRunDirectory(name, why, root);
}

bool IsSameFolder(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

bool IsTidepoolProcess(int64_t pid) {
  const char state = StateOfTidepool(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

bool IsPaused(int64_t pid) { return StateOfTidepool(pid) == 'T'; }

}  // namespace tidepool::workers
