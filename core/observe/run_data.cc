#include "core/observe/run_data.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/base/running_call.h"
#include "core/observe/append_file.h"
#include "core/observe/config_text.h"
#include "core/storage/run_directory.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string AsText(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// The line that tells what ended a controller in a call of a plug-in; empty: nothing did.
std::string LastWordsOf(const std::string& path) {
  std::ifstream in(path);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  return last;
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

ordered_json ReadObject(const std::string& path) {
  std::ifstream in(path);
  if (!in) return {};
  ordered_json object = ordered_json::parse(in, nullptr, /*allow_exceptions=*/false);
  return object.is_object() ? object : ordered_json();
}

ordered_json EndOf(const std::string& run_dir) {
  const storage::RunPaths paths(run_dir);
  const std::string words = LastWordsOf(paths.last_words());
  if (words.empty()) {
    if (ordered_json summary = ReadObject(paths.summary()); !summary.is_null()) return summary;
  }
  StatusFile said;
  if (const ordered_json status = ReadObject(paths.status()); !status.is_null()) FromJson(status, said);
  constexpr std::string_view kError = "error: ";
  if (!words.empty()) {
    said.exit = ExitCodeOf(words);
    said.why = words.starts_with(kError) ? words.substr(kError.size()) : words;
    said.state = "failed";
  }
  if (said.state.empty() || said.state == "running") return {};
  return {{"exit", said.exit.value_or(-1)},
          {"why", said.why.value_or("")},
          {"steps", said.step},
          {"policy_version", said.version},
          {"finished", said.state == "finished"},
          {"stopped", said.state == "stopped"}};
}

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
  if (const ordered_json end = EndOf(run_dir); !end.is_null()) {
    for (const auto& [key, value] : end.items()) {
      if (value.is_primitive()) run.facts[key] = AsText(value);
    }
    FromJson(end, run.summary);
    run.state = run.summary.exit != 0 ? "failed" : run.summary.stopped ? "stopped" : "finished";
    any = true;
  }
  if (const std::string path = storage::RunPaths(run_dir).summary();
      RealFileSystem().Exists(path) && ReadObject(path).is_null())
    run.problems.push_back("summary.json is no JSON object");
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
