#pragma once
// Runs beside each other, for `tidepool compare` and the dashboard: where their configs differ, and figures
// of the metrics that they have. Runs of different kinds of job compare what they share. Pure functions.

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/fields.h"
#include "core/base/status.h"
#include "core/observe/run_data.h"

namespace tidepool::observe {

// Eight colours of curves can be told from each other.
inline constexpr size_t kComparedRunsMax = 8;

// Of one metric over a run.
struct MetricFigures {
  double first = 0, last = 0;
  std::optional<double> best;  // where it is known whether more or less is better
};
struct ComparedMetric {
  std::string metric;                              // a name of docs/metrics.md
  std::vector<std::optional<MetricFigures>> runs;  // empty: the run has no value
};
struct ComparedKey {
  std::string key;                               // "train.learning_rate"
  std::vector<std::optional<std::string>> runs;  // empty: the run's config has no such key
};
struct Comparison {
  std::vector<std::string> labels;  // what runs are called: the shortest names that differ
  // Keys of which some run has another value. One that other kinds of job do not have is a difference only
  // where somebody set it.
  std::vector<ComparedKey> config;
  std::vector<ComparedMetric> metrics;  // in the order in which they are looked at
};

enum class Better { kLarger, kSmaller, kUnknown };
Better BetterOf(const std::string& metric);

struct ComparedRun {
  std::string name, folder, dir;  // of the config; last part of dir; as it was found
  std::map<std::string, std::string> config;
  std::set<std::string> defaults;  // keys of config that nobody set
  std::map<std::string, MetricSpan> metrics;
};
ComparedRun ComparedRunOf(const RunData& run, const std::string& dir,
                          std::map<std::string, MetricSpan> metrics);

// metrics: which ones to list; empty: what is looked at first, of what two runs have, or where no two share
// one, of what any has. kInvalidArgument: a metric that no run has; what there is instead is named.
StatusOr<Comparison> Compare(const std::vector<ComparedRun>& runs,
                             const std::vector<std::string>& metrics = {});

// {labels, config: [{key, runs: [text or null]}], metrics: [{metric, runs: [{first, last, best} or null]}]}
nlohmann::json ComparisonData(const Comparison& comparison);

// One self-contained page: the comparison, and the runs' curves over each other.
std::string ComparisonHtml(const std::vector<RunData>& runs, const Comparison& comparison);

}  // namespace tidepool::observe
