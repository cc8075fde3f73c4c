#include "core/observe/comparison.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "core/base/names.h"
#include "core/observe/config_text.h"
#include "core/observe/pages.h"
#include "core/observe/report.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

// What is looked at first, of every kind of job.
constexpr const char* kLookedAt[] = {"critic/score/mean",
                                     "eval/return/mean",
                                     "eval/reward/mean",
                                     "eval/accuracy",
                                     "sft/loss",
                                     "distill/loss",
                                     "dpo/loss",
                                     "reward_model/loss",
                                     "eval/loss",
                                     "eval/dpo/loss",
                                     "eval/reward_model/loss",
                                     "dpo/accuracy",
                                     "dpo/margin",
                                     "eval/dpo/accuracy",
                                     "eval/dpo/margin",
                                     "reward_model/accuracy",
                                     "reward_model/margin",
                                     "eval/reward_model/accuracy",
                                     "eval/reward_model/margin",
                                     "distill/agreement",
                                     "teacher/kl",
                                     "reward/frac_reward_zero_std",
                                     "response_length/mean",
                                     "actor/entropy",
                                     "actor/grad_norm",
                                     "staleness/max",
                                     "rollout/tok_s",
                                     "perf/throughput",
                                     "timing_s/step"};

bool HasAny(const std::string& name, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(parts, [&](auto part) { return name.find(part) != std::string::npos; });
}

std::vector<std::string> LabelsOf(const std::vector<ComparedRun>& runs) {
  for (const auto name : {&ComparedRun::name, &ComparedRun::folder}) {
    std::set<std::string> names;
    for (const ComparedRun& run : runs) names.insert(run.*name);
    if (names.size() != runs.size() || names.contains("")) continue;
    std::vector<std::string> labels;
    for (const ComparedRun& run : runs) labels.push_back(run.*name);
    return labels;
  }
  std::vector<std::string> labels;
  for (const ComparedRun& run : runs) labels.push_back(run.dir);
  return labels;
}

std::vector<ComparedKey> DifferencesOf(const std::vector<ComparedRun>& runs) {
  std::map<std::string, std::vector<std::optional<std::string>>> values;
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const auto& [key, value] : runs[i].config) {
      auto& of = values[key];
      of.resize(runs.size());
      of[i] = value;
    }
  }
  std::vector<ComparedKey> out;
  for (auto& [key, of] : values) {
    if (std::ranges::adjacent_find(of, std::ranges::not_equal_to()) == of.end()) continue;
    bool set = false, equal = true;  // of the runs that have the key
    const auto known = std::ranges::find_if(of, [](const auto& value) { return value.has_value(); });
    for (size_t i = 0; i < runs.size(); ++i) {
      if (!of[i]) continue;
      set = set || !runs[i].defaults.contains(key);
      equal = equal && *of[i] == **known;
    }
    if (set || !equal) out.push_back({key, std::move(of)});
  }
  return out;
}

ComparedMetric Compared(const std::vector<ComparedRun>& runs, const std::string& metric) {
  ComparedMetric out{metric, {}};
  const Better better = BetterOf(metric);
  for (const ComparedRun& run : runs) {
    auto& figures = out.runs.emplace_back();
    const auto span = run.metrics.find(metric);
    if (span == run.metrics.end()) continue;
    figures = {.first = span->second.first, .last = span->second.last, .best = {}};
    if (better != Better::kUnknown)
      figures->best = better == Better::kSmaller ? span->second.least : span->second.most;
  }
  return out;
}

int64_t Having(const ComparedMetric& m) {
  return std::ranges::count_if(m.runs, [](const auto& figures) { return figures.has_value(); });
}

}  // namespace

Better BetterOf(const std::string& metric) {
  if (HasAny(metric, {"loss", "timing_s/", "time_per_step", "staleness/", "drop/", "_errors", "timeouts",
                      "rollout_logp_diff", "frac_reward_zero_std", "overhead_ratio", "idle_ratio", "_bytes",
                      "teacher/kl", "journal", "mismatch_kl"})) {
    return Better::kSmaller;
  }
  if (HasAny(metric, {"score/", "rewards/mean", "accuracy", "eval/return/", "eval/reward/", "margin",
                      "agreement", "tok_s", "throughput", "explained_var", "prefix_hit_ratio"}) ||
      (metric.starts_with("reward/") && metric.ends_with("/mean"))) {
    return Better::kLarger;
  }
  return Better::kUnknown;
}

