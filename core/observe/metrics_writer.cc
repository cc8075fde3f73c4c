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

Status ForEachMetricsRow(const std::string& path, const std::function<void(const MetricsRow&)>& take) {
  // Half a line at the end: the writer is at it, or was killed.
  return ForEachJsonLine(path, /*half=*/false, [&](int64_t line, const json& j) -> StatusOr<bool> {
    const bool is_row = j.is_object() && j.contains("step") && j["step"].is_number_integer() &&
                        j.contains("metrics") && j["metrics"].is_object();
    if (!is_row)
      return DataLoss(path + ":" + std::to_string(line) +
                      ": no metrics row; expected {\"step\", \"version\", \"wall_s\", \"metrics\"}");
    MetricsRow row;
    const auto field = [&](const char* key, auto& value) {
      if (const auto at = j.find(key); at != j.end()) FromJson(*at, value);
    };
    field("step", row.step);
    field("version", row.version.number);
    field("lineage", row.version.lineage);
    field("wall_s", row.wall_s);
    for (const auto& [name, value] : j["metrics"].items()) {
      row.metrics[name] = value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
    }
    take(row);
    return true;
  });
}

void MetricsColumns::Take(const MetricsRow& row) {
  const auto step = static_cast<double>(row.step);
  const auto put = [step](Points& points, double value) {
    auto at = points.end();  // nearly always
    while (at != points.begin() && (at - 1)->first >= step) --at;
    const bool there = at != points.end() && at->first == step;
    if (!std::isfinite(value)) {
      if (there) points.erase(at);
    } else if (there) {
      at->second = value;
    } else {
      points.insert(at, {step, value});
    }
  };
  put(clock, row.wall_s);
  auto at = metrics.begin();  // both are in order
  for (const auto& [name, value] : row.metrics) {
    while (at != metrics.end() && at->first < name) ++at;
    if (at == metrics.end() || at->first != name) at = metrics.emplace_hint(at, name, Points{});
    put(at->second, value);
  }
}

}  // namespace tidepool::observe
