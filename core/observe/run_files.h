#pragma once
// RUN/status.json and RUN/summary.json: what a run says of itself, while it goes on and when it has ended.
// The controller writes them; `tidepool status`, the report and the terminal show them. Fields are the keys.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/observe/held_out.h"

namespace tidepool::observe {

struct WorkerFacts {
  int64_t place = -1, inc = -1;
  std::string name = {};  // "device-0", as its log
  int64_t pid = 0;        // 0: it was started by hand, perhaps on another machine
  int64_t peak_bytes = 0;
  std::string host = {};             // name of its host
  std::string roles = {};            // that its slots hold now, "rollout"
  std::string doing = {};            // the operation that it is at, as it said last
  int64_t running = 0, waiting = 0;  // requests in its engine
  double kv_usage = 0;               // of its engine
  std::string pages = {};            // address of its pages; empty: it shows none
};

// A place whose process died, and where it is started again.
struct RestartFacts {
  int64_t place = -1;
  double in_s = 0;     // until it is started; 0: it is starting
  int64_t deaths = 0;  // of the last ten minutes
  std::string why;     // of the last one
  std::string name;    // "device-0", as its log
};

// A picture of now. What the job does not have, or not yet, is empty.
struct StatusFile {
  std::string name;  // of the job
  std::string
      state;  // running, or how it ended: finished, stopped (by a signal) or failed, with exit and why
  std::string phase;
  int64_t step = 0, steps = 0;
  std::string version;
  int64_t open_groups = 0, running = 0, awaiting = 0, queued = 0, leased = 0;  // groups
  int64_t in_flight = 0;                                                       // chunks
  int64_t restarts = 0, refused = 0;
  std::vector<WorkerFacts> workers;
  std::vector<RestartFacts> restarting;
  int64_t pid = 0;  // of the controller
  std::string last_warning;
  std::string call_held;  // a call of a plug-in that the controller waits for; empty: none, or not for long
  std::string waits_for;  // what gradings wait for, "judge at unix:/x: Connection refused"; empty: nothing
  double elapsed_s = 0;   // of this life: since the start, or the last resume
  std::optional<double> left_s;  // at the pace of the last steps
  // Since the last step ended, where the steps before took far less: then there is no speed and no time left.
  std::optional<double> still_s;
  std::optional<std::string> paced;           // whose times the slots take
  std::optional<double> reward, best_reward;  // mean of the last step
  std::optional<double> equal_groups;         // share of groups whose rewards are all equal, of the last step
  std::optional<double> loss;                 // supervised
  std::optional<double> ranked_right, margin;  // of pairs: share, and chosen less rejected; last step
  std::optional<HeldOut> held_out;
  std::optional<double> response_tokens;  // mean of the last step
  std::optional<double> tokens_per_s;     // of the last step, as metrics.jsonl has it; in the end of all
  std::string speed_of =
      "tok/s";  // what that counts: "tok/s generated", "steps/s generated", "tok/s trained"
  std::optional<double> lag_mean;  // versions
  std::optional<int64_t> lag_max;
  std::optional<int64_t> exit;  // once it has ended
  std::optional<std::string> why;
};

struct PaceFacts {
  std::string pace;
  double scale = 1;
  int64_t steps = 0, missed = 0;
  bool valid = true;
  double scale_needed = 0;
};
struct SummaryFile {
  int64_t exit = 0;
  std::string why;
  int64_t steps = 0;                       // done
  int64_t steps_wanted = 0;                // of the config
  std::optional<int64_t> checkpoint_step;  // of the newest checkpoint: where a resume begins
  std::string job, name;
  bool stopped = false, finished = false;
  std::map<std::string, double> accuracy;  // "before", and "after": of the weights that the run ended with
  std::optional<HeldOut> held_out;
  std::map<std::string, double> seconds;      // by phase, and "total"
  std::map<std::string, int64_t> peak_bytes;  // by process
  std::map<std::string, int64_t> drops;       // by reason
  int64_t issued = 0;                         // samples that were begun, those in `drops` among them
  // Reasons of `drops` that are faults (kLosses): what the log says of the newest; empty: an earlier life of
  // the controller saw it.
  std::map<std::string, std::string> lost;
  std::string version, commit;  // of the program
  std::string run_id, policy_version;
  std::string
      data_identity;  // of the rows trained on and held out, as in checkpoints; empty: not written then
  std::optional<PaceFacts> paced;
  std::optional<std::string> paced_note;
};

// Reasons for which a sample is lost that could have been trained on; the others are the scheduler's choice.
inline constexpr const char* kLosses[] = {"data_invalid", "reward_infra", "env_infra", "poison"};
// A line each: "16 of 64 samples lost (data_invalid), the last: sample 5.0.3 is dropped, ...".
inline std::vector<std::string> LossLines(const SummaryFile& s) {
  std::vector<std::string> lines;
  for (const auto& [reason, last] : s.lost) {
    const auto count = s.drops.find(reason);
    if (count == s.drops.end()) continue;
    lines.push_back(std::to_string(count->second) + " of " + std::to_string(s.issued) + " samples lost (" +
                    reason + ")" + (last.empty() ? "; logs/controller.log says why" : ", the last: " + last));
  }
  return lines;
}

TP_FIELDS(WorkerFacts, place, inc, name, pid, peak_bytes, host, roles, doing, running, waiting, kv_usage,
          pages)
TP_FIELDS(RestartFacts, place, in_s, deaths, why, name)
TP_FIELDS(StatusFile, name, state, phase, step, steps, version, open_groups, running, awaiting, queued,
          leased, in_flight, restarts, refused, workers, restarting, pid, last_warning, call_held, waits_for,
          elapsed_s, left_s, still_s, paced, reward, best_reward, equal_groups, loss, ranked_right, margin,
          held_out, response_tokens, tokens_per_s, speed_of, lag_mean, lag_max, exit, why)
TP_FIELDS(PaceFacts, pace, scale, steps, missed, valid, scale_needed)
TP_FIELDS(SummaryFile, exit, why, steps, steps_wanted, checkpoint_step, job, name, stopped, finished,
          accuracy, held_out, seconds, peak_bytes, drops, issued, lost, version, commit, run_id,
          data_identity, policy_version, paced, paced_note)

}  // namespace tidepool::observe
