#include "core/observe/metrics_writer.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/real_file_system.h"

namespace tidepool::observe {

using nlohmann::json;

StatusOr<MetricsWriter> MetricsWriter::Create(const std::string& path) {
  TP_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Open(path, {.cut_torn_line = true}));
  return MetricsWriter(std::move(file));
}

Status MetricsWriter::Write(const MetricsRow& row) {
  nlohmann::ordered_json j = {{"step", row.step},
                              {"version", row.version.number},
                              {"lineage", row.version.lineage},
                              {"wall_s", row.wall_s}};
  auto& metrics = j["metrics"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : row.metrics) {
    metrics[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  }
  return file_.Append(j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

StatusOr<std::vector<MetricsRow>> ReadMetrics(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path));
  std::map<int64_t, MetricsRow> rows;
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    ++line;
    const size_t newline = text.find('\n', at);
    if (newline == std::string::npos) break;  // half a line: the writer is at it, or was killed
    const json j = json::parse(text.begin() + static_cast<int64_t>(at),
                               text.begin() + static_cast<int64_t>(newline), nullptr, false);
    at = newline + 1;
    const bool is_row = j.is_object() && j.contains("step") && j["step"].is_number_integer() &&
                        j.contains("metrics") && j["metrics"].is_object();
    if (!is_row)
      return DataLoss(path + ":" + std::to_string(line) +
                      ": no metrics row; expected {\"step\", \"version\", \"wall_s\", \"metrics\"}");
    MetricsRow row;
    row.step = j["step"].get<int64_t>();
    if (j.contains("version") && j["version"].is_number_integer())
      row.version.number = j["version"].get<int64_t>();
    if (j.contains("lineage") && j["lineage"].is_number_integer())
      row.version.lineage = j["lineage"].get<int32_t>();
    if (j.contains("wall_s") && j["wall_s"].is_number()) row.wall_s = j["wall_s"].get<double>();
    for (const auto& [name, value] : j["metrics"].items()) {
      row.metrics[name] = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    // Later lines of a step (its evaluation; the step again after a resume) add to earlier ones and win.
    MetricsRow& merged = rows[row.step];
    row.metrics.merge(merged.metrics);
    merged = std::move(row);
  }
  std::vector<MetricsRow> out;
  for (auto& [step, row] : rows) out.push_back(std::move(row));
  return out;
}

}  // namespace tidepool::observe
