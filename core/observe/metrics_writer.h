#pragma once
// metrics.jsonl: one JSON object a step, in the order in which steps are taken.
//
//   {"step":3,"version":3,"lineage":0,"wall_s":12.5,"metrics":{"critic/score/mean":0.5, ...}}
//
// Names are those of docs/metrics.md. A number that is not finite is written as null. After a
// resume a step may appear twice, and an evaluation after a step is a line of its own.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/observe/append_file.h"

namespace tidepool::observe {

struct MetricsRow {
  int64_t step = 0;  // 0: before the first step
  Version version;
  double wall_s = 0;  // since the start of the run, earlier lives of the controller included
  std::map<std::string, double> metrics;
};

class MetricsWriter {
 public:
  static StatusOr<MetricsWriter> Create(const std::string& path);
  Status Write(const MetricsRow& row);

 private:
  explicit MetricsWriter(AppendFile file) : file_(std::move(file)) {}
  AppendFile file_;
};

// Calls `take` with the rows in the order of the file. Half a line at the end is skipped. kNotFound;
// kDataLoss names the line that is no row.
Status ForEachMetricsRow(const std::string& path, const std::function<void(const MetricsRow&)>& take);

// Values of one metric by step, gaps and values that are not finite left out.
using Points = std::vector<std::pair<double, double>>;

// The rows of a file by metric. Rows themselves would have every name at every step.
struct MetricsColumns {
  std::map<std::string, Points> metrics;
  Points clock;  // wall_s
  // Rows of a step add to each other, and a later one wins where both have a metric.
  void Take(const MetricsRow& row);
};

}  // namespace tidepool::observe
