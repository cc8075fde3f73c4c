#pragma once
// The controller process: a loop around the pure controller of scheduler/. What happens on the wire, on
// disk and to child processes becomes events; the commands that come back are made durable first and
// carried out after. Every decision is the scheduler's; nothing here chooses.
//
// Runs on the thread that calls RunController (it also starts the worker processes); gRPC's threads and those
// that write to disk only put things into its mailbox.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/observe/run_files.h"
#include "scheduler/controller.h"

namespace tidepool::workers {

// What a handler of SIGINT, SIGTERM and SIGHUP notes. The first: checkpoint and stop; the second: now.
struct StopSignals {
  std::atomic<int> count{0}, last{0};
};

struct RunRequest {
  JobConfig config;
  std::string config_yaml;  // resolved, as the workers get it
  std::string config_digest;
  std::string run_dir;  // exists; holds or will hold the journal
  std::string run_id;
  std::string model_dir;     // Hugging Face folder of the start
  std::string base_digest;   // down::Welcome's
  std::string self_path;     // program for reward workers (this one)
  std::string certificates;  // JobRequest::certificates
  std::string worker_path;   // program for device workers
  std::string pool;  // folder of the processes that compute for its device workers; empty: they do themselves
  bool take_over = false;                                       // JobRequest
  std::function<void(const observe::StatusFile&)> on_progress;  // a few times a second
  std::function<void(const std::string&)> say;                  // a line for people
  std::function<Status()> accepted;  // nothing is refused any more; an error is still one of the start
  const StopSignals* stop_signals = nullptr;
};

constexpr int kTakenOver = 4;  // exit code: another controller has this run

// How it ended, as its summary.json says it. exit: 0, 1, 3 or kTakenOver; finished: the job is done, with all
// steps, the last evaluation and final/; stopped: by a signal, before that.
struct RunResult : observe::SummaryFile {
  bool disk_hangs = false;              // the run directory does not answer, or is gone: leave it alone
  std::optional<std::string> moved_to;  // where somebody has moved it; empty: it was removed
};

// Does the job, or the rest of it where the run directory has a journal. An error status: nothing was
// started (exit code 2); else the result says how it ended.
StatusOr<RunResult> RunController(const RunRequest& request);

}  // namespace tidepool::workers
