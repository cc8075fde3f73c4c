#pragma once
// `tidepool status`: what a run does now, or how it ended, from the files of its directory alone.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

// This program as it was started ("build/bin/tidepool"), so that a line that is told can be typed.
std::string ProgramAsTyped();
// `text` as one word of a shell, quoted where it must be.
std::string ShellWord(const std::string& text);
// As the run keeps it; nullopt where it cannot be read: none there, or of another version of the program.
std::optional<JobConfig> ConfigOf(const std::string& run_dir);
// "reward-0" (core/base/places.h); "place-2" where the config cannot be read.
std::string NameOfPlace(int64_t place, const std::optional<JobConfig>& config);
// Whether a controller is at work: control.json is there, which goes when one ends in order, and the journal
// is locked, which ends with any process. So a number of a process that is used again, or a copy of a live
// run, says nothing. False also in the moments before a controller listens.
bool HasController(const std::string& run_dir);
// What to type to go on with a run.
std::string ResumeHint(const std::string& run_dir);
// What to type to start over in `run_dir`.
std::string StartOverHint(const std::string& config, const std::string& run_dir,
                          const std::vector<std::string>& overrides);

// A live controller that has not said for so long what it does is told apart: it says so four times a second.
inline constexpr double kSilent_s = 3;

// Where a run stands: the one place that derives it.
struct RunState {
  // new (no record yet) | warm_start | running | stopped (by a signal, resumable) | finished | failed | dead
  // (the controller is gone without a last word, resumable) | unreadable (so is its journal)
  std::string state = "new";
  std::string why;              // it ended, or cannot be read; while it runs, its last warning
  int64_t step = 0, steps = 0;  // done; wanted, 0: not known
  int64_t pid = 0;              // of the controller that was here last; 0: not known
  bool alive = false;
  double silent_s = 0;  // since a live controller has said what it does
  bool paused = false;  // it was (SIGSTOP)
  bool begins = false;  // not alive, and a controller holds it that has said nothing yet
  bool pruned = false;  // not alive, and `tidepool prune` holds it
  // What it said last (status.json, summary.json), as it stands there; null: nothing.
  nlohmann::ordered_json live, summary;
  std::optional<storage::RunOnDisk> journal;  // where it was read
  std::string journal_error;
};
// The journal of a long run takes a while to read.
enum class ReadJournal : uint8_t {
  kNever,  // without it an ended run that did not say how is "dead"
  kWhereNothingElseTells,
  kAlways  // of a run that is not alive
};
// A run says in summary.json how it ended, in status.json where its disk had no room for that, and in
// last_words where a call of a plug-in ended its controller; this is believed, and the journal is
// read as `journal` says.
RunState StateOf(const std::string& run_dir, ReadJournal journal = ReadJournal::kWhereNothingElseTells);

// Keys of the answer (`status --json`):
//   run, state, name, job
//   state      as above
//   controller {pid, alive, silent_s, paused, silent: the sentence about it}; absent where none was started
//   begins     true: a controller holds it that has said nothing yet, so that the state is the one before;
//              else absent
//   pruned     true: `tidepool prune` is at work on it; else absent
//   resume_step where a resume begins: the step of the newest checkpoint; only of a run that can go on
//   journal    {records, last_step, steps, end_code}, or {error}; not read while the run is alive
//   live       RUN/status.json as the controller wrote it, with `age_s`; only while it is alive or dead
//   workers    of `live`, each with its name and `alive`
//   restarting of `live`, each with its name
//   summary    RUN/summary.json; only when it ended. Where it could not be written: exit, why, steps and
//              policy_version as status.json and last_words have them
//   best       what best/ holds (workers/data/best_model.h); absent without checkpoint.keep_best
//   warm_start the same object about RUN/warm_start, if there is one
nlohmann::ordered_json RunStatus(const std::string& run_dir, ReadJournal journal = ReadJournal::kAlways);

// Whether a controller works on the run, or on its warm start, and has said within 30 s what it does; or the
// run is finished.
bool IsHealthy(const nlohmann::ordered_json& status);

// The same of a run that is at work, as its controller shows it on /status (workers/net/watch_pages.h).
// address: "10.0.0.7:9100", also with http:// or https:// before it; token_file: RUN/security/operator.token
// or a copy, with the certificates beside it where the run's calls are encrypted. kUnavailable: nobody
// answers; kPermissionDenied: the token is not this run's.
StatusOr<nlohmann::ordered_json> StatusFrom(const std::string& address, const std::string& token_file);

// Asked again and again. `run`: as FindRunDirectory has it or, with a token file, an address. With
// kWhereNothingElseTells the journal is read again only when something else has changed.
using StatusSource = std::function<StatusOr<nlohmann::ordered_json>()>;
StatusOr<StatusSource> SourceOf(const std::string& run, const std::string& token_file, ReadJournal journal);

// For people, several lines, without control characters.
std::string DescribeStatus(const nlohmann::ordered_json& status);

}  // namespace tidepool::workers
