#pragma once
// metrics.jsonl: one JSON object a step, in the order in which steps are taken.
//
//   {"step":3,"version":3,"lineage":0,"wall_s":12.5,"metrics":{"critic/score/mean":0.5, ...}}
//
// Names are those of docs/metrics.md. A number that is not finite is written as null. After a
// resume a step may appear twice, and an evaluation after a step is a line of its own.

#include <cstdint>
#include <map>
#include <string>
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

// Rows of a metrics.jsonl by step; later lines of a step add metrics to it and win where both have one. Half
// a line at the end is skipped. kDataLoss names the line that is no row.
StatusOr<std::vector<MetricsRow>> ReadMetrics(const std::string& path);

}  // namespace tidepool::observe