ComparedRun ComparedRunOf(const RunData& run, const std::string& dir,
                          std::map<std::string, MetricSpan> metrics) {
  const auto name = run.facts.find("name"), job = run.facts.find("job");
  ComparedRun out{name == run.facts.end() ? "" : name->second,
                  run.folder,
                  dir,
                  ConfigValues(run.config_yaml),
                  ConfigDefaults(run.config_yaml),
                  std::move(metrics)};
  // The value at the end alone would be taken for that of the whole run.
  for (auto& [key, values] : ConfigChanges(run.config_yaml)) out.config[key] = std::move(values);
  // Jobs that generate nothing say so with zeros.
  if (job != run.facts.end() && job->second != "rl") {
    std::erase_if(out.metrics, [](const auto& m) {
      return m.first.starts_with("rollout/") || m.first.starts_with("staleness/");
    });
  }
  return out;
}

StatusOr<Comparison> Compare(const std::vector<ComparedRun>& runs, const std::vector<std::string>& metrics) {
  Comparison out{LabelsOf(runs), DifferencesOf(runs), {}};
  std::set<std::string> there;
  for (const ComparedRun& run : runs) {
    for (const auto& [name, span] : run.metrics) there.insert(name);
  }
  for (const std::string& metric : metrics) {
    out.metrics.push_back(Compared(runs, metric));
    if (Having(out.metrics.back()) > 0) continue;
    std::vector<std::string> alike;  // that have the word in them: a metric has a longer name than one thinks
    for (const std::string& name : there) {
      if (name.find(metric) != std::string::npos) alike.push_back(name);
    }
    const std::string near = Nearest(metric, {there.begin(), there.end()});
    return InvalidArgument(metric + ": no run here has a metric of this name" +
                           (!alike.empty() ? "; there are " + Listed(alike)
                            : near.empty() ? ""
                                           : ", did you mean " + near + "?") +
                           "; docs/metrics.md lists them");
  }
  if (!metrics.empty()) return out;
  std::vector<ComparedMetric> some;
  for (const char* metric : kLookedAt) {
    ComparedMetric m = Compared(runs, metric);
    if (Having(m) >= std::min<int64_t>(2, static_cast<int64_t>(runs.size()))) {
      out.metrics.push_back(std::move(m));
    } else if (Having(m) > 0) {
      some.push_back(std::move(m));
    }
  }
  if (out.metrics.empty()) out.metrics = std::move(some);
  return out;
}

json ComparisonData(const Comparison& comparison) {
  json out = {{"labels", comparison.labels}, {"config", json::array()}, {"metrics", json::array()}};
  for (const ComparedKey& key : comparison.config) {
    json values = json::array();
    for (const auto& value : key.runs) values.push_back(value ? json(*value) : json());
    out["config"].push_back({{"key", key.key}, {"runs", values}});
  }
  for (const ComparedMetric& m : comparison.metrics) {
    json values = json::array();
    for (const auto& f : m.runs) {
      json& value = values.emplace_back();
      if (!f) continue;
      value = {{"first", f->first}, {"last", f->last}};
      if (f->best) value["best"] = *f->best;
    }
    out["metrics"].push_back({{"metric", m.metric}, {"runs", values}});
  }
  return out;
}

std::string ComparisonHtml(const std::vector<RunData>& runs, const Comparison& comparison) {
  json data = {{"comparison", ComparisonData(comparison)}, {"runs", json::array()}};
  for (const RunData& run : runs) {
    json one = CurvesData(run);
    one.erase("config");  // its values are there
    data["runs"].push_back(std::move(one));
  }
  return PageWith(ComparePage(), data);
}

}  // namespace tidepool::observe
