#pragma once
// `tidepool status`: what a run does now, or how it ended, from the files of its directory alone.

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/status.h"

namespace tidepool::workers {

// This program as it was started ("build/bin/tidepool"), so that a line that is told can be typed.
std::string ProgramAsTyped();
// `text` as one word of a shell, quoted where it must be.
std::string ShellWord(const std::string& text);
// Whether a controller is at work: control.json is there, which goes when one ends in order, and the journal
// is locked, which ends with any process. So a number of a process that is used again, or a copy of a live
// run, says nothing. False also in the moments before a controller listens.
bool HasController(const std::string& run_dir);
// What to type to go on with a run.
std::string ResumeHint(const std::string& run_dir);
// Keys of the answer (`status --json`):
//   run, state, name, job
//   state      new (no record yet) | warm_start | running | stopped (by a signal, resumable) | finished |
//              failed | dead (the controller is gone without a last word, resumable)
//   controller {pid, alive}; absent where none was started
//   journal    {records, last_step, steps, end_code}; not read while the run is alive
//   live       RUN/status.json as the controller wrote it, with `age_s`; only while it is alive or dead
//   workers    of `live`, each with its name and `alive`
//   summary    RUN/summary.json; only when it ended. Where the disk had no room for it: exit, why, steps and
//              policy_version as status.json has them
//   best       what best/ holds (workers/data/best_model.h); absent without checkpoint.keep_best
//   warm_start the same object about RUN/warm_start, if there is one
// kNotFound: no such folder. kDataLoss and kFailedPrecondition: its journal cannot be read.
StatusOr<nlohmann::ordered_json> RunStatus(const std::string& run_dir);

// For people, several lines.
std::string DescribeStatus(const nlohmann::ordered_json& status);

}  // namespace tidepool::workers
