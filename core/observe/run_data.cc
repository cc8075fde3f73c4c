#include "core/observe/run_data.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/append_file.h"
#include "core/observe/config_text.h"
#include "core/storage/run_directory.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

std::string AsText(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void ReadSummary(const std::string& text, RunData& run) {
  const json summary = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) {
    run.problems.push_back("summary.json is no JSON object");
    return;
  }
  for (const auto& [key, value] : summary.items()) {
    if (value.is_primitive()) run.facts[key] = AsText(value);
  }
  FromJson(summary, run.summary);
  run.state = run.summary.exit != 0 ? "failed" : run.summary.stopped ? "stopped" : "finished";
}

void ReadSomeSamples(const std::string& run_dir, RunData& run) {
  const std::vector<int64_t> steps = SampleSteps(run_dir);
  if (steps.empty()) return;
  constexpr size_t kMost = 9, kRows = 512;  // six prompts of 64 samples are among them
  std::set<int64_t> chosen;
  for (size_t i = 0; i < kMost; ++i) chosen.insert(steps[i * (steps.size() - 1) / (kMost - 1)]);
  for (const int64_t step : chosen) {
    auto rows = ReadSamples(run_dir, step, kRows);
    if (rows.ok()) {
      run.samples.emplace_back(step, std::move(rows).value());
    } else {
      run.problems.push_back(rows.status().message());
    }
  }
}

}  // namespace

std::map<std::string, MetricSpan> RunData::Spans() const {
  std::map<std::string, MetricSpan> spans;
  for (const auto& [name, points] : metrics.metrics) {
    if (points.empty()) continue;
    MetricSpan& span = spans[name];
    for (size_t i = 0; i < points.size(); ++i) span.Add(points[i].second, i == 0);
  }
  return spans;
}

std::map<std::string, double> RunData::Sums(const std::string& prefix) const {
  std::map<std::string, double> sums;
  for (auto it = metrics.metrics.lower_bound(prefix);
       it != metrics.metrics.end() && it->first.starts_with(prefix); ++it) {
    for (const auto& point : it->second) sums[it->first.substr(prefix.size())] += point.second;
  }
  return sums;
}

StatusOr<RunData> ReadRun(const std::string& run_dir, RunParts parts) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(run_dir, error))
    return NotFound(run_dir + ": no such folder; expected a run directory (runs/<name>-<time>)");
  RunData run;
  run.folder = fs::path(run_dir).lexically_normal().filename().string();
  if (run.folder.empty() || run.folder == ".") run.folder = fs::canonical(run_dir, error).filename().string();
  bool any = false;
  constexpr int64_t kMaxText = 4 << 20;
  if (auto text = RealFileSystem().ReadFile(storage::RunPaths(run_dir).config(), kMaxText); text.ok()) {
    run.config_yaml = std::move(text).value();
    const auto config = ConfigValues(run.config_yaml);
    for (const char* key : {"name", "job", "seed"}) {
      if (const auto it = config.find(key); it != config.end()) run.facts[key] = it->second;
    }
    any = true;
  }
  if (parts != RunParts::kFacts) {
    const Status read = ForEachMetricsRow(storage::RunPaths(run_dir).metrics(),
                                          [&](const MetricsRow& row) { run.metrics.Take(row); });
    any = any || read.code() != StatusCode::kNotFound;
    if (!read.ok() && read.code() != StatusCode::kNotFound) run.problems.push_back(read.message());
  }
  if (const auto text = RealFileSystem().ReadFile(storage::RunPaths(run_dir).summary(), kMaxText);
      text.ok()) {
    ReadSummary(*text, run);
    any = true;
  }
  if (!any)
    return NotFound(run_dir +
                    ": holds no config.yaml, metrics.jsonl or summary.json; expected a run directory");
  if (parts != RunParts::kAll) return run;
  run.trace = ReadTraces(storage::RunPaths(run_dir).trace());
  run.problems.insert(run.problems.end(), run.trace.problems.begin(), run.trace.problems.end());
  if (auto pool = ReadPoolHistory(run_dir); pool.ok()) {
    run.pool = std::move(*pool);
  } else if (pool.status().code() != StatusCode::kNotFound) {
    run.problems.push_back(pool.status().message());
  }
  ReadSomeSamples(run_dir, run);
  return run;
}

}  // namespace tidepool::observe
