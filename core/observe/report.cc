#include "core/observe/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"
#include "core/observe/append_file.h"
#include "core/observe/config_text.h"
#include "core/observe/pages.h"
#include "core/storage/run_directory.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

constexpr size_t kPointsMax = 400;  // of a curve
constexpr size_t kMarksMax = 2000;  // ends of steps in a time line
constexpr size_t kPromptBytesMax = 1500, kResponseBytesMax = 3000, kAnswerBytesMax = 60;

// Six digits are more than a screen shows, and half of the bytes.
double Rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  return std::strtod(text, nullptr);
}

// Seconds to a tenth of a millisecond.
double Seconds(double value) { return std::round(value * 1e4) / 1e4; }

// Means over runs of points, at most kPointsMax of them.
Points Thin(const Points& points) {
  const size_t n = std::min(points.size(), kPointsMax);
  Points out;
  for (size_t i = 0; i < n; ++i) {
    const size_t from = i * points.size() / n, to = (i + 1) * points.size() / n;
    double sum = 0;
    for (size_t k = from; k < to; ++k) sum += points[k].second / static_cast<double>(to - from);
    out.emplace_back(points[to - 1].first, sum);
  }
  return out;
}

void PutMetrics(const RunData& run, json& out) {
  std::vector<std::vector<double>> steps;  // most metrics have a value at every step, and share one list
  out["metrics"] = json::object();
  for (const auto& [name, points] : run.metrics.metrics) {
    std::vector<double> x, y, values;
    for (const auto& [step, value] : Thin(points)) x.push_back(step), y.push_back(Rounded(value));
    for (const auto& point : points) values.push_back(point.second);
    if (values.empty()) continue;
    const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    const size_t at = static_cast<size_t>(std::ranges::find(steps, x) - steps.begin());
    if (at == steps.size()) steps.push_back(x);
    out["metrics"][name] = {
        {"x", at}, {"y", y}, {"median", Rounded(*middle)}, {"max", Rounded(std::ranges::max(values))}};
  }
  out["steps"] = steps;
  const Points& clock = run.metrics.clock;
  // No mean: a point of this curve is a moment.
  const size_t stride = clock.size() / kPointsMax + 1;
  out["clock"] = json::array();
  for (size_t i = 0; i < clock.size(); ++i) {
    if (i % stride == 0 || i + 1 == clock.size())
      out["clock"].push_back({clock[i].first, Seconds(clock[i].second)});
  }
}

json TimeLine(const ReadTrace& trace) {
  std::map<std::pair<int64_t, int64_t>, int64_t> lanes;  // in the order of workers and roles
  for (const ReadSpan& span : trace.spans) lanes[{span.worker, span.role}] = 0;
  json out = {{"lanes", json::array()}, {"categories", json::array()}, {"names", json::array()}};
  for (auto& [key, lane] : lanes) {
    lane = static_cast<int64_t>(out["lanes"].size());
    const auto worker = trace.workers.find(key.first);
    const auto role = trace.roles.find(key);
    std::string label =
        worker == trace.workers.end() ? "worker " + std::to_string(key.first) : worker->second;
    if (role != trace.roles.end() && role->second != label) label += " · " + role->second;
    out["lanes"].push_back(label);
  }
  std::map<std::string, int64_t> categories, names;
  const auto index = [&out](std::map<std::string, int64_t>& known, const char* list,
                            const std::string& word) {
    const auto [at, added] = known.try_emplace(word, static_cast<int64_t>(known.size()));
    if (added) out[list].push_back(word);
    return at->second;
  };
  std::vector<ReadSpan> spans = trace.spans;
  MergeSpans(spans, kSpansShownMax);
  out["spans"] = json::array();
  for (const ReadSpan& s : spans) {
    out["spans"].push_back({lanes.at({s.worker, s.role}), index(categories, "categories", s.category),
                            index(names, "names", s.name), Seconds(s.start_s), Seconds(s.duration_s),
                            s.count});
  }
  return out;
}

std::string Shorten(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  const size_t cut = CharacterStart(text, most);
  return text.substr(0, cut) + " ... (" + std::to_string(text.size() - cut) + " more bytes)";
}

// Up to six of a step, from different prompts where there are several.
json Samples(const RunData& run) {
  constexpr size_t kMost = 6;
  json out = json::array();
  for (const auto& [step, rows] : run.samples) {
    std::vector<const SampleRow*> shown, more;
    for (const SampleRow& row : rows) {
      const bool seen =
          std::ranges::any_of(shown, [&](const SampleRow* s) { return s->tid.ordinal == row.tid.ordinal; });
      (seen ? more : shown).push_back(&row);
    }
    shown.insert(shown.end(), more.begin(), more.end());
    if (shown.empty()) continue;
    json list = json::array();
    for (size_t i = 0; i < std::min(kMost, shown.size()); ++i) list.push_back(SampleData(*shown[i]));
    out.push_back({{"step", step}, {"rows", list}});
  }
  return out;
}

