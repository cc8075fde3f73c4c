#include "core/observe/timeline.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "core/observe/chart.h"

namespace tidepool::observe {
namespace {

constexpr double kWidth = 1120;
constexpr double kLeft = 148;
constexpr double kRight = 1108;
constexpr double kLane = 22;  // height with its gap
constexpr double kBar = 15;
constexpr double kAxis = 26;

std::string Coordinate(double v) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.1f", v);
  return buffer.data();
}

std::string SecondsText(double s) {
  std::array<char, 32> buffer{};
  if (s >= 120) {
    std::snprintf(buffer.data(), buffer.size(), "%d:%02d", static_cast<int>(s) / 60,
                  static_cast<int>(s) % 60);
  } else {
    std::snprintf(buffer.data(), buffer.size(), "%.4g s", s);
  }
  return buffer.data();
}

struct Bar {
  std::string category;
  std::string name;
  double from = 0;
  double to = 0;
  int64_t count = 1;
};

std::string Draw(const Bar& bar, double x, double y, double width) {
  std::string title = bar.name;
  if (bar.count > 1) title += " and more, " + std::to_string(bar.count) + " spans";
  return "<rect x=\"" + Coordinate(x) + "\" y=\"" + Coordinate(y) + "\" width=\"" +
         Coordinate(std::max(width, 0.7)) + "\" height=\"" + Coordinate(kBar) + "\" rx=\"1.5\" fill=\"" +
         CategoryColor(bar.category) + "\"><title>" + Escape(title) + "\n" + Escape(bar.category) + ", " +
         SecondsText(bar.from) + " to " + SecondsText(bar.to) + "</title></rect>";
}

}  // namespace

std::string CategoryColor(const std::string& category) {
  static const std::map<std::string, std::string> kColors = {
      {"rollout", "#2f6fed"}, {"reward", "#f0a020"},     {"train", "#13a071"},  {"weights", "#8b5cf6"},
      {"eval", "#0ea5b7"},    {"checkpoint", "#d9498a"}, {"system", "#9aa5b5"}, {"environment", "#e2724a"},
      {"actor", "#a7dcc7"},   {"moving", "#f0c54a"},     {"lost", "#3b3f46"}};
  const auto it = kColors.find(category);
  return it == kColors.end() ? "#64748b" : it->second;
}

std::string TimelineSvg(const ReadTrace& trace, double from_s, double to_s,
                        const std::vector<double>& marks_s) {
  if (!(to_s > from_s)) return {};
  const double scale = (kRight - kLeft) / (to_s - from_s);
  std::map<std::pair<int64_t, int64_t>, std::vector<Bar>> lanes;
  for (const ReadSpan& span : trace.spans) {
    const double begin = std::max(span.start_s, from_s);
    const double end = std::min(span.start_s + span.duration_s, to_s);
    if (end < begin || span.start_s > to_s) continue;
    std::vector<Bar>& lane = lanes[{span.worker, span.role}];
    // What would touch on the screen becomes one bar: pages of a million spans open in no browser.
    const bool narrow = (end - begin) * scale < 3;
    if (!lane.empty() && lane.back().category == span.category &&
        (begin - lane.back().to) * scale < (narrow ? 1.5 : 0.8) &&
        (narrow || lane.back().name == span.name)) {
      lane.back().to = std::max(lane.back().to, end);
      ++lane.back().count;
    } else {
      lane.push_back({span.category, span.name, begin, end, 1});
    }
  }
  if (lanes.empty()) return {};
  const double bottom = 6 + kLane * static_cast<double>(lanes.size());
  std::string svg = "<svg class=\"timeline\" viewBox=\"0 0 " + Coordinate(kWidth) + " " +
                    Coordinate(bottom + kAxis) + "\" role=\"img\" aria-label=\"time line of workers\">";
  for (const double t : NiceTicks(from_s, to_s, 9)) {
    const std::string x = Coordinate(kLeft + (t - from_s) * scale);
    svg += "<line class=\"grid\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"2\" y2=\"" + Coordinate(bottom) +
           "\"/><text class=\"tick\" text-anchor=\"middle\" x=\"" + x + "\" y=\"" + Coordinate(bottom + 16) +
           "\">" + SecondsText(t) + "</text>";
  }
  double y = 6;
  for (const auto& [key, lane] : lanes) {
    const auto worker = trace.workers.find(key.first);
    const auto role = trace.roles.find(key);
    std::string label =
        worker == trace.workers.end() ? "worker " + std::to_string(key.first) : worker->second;
    if (role != trace.roles.end() && role->second != label) label += " · " + role->second;
    svg += "<rect class=\"lane\" x=\"" + Coordinate(kLeft) + "\" y=\"" + Coordinate(y) + "\" width=\"" +
           Coordinate(kRight - kLeft) + "\" height=\"" + Coordinate(kBar) + "\"/>";
    svg += "<text class=\"label\" text-anchor=\"end\" x=\"" + Coordinate(kLeft - 9) + "\" y=\"" +
           Coordinate(y + 11.5) + "\">" + Escape(label) + "</text>";
    for (const Bar& bar : lane)
      svg += Draw(bar, kLeft + (bar.from - from_s) * scale, y, (bar.to - bar.from) * scale);
    y += kLane;
  }
  for (const double mark : marks_s) {
    if (mark < from_s || mark > to_s) continue;
    const std::string x = Coordinate(kLeft + (mark - from_s) * scale);
    svg +=
        "<line class=\"mark\" x1=\"" + x + "\" x2=\"" + x + "\" y1=\"2\" y2=\"" + Coordinate(bottom) + "\"/>";
  }
  return svg + "</svg>";
}

ReadTrace TraceFromMetrics(const RunData& run) {
  static const std::array<std::array<const char*, 3>, 6> kPhases = {
      {{"timing_s/gen", "generate", "rollout"},
       {"timing_s/reward", "reward", "reward"},
       {"timing_s/old_log_prob", "recompute log-probs", "train"},
       {"timing_s/update_actor", "update actor", "train"},
       {"timing_s/update_weights", "publish weights", "weights"},
       {"timing_s/save", "checkpoint", "checkpoint"}}};
  ReadTrace trace;
  trace.workers[0] = "phases of a step";
  for (const MetricsRow& row : run.metrics) {
    const auto step = row.metrics.find("timing_s/step");
    if (step == row.metrics.end()) continue;
    double at = row.wall_s - step->second;
    for (const auto& [metric, name, category] : kPhases) {
      const auto it = row.metrics.find(metric);
      if (it == row.metrics.end() || !(it->second > 0)) continue;
      trace.spans.push_back({0, 0, name, category, at, it->second});
      at += it->second;
    }
  }
  return trace;
}

}  // namespace tidepool::observe
