#pragma once
// What a run directory tells, read for the report: whatever is missing or half written is left out
// and named, because a report of a run that failed is the one that is needed most.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/observe/metrics_writer.h"
#include "core/observe/pool_history.h"
#include "core/observe/run_files.h"
#include "core/observe/samples_writer.h"
#include "core/observe/trace_reader.h"

namespace tidepool::observe {

// What a metric was over a run.
struct MetricSpan {
  double first = 0, last = 0, least = 0, most = 0;
  void Add(double value, bool begins) {
    if (begins) first = least = most = value;
    last = value;
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
};

struct RunData {
  std::string folder;       // last part of the run directory
  std::string config_yaml;  // empty: not there
  MetricsColumns metrics;
  ReadTrace trace;
  PoolHistory pool;
  std::vector<std::pair<int64_t, std::vector<SampleRow>>>
      samples;        // of a few steps, first and last among them
  std::string state;  // of EndOf: "finished", "stopped", "failed"; empty: it says nothing
  SummaryFile summary;
  std::map<std::string, std::string> facts;  // of EndOf and the config: name, job, version, commit, steps ...
  std::vector<std::string> problems;         // what could not be read

  [[nodiscard]] std::map<std::string, MetricSpan> Spans() const;
  // Sum over all steps of metrics that begin with the prefix, by the rest of the name.
  [[nodiscard]] std::map<std::string, double> Sums(const std::string& prefix) const;
};

// A JSON object in a file; null if it is not there, or half written.
nlohmann::ordered_json ReadObject(const std::string& path);

// What a run that nobody works on said of its end: summary.json as it stands there. Where that could not be
// written, exit, why, steps, policy_version, finished and stopped: of last_words where a call of a plug-in
// ended its controller, of status.json where the disk had no room. Null: it said nothing.
nlohmann::ordered_json EndOf(const std::string& run_dir);

// What is read: config and end; also the metrics; also traces, journal and samples.
enum class RunParts { kFacts, kCurves, kAll };
// kNotFound: no such folder, or nothing of a run in it.
StatusOr<RunData> ReadRun(const std::string& run_dir, RunParts parts = RunParts::kAll);

}  // namespace tidepool::observe
