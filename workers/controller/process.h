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
#include "core/base/time.h"
#include "scheduler/controller.h"

namespace tidepool::workers {

// What the display shows; handed out a few times a second.
struct RunProgress {
  scheduler::ControllerView view;
  int64_t steps = 0;                                // of the job
  std::optional<double> reward, best_reward;        // mean of the last step
  std::optional<double> loss;                       // sft
  std::optional<double> accuracy_before, accuracy;  // held out, 0..1
  std::optional<double> response_tokens;            // mean of the last step
  std::optional<double> tokens_per_s;               // generated
  std::optional<double> lag_mean;                   // versions
  std::optional<int64_t> lag_max;
  Duration elapsed{0};
  std::optional<Duration> left;
  std::string last_warning;
};

struct RunRequest {
  JobConfig config;
  std::string config_yaml;  // resolved, as the workers get it
  std::string config_digest;
  std::string run_dir;  // exists; holds or will hold the journal
  std::string run_id;
  std::string model_dir;    // Hugging Face folder of the start
  std::string self_path;    // program for reward workers (this one)
  std::string worker_path;  // program for device workers
  std::function<void(const RunProgress&)> on_progress;
  std::function<void(const std::string&)> say;     // a line for people
  const std::atomic<int>* stop_signals = nullptr;  // counts SIGINT / SIGTERM; 1: checkpoint and stop, 2: now
};

struct RunResult {
  int exit_code = 0;  // 0, 1 or 3
  std::string why;    // last line for people when it is not 0
  double accuracy_before = -1;
  double accuracy_after = -1;
  int64_t steps = 0;
  bool stopped = false;     // by a signal, before the job was done
  bool complete = false;    // the job is done: all steps, the last evaluation and final/
  bool disk_hangs = false;  // the run directory does not answer: leave it alone
  std::string paced;        // a paced run: whose times it has, and whether they count
};

// Does the job, or the rest of it where the run directory has a journal. An error status: nothing was
// started (exit code 2); else the result says how it ended.
StatusOr<RunResult> RunController(const RunRequest& request);

}  // namespace tidepool::workers
