#include "core/storage/run_directory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <map>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"

namespace tidepool::storage {
namespace {

Status WithAdvice(const Status& status) {
  if (status.ok()) return status;
  return {status.code(),
          "the run folder cannot be made: " + status.message() + " (--run-dir names another folder)"};
}

}  // namespace

Status CheckSpace(FileSystem& fs, const std::string& dir, const SpaceNeed& need) {
  if (need.bytes <= 0) return OkStatus();
  TP_ASSIGN_OR_RETURN(const int64_t free, fs.FreeBytes(dir));
  if (free >= need.bytes) return OkStatus();
  return ResourceExhausted(dir + ": the disk has " + std::to_string(free >> 20) +
                           " MiB free, the run needs about " +
                           std::to_string((need.bytes + (1 << 20) - 1) >> 20) + " MiB" +
                           (need.what.empty() ? "" : " (" + need.what + ")") +
                           "; free some (`tidepool prune` does for runs that have ended)" +
                           (need.fewer_checkpoints ? ", lower checkpoint.keep" : "") +
                           ", or name a folder on another disk with --run-dir");
}

std::string ThisProcess(std::string_view as) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  return std::string(as) + " pid " + std::to_string(::getpid()) + " on host " + host.data();
}

std::string UtcStamp(int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  struct tm utc {};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  const size_t n = std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &utc);
  return {text.data(), n};
}

std::string FolderName(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    out.push_back(plain ? c : '-');
  }
  if (out.empty() || out.front() == '.') out.insert(0, "run");
  return out.substr(0, 200);  // names have at most 255 bytes; the time comes behind
}

StatusOr<std::string> CreateRunDirectory(FileSystem& fs, const RunDirectoryOptions& options) {
  if (!options.run_dir.empty()) {
    TP_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(options.run_dir));
    if (info.exists && info.is_directory) {
      TP_ASSIGN_OR_RETURN(auto names, fs.List(options.run_dir));
      for (const char* left : {"lock", "config.yaml.tmp"})
        std::erase(names, left);  // it died before it began
      const RunPaths warm(RunPaths(options.run_dir).warm_start());
      if (!fs.Exists(warm.journal())) std::erase(names, "warm_start");  // its config is written first
      if (!names.empty()) {
        const bool run = fs.Exists(RunPaths(options.run_dir).config());
        return AlreadyExists(options.run_dir + ": this folder is not empty (it holds " + names.front() +
                             (run ? "); go on with the run in it with --resume, or name another folder"
                                  : ") and holds no run (there is no config.yaml); name another folder") +
                             " with --run-dir");
      }
    }
    TP_RETURN_IF_ERROR(WithAdvice(fs.MakeDirectories(options.run_dir)));
    TP_RETURN_IF_ERROR(CheckSpace(fs, options.run_dir, options.need));
    return options.run_dir;
  }
  TP_RETURN_IF_ERROR(WithAdvice(fs.MakeDirectories(options.root)));
  TP_RETURN_IF_ERROR(CheckSpace(fs, options.root, options.need));
  const std::string base =
      JoinPath(options.root, FolderName(options.name) + "-" + UtcStamp(options.unix_seconds));
  for (int attempt = 1; attempt <= 1000; ++attempt) {
    const std::string dir = attempt == 1 ? base : base + "-" + std::to_string(attempt);
    Status made = fs.MakeDirectory(dir);  // exclusive: of two runs started in one second each gets its own
    if (made.code() == StatusCode::kAlreadyExists) continue;
    TP_RETURN_IF_ERROR(WithAdvice(made));
    TP_RETURN_IF_ERROR(WithAdvice(fs.SyncDir(options.root)));
    return dir;
  }
  return AlreadyExists(base +
                       ": a thousand runs have this name and second; choose another name with --run-name");
}

StatusOr<RunOnDisk> ReadRunOnDisk(FileSystem& fs, const std::string& run_dir) {
  RunOnDisk state{.dir = run_dir};
  if (!fs.Exists(run_dir)) {
    return NotFound(run_dir + ": there is no such run folder; `ls runs/` shows what there is");
  }
  const std::string journal = RunPaths(run_dir).journal();
  if (!fs.Exists(journal)) return state;
  std::map<StepNumber, double> accuracy;
  std::map<int64_t, StepNumber> checkpoints;
  const auto summary = ScanJournal(fs, journal, "", Lsn{0}, [&](JournalEntry&& entry) {
    if (const auto* config = std::get_if<record::Config>(&entry.record)) state.steps = (*config)->steps;
    if (const auto* commit = std::get_if<record::StepCommit>(&entry.record)) state.last_step = commit->step;
    if (const auto* restore = std::get_if<record::Restore>(&entry.record)) {
      state.last_step = restore->step;
      std::erase_if(accuracy, [&](const auto& of_step) { return of_step.first > restore->step; });
      std::erase_if(checkpoints, [&](const auto& of_step) { return of_step.second > restore->step; });
    }
    if (const auto* eval = std::get_if<record::EvalResult>(&entry.record);
        eval != nullptr && eval->total > 0) {
      accuracy[eval->step] = static_cast<double>(eval->correct) / static_cast<double>(eval->total);
    }
    if (const auto* commit = std::get_if<record::CheckpointCommit>(&entry.record))
      checkpoints[commit->ckpt] = commit->step;
    if (const auto* reject = std::get_if<record::CheckpointReject>(&entry.record))
      checkpoints.erase(reject->ckpt);
    if (const auto* deleted = std::get_if<record::CheckpointDelete>(&entry.record)) {
      checkpoints.erase(deleted->ckpt);
      return OkStatus();  // `tidepool prune` deletes those of a run that has ended: it stays ended
    }
    // Anything else that happens after an END_RUN means that the run was resumed.
    const auto* end = std::get_if<record::EndRun>(&entry.record);
    state.end_code = end != nullptr ? std::optional<int32_t>(end->code) : std::nullopt;
    state.complete = end != nullptr && end->code == 0 && end->finished == 1;
    return OkStatus();
  });
  if (summary.status().code() == StatusCode::kNotFound) return state;  // a folder without segments
  TP_RETURN_IF_ERROR(summary.status());
  for (const auto& [step, value] : accuracy) state.accuracy = std::max(state.accuracy, value);
  state.checkpoints = static_cast<int64_t>(checkpoints.size());
  for (const auto& [ckpt, step] : checkpoints) state.checkpoint_step = std::max(state.checkpoint_step, step);
  state.run_id = summary->run_id;
  state.records = summary->next.value;
  state.has_journal = state.records > 0;
  return state;
}

StatusOr<std::unique_ptr<FileLock>> LockRun(FileSystem& fs, const std::string& run_dir, std::string_view as) {
  return fs.Lock(RunPaths(run_dir).lock(), ThisProcess(as));
}

RunHolder HolderOf(const std::string& run_dir) {
  const auto words = RealFileSystem::LockedBy(RunPaths(run_dir).lock());
  if (!words) return {};
  RunHolder holder{.as = words->substr(0, words->find(' '))};
  if (holder.as.empty()) holder.as = kController;  // it has not written its words yet
  constexpr std::string_view kPid = " pid ";
  if (const size_t pid = words->find(kPid); pid != std::string::npos)
    holder.pid = std::atoll(words->c_str() + pid + kPid.size());
  return holder;
}

}  // namespace tidepool::storage
