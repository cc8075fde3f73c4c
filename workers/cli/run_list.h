#pragma once
// The runs of a folder in one line each, for `tidepool runs` and the dashboard.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/status.h"

namespace tidepool::workers {

// A metric over the run. Of a loss the smallest value is the best one, of everything else the largest.
struct RunFigure {
  std::string metric;  // a name of docs/metrics.md
  double first = 0, best = 0, last = 0;
  std::optional<int64_t> step = std::nullopt;  // of the last one
};

struct RunBrief {
  std::string run, dir;  // the folder's name; its path
  std::string state;     // as `tidepool status` says it (workers/cli/run_status.h)
  std::string name, job;
  std::string task;                  // the task, the environment, or the file of the data
  int64_t step = 0, steps = 0;       // done; wanted, 0: not known
  std::optional<RunFigure> learned;  // reward, or loss
  std::optional<RunFigure> held_out;
  std::string started;    // UTC, "20261121T115502Z"; may be empty
  double age_s = -1;      // since then; -1: not known
  int64_t bytes = 0;      // on the disk, a file with several names once
  std::string last_line;  // why it ended, or the last warning while it runs
  double silent_s = 0;    // since its live controller has said what it does
};

TP_FIELDS(RunFigure, metric, first, best, last, step)
TP_FIELDS(RunBrief, run, dir, state, name, job, task, step, steps, learned, held_out, started, age_s, bytes,
          last_line, silent_s)

// kNotFound: no such folder. `started` and `age_s` are the list's to say.
StatusOr<RunBrief> BriefOf(const std::string& run_dir);
// Newest first. kNotFound: no folder `root`.
StatusOr<std::vector<RunBrief>> ListRuns(const std::string& root);

// "reward": what a metric is called where there is room for one word.
std::string ShortName(const std::string& metric);

}  // namespace tidepool::workers
