#pragma once
// What a process shows Prometheus: its text format (version 0.0.4), with HELP lines out of docs/metrics.md,
// which is in the program. A name that is not there is not shown, so every family has a meaning and labels
// stay few.
//
// Figures of a step (metrics.jsonl) are gauges by the rule of MetricName.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidepool::observe {

// docs/metrics.md as it was when this program was built.
std::string_view MetricsGlossary();

using Labels = std::vector<std::pair<std::string, std::string>>;

struct ExposedName {
  std::string family;
  Labels labels = {};
  std::string help = {};
};
// A figure of metrics.jsonl, "timing_s/step", as Prometheus names it: "tidepool_timing_step_seconds". What
// stands in <> in the glossary is a label: "reward/<name>/mean" is tidepool_reward_mean{name="..."}. Units
// stand in full at the end; nullopt: the glossary does not have it.
std::optional<ExposedName> MetricName(const std::string& figure);

// How often a duration was below each of some bounds. Thread-compatible.
class DurationHistogram {
 public:
  // From 1 ms to an hour.
  static constexpr std::array<double, 17> kBounds_s = {
      0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 900, 3600};
  void Add(double seconds);
  [[nodiscard]] std::span<const int64_t> counts() const { return counts_; }  // the last: above all bounds
  [[nodiscard]] double sum() const { return sum_; }

 private:
  std::array<int64_t, kBounds_s.size() + 1> counts_{};
  double sum_ = 0;
};

class Exposition {
 public:
  // Names as they are shown. A counter's ends in _total and never falls while the process lives.
  void Counter(const std::string& name, double value, const Labels& labels = {});
  void Gauge(const std::string& name, double value, const Labels& labels = {});
  void Durations(const std::string& name, const DurationHistogram& durations, const Labels& labels = {});
  // Those of the last step.
  void Figures(const std::map<std::string, double>& figures);
  // This process: processor time, memory, descriptors, by their usual names (process_*).
  void Process();
  [[nodiscard]] std::string Text() const;

 private:
  struct Family {
    const char* type;
    std::string help;
    std::vector<std::string> lines;
  };
  Family* Of(const std::string& name, const char* type);
  void Add(Family* family, const std::string& name, const Labels& labels, double value);
  std::map<std::string, Family> families_;
};

}  // namespace tidepool::observe
