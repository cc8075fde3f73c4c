#include "core/observe/metrics_writer.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/json_lines.h"

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
  // Half a line at the end: the writer is at it, or was killed.
  TP_RETURN_IF_ERROR(ForEachJsonLine(text, /*half=*/false, [&](int64_t line, const json& j) {
    const bool is_row = j.is_object() && j.contains("step") && j["step"].is_number_integer() &&
                        j.contains("metrics") && j["metrics"].is_object();
    if (!is_row)
      return DataLoss(path + ":" + std::to_string(line) +
                      ": no metrics row; expected {\"step\", \"version\", \"wall_s\", \"metrics\"}");
    MetricsRow row;
    const auto take = [&](const char* key, auto& field) {
      if (const auto at = j.find(key); at != j.end()) FromJson(*at, field);
    };
    take("step", row.step);
    take("version", row.version.number);
    take("lineage", row.version.lineage);
    take("wall_s", row.wall_s);
    for (const auto& [name, value] : j["metrics"].items()) {
      row.metrics[name] = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    // Later lines of a step (its evaluation; the step again after a resume) add to earlier ones and win.
    MetricsRow& merged = rows[row.step];
    row.metrics.merge(merged.metrics);
    merged = std::move(row);
    return OkStatus();
  }));
  std::vector<MetricsRow> out;
  for (auto& [step, row] : rows) out.push_back(std::move(row));
  return out;
}

}  // namespace tidepool::observe
