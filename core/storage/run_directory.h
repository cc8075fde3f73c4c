#pragma once
// Where a run lives: runs/<name>-<utc time>/ or a folder that the user names. A second run of a name
// never overwrites the first. Functions are thread-safe.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/status.h"

namespace tidepool::storage {

// Paths inside a run folder (docs/run_directory.md): where they are made, they are made with these.
struct RunPaths {
  explicit RunPaths(std::string run_dir) : dir(std::move(run_dir)) {}
  std::string dir;
  [[nodiscard]] std::string config() const { return JoinPath(dir, "config.yaml"); }
  [[nodiscard]] std::string journal() const { return JoinPath(dir, "journal"); }
  [[nodiscard]] std::string payload() const { return JoinPath(dir, "payload"); }
  [[nodiscard]] std::string tokens() const { return JoinPath(dir, "tokens"); }
  [[nodiscard]] std::string metrics() const { return JoinPath(dir, "metrics.jsonl"); }
  [[nodiscard]] std::string tensorboard() const { return JoinPath(dir, "tb"); }
  [[nodiscard]] std::string samples() const { return JoinPath(dir, "samples"); }
  [[nodiscard]] std::string logs() const { return JoinPath(dir, "logs"); }
  [[nodiscard]] std::string trace() const { return JoinPath(dir, "trace"); }
  [[nodiscard]] std::string security() const { return JoinPath(dir, "security"); }
  [[nodiscard]] std::string endpoint() const { return JoinPath(dir, "endpoint.json"); }
  [[nodiscard]] std::string control() const { return JoinPath(dir, "control.json"); }
  [[nodiscard]] std::string last_words() const { return JoinPath(dir, "last_words"); }
  [[nodiscard]] std::string status() const { return JoinPath(dir, "status.json"); }
  [[nodiscard]] std::string prometheus_targets() const { return JoinPath(dir, "prometheus_targets.json"); }
  [[nodiscard]] std::string model() const { return JoinPath(dir, "model"); }
  [[nodiscard]] std::string base() const { return JoinPath(dir, "base.json"); }
  [[nodiscard]] std::string final_model() const { return JoinPath(dir, "final"); }
  [[nodiscard]] std::string best_model() const { return JoinPath(dir, "best"); }
  [[nodiscard]] std::string checkpoints() const { return JoinPath(dir, "checkpoints"); }
  [[nodiscard]] std::string offload() const { return JoinPath(dir, "offload"); }
  [[nodiscard]] std::string report() const { return JoinPath(dir, "report.html"); }
  [[nodiscard]] std::string summary() const { return JoinPath(dir, "summary.json"); }
  [[nodiscard]] std::string warm_start() const { return JoinPath(dir, "warm_start"); }
  [[nodiscard]] std::string lock() const { return JoinPath(dir, "lock"); }
};

// What a run will take at its fullest.
struct SpaceNeed {
  int64_t bytes = 0;
  std::string what;                // "3 checkpoints of 1.5 GiB, ..."; may be empty
  bool fewer_checkpoints = false;  // checkpoint.keep could be lower
};

struct RunDirectoryOptions {
  std::string root = "runs";  // parent of folders that are named here
  std::string name;  // of the config, or --run-name; characters other than letters, digits, . _ - become '-'
  std::string run_dir;       // --run-dir: exactly this folder; empty: root/<name>-<utc time>
  int64_t unix_seconds = 0;  // now
  SpaceNeed need;            // refuse when the disk has less than this free
};

// "20261121T115502Z".
std::string UtcStamp(int64_t unix_seconds);
// `name` as a folder name: "a b/c" -> "a-b-c"; never empty, never beginning with '.'.
std::string FolderName(const std::string& name);

// Makes the folder of a new run and returns its path. A name that is taken gets -2, -3 ... behind the time.
//
//   kAlreadyExists: run_dir holds something. An empty folder is taken, and one whose run died before it
//   began.
//
//   kResourceExhausted: the disk is full, or less than `need` is free.
//
//   kPermissionDenied, kFailedPrecondition: as the file system says (read-only, a file in the way).
StatusOr<std::string> CreateRunDirectory(FileSystem& fs, const RunDirectoryOptions& options);

// kResourceExhausted: `dir`'s disk has less than that free.
Status CheckSpace(FileSystem& fs, const std::string& dir, const SpaceNeed& need);

// What a run folder says about its run, from the journal alone.
struct RunOnDisk {
  std::string dir;
  std::string run_id;
  bool has_journal = false;  // false: it died before its first record
  int64_t records = 0;
  StepNumber last_step;             // last committed one, after restores; -1: none
  int64_t steps = 0;                // wanted, by the last CONFIG record
  std::optional<int32_t> end_code;  // of END_RUN, if it is the last word
  // That END_RUN says that steps, last evaluation and final/ are done. The END_RUN of a stopped run does not.
  bool complete = false;
  double accuracy = 0;         // the best of its evaluations
  int64_t checkpoints = 0;     // committed, neither rejected nor deleted
  StepNumber checkpoint_step;  // of the newest of them: where a resume begins; -1: none
  // Its last checkpoint was deleted (`tidepool prune --final-only`): there is nothing to go on from.
  [[nodiscard]] bool OnlyFinal() const { return complete && checkpoints == 0; }
  // Nothing is left to do for a config that wants so many steps, or this accuracy (0: none): it may want more
  // than the run did.
  [[nodiscard]] bool Finished(int64_t steps_wanted, double accuracy_wanted) const {
    return complete &&
           (last_step.value >= steps_wanted || (accuracy_wanted > 0 && accuracy >= accuracy_wanted));
  }
};
// kNotFound: no such folder; kDataLoss and kFailedPrecondition as ScanJournal.
StatusOr<RunOnDisk> ReadRunOnDisk(FileSystem& fs, const std::string& run_dir);

inline constexpr std::string_view kController = "controller";
// Taken before anything in the folder changes, held as long as the run is worked on. kFailedPrecondition
// names the pid that has it. as: what this process is to the run.
StatusOr<std::unique_ptr<FileLock>> LockRun(FileSystem& fs, const std::string& run_dir,
                                            std::string_view as = kController);
// "controller pid 123 on host a": what a lock file says about this process.
std::string ThisProcess(std::string_view as = kController);
// Who works on a run, by its lock; `as` empty: nobody.
struct RunHolder {
  std::string as;
  int64_t pid = 0;  // 0: not known
};
RunHolder HolderOf(const std::string& run_dir);

}  // namespace tidepool::storage
