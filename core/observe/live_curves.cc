#include "core/observe/live_curves.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

constexpr int64_t kLineMax = 1 << 20;  // a longer line is none of ours

class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

double SixDigits(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return std::strtod(text, nullptr);
}

}  // namespace

void LiveCurves::Curve::Add(int64_t step, double value, int64_t row) {
  span.Add(value, points.empty() && changed == 0);
  // The run went back, or a later line of the same step says it again.
  while (!points.empty() && points.back().first >= step) points.pop_back(), changed = row;
  if (!points.empty() && points.back().last >= step) {
    points.back().last = step - 1;
    points.back().changed = changed = row;
  }
  if (!points.empty() && points.back().count < width) {
    Point& p = points.back();
    p.last = step;
    p.sum = moments ? value * static_cast<double>(p.count + 1) : p.sum + value;
    ++p.count;
    p.changed = row;
    return;
  }
  points.push_back({step, step, value, 1, row});
  if (points.size() <= kPointsMax) return;
  for (size_t i = 0; 2 * i < points.size(); ++i) {
    Point p = points[2 * i];
    if (2 * i + 1 < points.size()) {
      const Point& next = points[2 * i + 1];
      p.last = next.last;
      p.count += next.count;
      p.sum = moments ? next.sum / static_cast<double>(next.count) * static_cast<double>(p.count)
                      : p.sum + next.sum;
    }
    p.changed = row;
    points[i] = p;
  }
  points.resize((points.size() + 1) / 2);
  width *= 2;
  changed = row;
}

void LiveCurves::TakeLine(const std::string& line) {
  if (line.empty()) return;
  ++rows_;
  const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
  int64_t step = 0;
  double wall_s = 0;
  if (!row.is_object() || !row.contains("step") || !FromJson(row["step"], step) || !row.contains("metrics") ||
      !row["metrics"].is_object()) {
    ++bad_;
    return;
  }
  if (row.contains("wall_s") && FromJson(row["wall_s"], wall_s) && std::isfinite(wall_s))
    clock_.Add(step, wall_s, rows_);
  for (const auto& [name, value] : row["metrics"].items()) {
    double number = 0;
    if (!FromJson(value, number) || !std::isfinite(number)) continue;
    if (curves_.size() >= kMetricsMax && !curves_.contains(name)) continue;
    curves_[name].Add(step, number, rows_);
  }
}

StatusOr<bool> LiveCurves::Read(int64_t bytes_max) {
  const OpenFile file(path_);
  struct stat info {};
  if (file.fd() < 0 || ::fstat(file.fd(), &info) != 0) return NotFound(path_ + ": no metrics yet");
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path_ + ": not a file");
  if (info.st_ino != inode_ || info.st_size < offset_) {
    inode_ = info.st_ino;
    ++generation_;
    offset_ = rows_ = bad_ = 0;
    clock_ = {.points = {}, .width = 1, .moments = true, .span = {}};
    curves_.clear();
  }
  std::string text;
  while (offset_ < info.st_size && bytes_max > 0) {
    text.resize(static_cast<size_t>(std::min<int64_t>(info.st_size - offset_, 4 << 20)));
    const ssize_t got = ::pread(file.fd(), text.data(), text.size(), offset_);
    if (got <= 0) break;
    text.resize(static_cast<size_t>(got));
    const size_t end = text.rfind('\n');
    if (end == std::string::npos) {
      if (got < kLineMax) return false;  // half a line: the rest comes
      offset_ += got, ++bad_;
      continue;
    }
    for (size_t at = 0; at <= end;) {
      const size_t next = text.find('\n', at);
      TakeLine(text.substr(at, next - at));
      at = next + 1;
    }
    offset_ += static_cast<int64_t>(end) + 1;
    bytes_max -= static_cast<int64_t>(end) + 1;
  }
  return offset_ < info.st_size && bytes_max <= 0;
}

std::map<std::string, MetricSpan> LiveCurves::Spans() const {
  std::map<std::string, MetricSpan> spans;
  for (const auto& [name, curve] : curves_) spans[name] = curve.span;
  return spans;
}

json LiveCurves::Points(const Curve& curve, int64_t since) {
  // Changed ones are the last ones: a change before them marks all behind it.
  size_t from = curve.points.size();
  while (from > 0 && curve.points[from - 1].changed > since) --from;
  json x = json::array(), y = json::array();
  for (size_t i = from; i < curve.points.size(); ++i) {
    const Point& p = curve.points[i];
    x.push_back(p.last);
    y.push_back(SixDigits(p.sum / static_cast<double>(p.count)));
  }
  return {{"from", from}, {"x", std::move(x)}, {"y", std::move(y)}};
}

json LiveCurves::Since(const std::string& cursor) const {
  int64_t generation = 0, since = 0;
  char rest = 0;
  const bool known = std::sscanf(cursor.c_str(), "%ld-%ld%c", &generation, &since, &rest) == 2 &&
                     generation == generation_ && since >= 0 && since <= rows_;
  if (!known) since = 0;
  json out = {{"cursor", std::to_string(generation_) + "-" + std::to_string(rows_)},
              {"whole", !known},
              {"rows", rows_},
              {"bad", bad_},
              {"clock", Points(clock_, since)},
              {"metrics", json::object()}};
  for (const auto& [name, curve] : curves_) {
    if (known && curve.changed <= since && (curve.points.empty() || curve.points.back().changed <= since))
      continue;
    json points = Points(curve, since);
    points["max"] = SixDigits(curve.span.most);
    out["metrics"][name] = std::move(points);
  }
  return out;
}

}  // namespace tidepool::observe
