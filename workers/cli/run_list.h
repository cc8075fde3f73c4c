#pragma once
// The runs of a folder in one line each, for `tidepool runs` and the dashboard.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
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
  std::string started;                    // UTC, "20261121T115502Z"; may be empty
  double age_s = -1;                      // since then; -1: not known
  int64_t bytes = 0;                      // on the disk, a file with several names once
  std::string last_line;                  // why it ended, or the last warning while it runs
  bool begins = false;                    // a controller begins to go on with it
  double silent_s = 0;                    // since its live controller has said what it does
  nlohmann::ordered_json live = nullptr;  // RunState::live; of no list
};

TP_FIELDS(RunFigure, metric, first, best, last, step)
TP_FIELDS(RunBrief, run, dir, state, name, job, task, step, steps, learned, held_out, started, age_s, bytes,
          last_line, begins, silent_s)

// Figures of the first of several metrics that has a value. Metrics of a long run are hundreds of megabytes,
// and a list of runs wants two of hundreds of names: the lines are searched for them, not parsed. Names stand
// in quotes and nothing else of a line is a string, so they are found where they are and nowhere else.
class FigureSearch {
 public:
  FigureSearch(std::initializer_list<const char*> names);
  void Look(const std::string& lines);  // those that follow the ones before
  [[nodiscard]] std::optional<RunFigure> Found() const;

 private:
  std::vector<RunFigure> figures_;
  size_t found_ = SIZE_MAX;
};

// Looks at a run again and again, and reads only those of its metrics that were added. Not thread-safe.
class BriefReader {
 public:
  explicit BriefReader(std::string run_dir);
  StatusOr<RunBrief> Read();  // as BriefOf

 private:
  Status ReadMetrics(const std::string& path);
  int64_t DiskBytes(bool goes_on);
  std::string run_dir_;
  FigureSearch learned_, held_out_;
  uint64_t inode_ = 0;  // of the metrics
  int64_t read_ = 0;    // bytes of them
  int64_t bytes_ = 0;
  std::optional<std::chrono::steady_clock::time_point> counted_;  // when bytes_ was
};

// kNotFound: no such folder. `started` and `age_s` are the list's to say.
StatusOr<RunBrief> BriefOf(const std::string& run_dir);
// Newest first. kNotFound: no folder `root`.
StatusOr<std::vector<RunBrief>> ListRuns(const std::string& root);

// "reward": what a metric is called where there is room for one word.
std::string ShortName(const std::string& metric);

}  // namespace tidepool::workers
