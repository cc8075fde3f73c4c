#include "core/observe/held_out.h"

#include <algorithm>
#include <cstdio>

#include "core/base/statistics.h"

namespace tidepool::observe {
namespace {

// The reward of control tasks, whose other one says whether an episode counts as solved.
constexpr const char* kReturn = "return";
constexpr const char* kSolved = "solved";

const record::EvalScore* Find(const record::EvalResult& r, const std::string& name) {
  const auto it = std::ranges::find(r.rewards, name, &record::EvalScore::name);
  return it == r.rewards.end() ? nullptr : &*it;
}

bool IsControl(const record::EvalResult& r) {
  return Find(r, kReturn) != nullptr && Find(r, kSolved) != nullptr;
}

MeanInterval Accuracy(const record::EvalResult& r) {
  return ShareInterval(static_cast<double>(r.correct) / static_cast<double>(r.total), r.total);
}

HeldOutValue ValueOf(const record::EvalResult& r, const std::string& measure) {
  const record::EvalScore* returns = measure == kReturn ? Find(r, kReturn) : nullptr;
  const MeanInterval of = measure == "accuracy" ? Accuracy(r)
                          : returns != nullptr  ? IntervalOfMean(returns->mean, returns->deviation, r.total)
                                                : IntervalOfMean(r.mean, r.deviation, r.total);
  return {r.step.value, of.mean, of.low, of.high, r.total};
}

}  // namespace

std::optional<HeldOut> HeldOutOf(const std::map<StepNumber, record::EvalResult>& evals) {
  HeldOut out{.measure = "accuracy", .before = {}, .last = {}, .best = {}};
  for (const auto& [step, r] : evals) {
    if (r.graded != 0) out.measure = "reward";
  }
  for (const auto& [step, r] : evals) {
    if (IsControl(r)) out.measure = kReturn;
  }
  for (const auto& [step, r] : evals) {
    if (r.total == 0) continue;
    const HeldOutValue value = ValueOf(r, out.measure);
    if (step.value == 0) {
      out.before = value;
      continue;
    }
    out.last = value;
    if (!out.best || value.value > out.best->value) out.best = value;
  }
  if (!out.before && !out.last) return std::nullopt;
  return out;
}

std::string HeldOutText(const std::string& measure, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), measure == "accuracy" ? "%.1f %%" : "%.4g",
                measure == "accuracy" ? 100 * value : value);
  return text;
}

std::string HeldOutText(const std::string& measure, const HeldOutValue& v) {
  const bool share = measure == "accuracy";
  char text[96];
  std::snprintf(text, sizeof(text),
                share ? " (95 %% interval %.1f to %.1f, " : " (95 %% interval %.4g to %.4g, ",
                share ? 100 * v.low : v.low, share ? 100 * v.high : v.high);
  return HeldOutText(measure, v.value) + text + std::to_string(v.total) +
         (measure == kReturn ? " episodes)" : " rows)");
}

std::vector<std::string> HeldOutLines(const HeldOut& h, int64_t steps) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& when, const HeldOutValue& v) {
    lines.push_back(h.measure + " " + when + ": " + HeldOutText(h.measure, v));
  };
  const auto at = [](const HeldOutValue& v) { return "at step " + std::to_string(v.step); };
  if (h.before) add("before", *h.before);
  if (h.last) add(h.last->step == steps ? "after" : at(*h.last), *h.last);
  if (h.best && h.best->value > h.last->value) add("best, " + at(*h.best), *h.best);
  return lines;
}

std::map<std::string, double> EvalMetrics(const record::EvalResult& r) {
  std::map<std::string, double> m;
  m["eval/total"] = static_cast<double>(r.total);
  if (r.total == 0) return m;
  if (r.graded == 0) {
    const MeanInterval accuracy = Accuracy(r);
    m["eval/accuracy"] = accuracy.mean;
    m["eval/accuracy/low"] = accuracy.low;
    m["eval/accuracy/high"] = accuracy.high;
  }
  const MeanInterval reward = IntervalOfMean(r.mean, r.deviation, r.total);
  m["eval/reward/mean"] = reward.mean;
  m["eval/reward/low"] = reward.low;
  m["eval/reward/high"] = reward.high;
  for (const record::EvalScore& score : r.rewards) m["eval/reward/" + score.name + "/mean"] = score.mean;
  if (const record::EvalScore* returns = IsControl(r) ? Find(r, kReturn) : nullptr) {
    const MeanInterval of = IntervalOfMean(returns->mean, returns->deviation, r.total);
    m["eval/return/mean"] = of.mean;
    m["eval/return/low"] = of.low;
    m["eval/return/high"] = of.high;
    m["eval/return/std"] = returns->deviation;
  }
  return m;
}

}  // namespace tidepool::observe
