#pragma once
// Charts of the report: inline SVG that scales with its card, readable without scripts. Points are
// also put into a data attribute, from which the page's script shows values under the pointer.
// Pure functions from numbers to text.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/observe/run_data.h"

namespace tidepool::observe {

struct Series {
  std::string name;
  std::string color;    // CSS
  Points points;        // by x, ascending
  bool smooth = false;  // drawn thin, with a moving average on top
  bool dots = false;    // few points that matter one by one
};

struct ChartOptions {
  std::string title;
  std::string note = {};  // what it means, one line
  bool percent = false;   // values are shares
  std::optional<double> y_min = {};
  std::optional<double> y_max = {};
};

// A card with a line chart; empty if no series has a point.
std::string LineChart(const ChartOptions& options, std::vector<Series> series);

// A card with one bar an x, series on top of each other. The points of all series have the same x.
std::string StackedBars(const ChartOptions& options, std::vector<Series> series);

// Ticks at 1, 2 or 5 times a power of ten, about `count` of them within [lo, hi].
std::vector<double> NiceTicks(double lo, double hi, int count);

// Averages over runs of points, at most `most` of them left.
Points Thin(const Points& points, size_t most);

// & < > " ' as entities; bytes that are no UTF-8 and control characters as U+FFFD.
std::string Escape(std::string_view text);
// For axes and legends: "1.2k", "0.05", "35%".
std::string AxisText(double value, bool percent);

}  // namespace tidepool::observe