// [median, 90 %, longest]; empty of none.
json Spread(std::vector<double> seconds) {
  json out = json::array();
  if (seconds.empty()) return out;
  std::ranges::sort(seconds);
  for (const size_t percent : {50, 90, 100})
    out.push_back(Rounded(seconds[std::min(seconds.size() - 1, percent * seconds.size() / 100)]));
  return out;
}

}  // namespace

// The dashboard asks for it every few seconds, so its size does not grow with the run.
json PoolData(const PoolHistory& pool) {
  json out = TimeLine(pool.lanes);
  const size_t every = (pool.steps.size() + kMarksMax - 1) / kMarksMax;
  out["steps_every"] = every;
  out["steps"] = json::array();
  for (size_t i = every; i <= pool.steps.size() && every > 0; i += every)
    out["steps"].push_back(Seconds(pool.steps[i - 1]));
  out["end_s"] = pool.end_s;
  out["moves"] = pool.moves;
  out["times"] = json::array();
  for (const auto& [roles, times] : pool.times) {
    if (roles.first == Role::kNone) continue;  // the first grants wait for processes to start
    std::vector<double> whole_s(times.release_s);
    for (size_t i = 0; i < whole_s.size(); ++i) whole_s[i] += times.grant_s[i];
    out["times"].push_back({{"from", Name(roles.first)},
                            {"to", Name(roles.second)},
                            {"done", times.release_s.size()},
                            {"rolled_back", times.rolled_back},
                            {"release_s", Spread(times.release_s)},
                            {"grant_s", Spread(times.grant_s)},
                            {"whole_s", Spread(std::move(whole_s))}});
  }
  out["restores"] = json::array();
  for (const RestoreSeen& r : pool.restores)
    out["restores"].push_back({{"at_s", r.at_s}, {"from", r.from}, {"to", r.to}, {"ckpt", r.ckpt}});
  return out;
}

json SampleData(const SampleRow& row) {
  std::string about, rewards;
  if (!row.answer.empty()) about += "answer " + Shorten(row.answer, kAnswerBytesMax) + " · ";
  about += std::to_string(row.ids.size()) + " tokens" + (row.ended ? "" : ", cut");
  if (!row.versions.empty()) {
    const auto [lo, hi] = std::ranges::minmax(row.versions);
    about += " · version " + std::to_string(lo) + (hi != lo ? "–" + std::to_string(hi) : "");
  }
  if (row.rewards.size() > 1) {
    for (const auto& [name, reward] : row.rewards) {
      char text[32];
      std::snprintf(text, sizeof(text), " %.3g", reward);
      rewards += (rewards.empty() ? " (" : ", ") + name + text;
    }
    rewards += ")";
  }
  json details = json::object();
  for (const auto& [name, said] : row.details) details[name] = Shorten(said, kPromptBytesMax);
  return {{"prompt", Shorten(row.prompt, kPromptBytesMax)},
          {"text", Shorten(row.text, kResponseBytesMax)},
          {"reward", row.reward},
          {"rewards", rewards},
          {"details", details},
          {"about", about + " · " + ToString(row.tid)}};
}

json CurvesData(const RunData& run) {
  json out = {{"folder", run.folder},
              {"facts", run.facts},
              {"state", run.state},
              {"exit_code", run.summary.exit},
              {"problems", run.problems},
              {"config", run.config_yaml},
              {"values", ConfigValues(run.config_yaml)}};
  PutMetrics(run, out);
  return out;
}

json ReportData(const RunData& run) {
  std::map<std::string, double> drops(run.summary.drops.begin(), run.summary.drops.end()),
      faults(run.pool.faults.begin(), run.pool.faults.end());
  if (drops.empty()) {
    drops = run.Sums("drop/");
    std::erase_if(drops, [](const auto& entry) { return entry.first.ends_with("_ratio"); });
  }
  const auto restarts = run.metrics.metrics.find("worker/restarts");
  if (restarts != run.metrics.metrics.end() && !restarts->second.empty())
    faults["worker restarts"] = restarts->second.back().second;
  json out = CurvesData(run);
  out["seconds"] = run.summary.seconds;
  out["peak_bytes"] = run.summary.peak_bytes;
  out["drops"] = drops;
  out["lost"] = LossLines(run.summary);
  out["faults"] = faults;
  out["trace"] = TimeLine(run.trace);
  out["pool"] = PoolData(run.pool);
  out["samples"] = Samples(run);
  return out;
}

std::string PageWith(std::string_view page, const json& data) {
  std::string out(page);
  const std::string mark = "{{run}}";
  std::string text;
  // No "<" in the block: what a model wrote cannot end it.
  for (const char c : data.dump(-1, ' ', false, json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return out.replace(out.find(mark), mark.size(), text);
}

std::string ReportHtml(const RunData& run) { return PageWith(ReportPage(), ReportData(run)); }

Status WriteReport(const std::string& run_dir) {
  TP_ASSIGN_OR_RETURN(const RunData run, ReadRun(run_dir));
  return ReplaceFile(storage::RunPaths(run_dir).report(), ReportHtml(run));  // samples are in it
}

}  // namespace tidepool::observe
