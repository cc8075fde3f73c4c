#pragma once
// The curves of a run that goes on: follows its metrics.jsonl, reads only what was added, and keeps of each
// metric a bounded number of points, so that a page can ask for what is new every second whatever the length
// of the run. Not thread-safe.
//
// A metric is exact up to kPointsMax points. Then neighbours become their mean (the clock: the later one),
// two points one, again and again. A step that comes again, because the run went back, replaces what was
// there from that step on; of a curve that was coarsened the point that holds the step stays, as far as it
// reaches before it.

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/observe/run_data.h"

namespace tidepool::observe {

class LiveCurves {
 public:
  static constexpr size_t kPointsMax = 400;
  static constexpr size_t kMetricsMax =
      2000;  // more names than that are no metrics; further ones are left out

  explicit LiveCurves(std::string metrics_path) : path_(std::move(metrics_path)) {}

  // Takes in whole lines that were added, up to `bytes_max` of them; true: there are more. A file that became
  // shorter or another one is read anew. A line that is no row is skipped and counted. kNotFound: no file
  // yet.
  StatusOr<bool> Read(int64_t bytes_max = 16 << 20);

  // {cursor, whole, rows, bad, clock: {from, x, y}, metrics: {name: {from, x, y, max}}}: points from index
  // `from` on are these now, and none is behind them. whole: of everything, so what the asker had goes. A
  // cursor of an answer before gives what has changed since; any other text gives everything.
  [[nodiscard]] nlohmann::json Since(const std::string& cursor) const;
  // Of all values so far, those that a run took back among them.
  [[nodiscard]] std::map<std::string, MetricSpan> Spans() const;

 private:
  struct Point {
    int64_t first = 0, last = 0;  // steps
    double sum = 0;
    int64_t count = 0;
    int64_t changed = 0;  // by which row
  };
  struct Curve {
    std::vector<Point> points;
    int64_t width = 1;  // values of a point
    bool moments = false;
    MetricSpan span;
    int64_t changed = 0;  // when points were last taken away or put together
    void Add(int64_t step, double value, int64_t row);
  };
  void TakeLine(const std::string& line);
  static nlohmann::json Points(const Curve& curve, int64_t since);

  std::string path_;
  int64_t generation_ = 0, offset_ = 0, rows_ = 0, bad_ = 0;
  uint64_t inode_ = 0;
  Curve clock_{.points = {}, .width = 1, .moments = true, .span = {}};
  std::map<std::string, Curve> curves_;
};

}  // namespace tidepool::observe
