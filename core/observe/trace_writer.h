#pragma once
// Trace files for Perfetto (ui.perfetto.dev) and chrome://tracing: who did what when.
//
// The format is Chrome's trace-event JSON, gzipped, one file a worker: pid is the worker, tid is the
// role, spans are complete ("X") events in microseconds. The file is complete at every moment, also
// after kill -9: it is one gzip member whose end ("]}" and the checksum) is written again after each
// flush, over the end before it, with what came since.
//
// Times are given in the process's own clock; `clock_offset` moves them to the run's, so that
// the files of all workers lie on one time line. Thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/base/time.h"

namespace tidepool::observe {

// Categories of spans; the report gives each a colour.
inline constexpr std::string_view kRolloutSpan = "rollout";          // generation
inline constexpr std::string_view kRewardSpan = "reward";            // grading
inline constexpr std::string_view kEnvironmentSpan = "environment";  // a turn of a game
inline constexpr std::string_view kTrainSpan = "train";              // recomputation, backward, optimizer
inline constexpr std::string_view kWeightsSpan = "weights";          // publish, load
inline constexpr std::string_view kCheckpointSpan = "checkpoint";
inline constexpr std::string_view kSystemSpan = "system";  // start-up, transitions, waiting

using TraceValue = std::variant<int64_t, double, std::string>;
using TraceArgs = std::vector<std::pair<std::string, TraceValue>>;

struct TraceSpan {
  std::string name;      // "generate", "update_actor"
  std::string category;  // one of those above
  int role = 0;          // tid; named by NameRole
  TimePoint start;
  Duration duration{0};
  TraceArgs args;  // "step", "tid", "tokens" ...
};

struct TraceOptions {
  int64_t worker = 0;        // pid; the controller is 0, workers count from 1
  std::string worker_name;   // "worker 1"
  Duration clock_offset{0};  // run time = process time + this
};

// Thread-safe. A thread of its own writes once a second: a disk that is slow, or hangs, holds nobody up.
class TraceWriter {
 public:
  // A file that is there is replaced (a new life of the worker gives another name).
  static StatusOr<std::unique_ptr<TraceWriter>> Create(const std::string& path, const TraceOptions& options);
  ~TraceWriter();  // flushes

  void NameRole(int role, std::string_view name);
  void Add(const TraceSpan& span);
  // Waits until what was gathered is written, two seconds at most (kDeadlineExceeded). An error is returned
  // once and later spans are dropped: a trace must not end a run.
  Status Flush();

 private:
  class File;
  explicit TraceWriter(std::shared_ptr<File> file);
  std::shared_ptr<File> file_;  // also its thread's, which a disk that hangs may keep
};

}  // namespace tidepool::observe
