#include "core/observe/held_out.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string_view>

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

// Of the whole reward. One that was always 0 or 1 is a share, and is judged as one.
MeanInterval RewardInterval(const record::EvalResult& r) {
  const MeanInterval share = Accuracy(r);
  const auto n = static_cast<double>(r.total);
  const double variance = r.total < 2 ? 0 : share.mean * (1 - share.mean) * n / (n - 1);
  const bool zero_or_one = r.graded == 0 && std::abs(r.mean - share.mean) < 1e-9 &&
                           std::abs(r.deviation * r.deviation - variance) < 1e-6;
  return zero_or_one ? share : IntervalOfMean(r.mean, r.deviation, r.total);
}

HeldOutValue ValueOf(const record::EvalResult& r, const std::string& measure) {
  const record::EvalScore* returns = measure == kReturn ? Find(r, kReturn) : nullptr;
  const MeanInterval of = measure == "accuracy" ? Accuracy(r)
                          : returns != nullptr  ? IntervalOfMean(returns->mean, returns->deviation, r.total)
                                                : RewardInterval(r);
  return {r.step.value, of.mean, of.low, of.high, r.total, r.lost, r.why_lost};
}

constexpr std::string_view kPrefix = "eval/", kBefore = "/before";
constexpr const char* kJudged[] = {"sft", "dpo", "reward_model"};

// "dpo" of figures that begin with "dpo/"; "" where there are none.
std::string JobOf(const std::map<std::string, double>& figures) {
  for (const char* job : kJudged) {
    if (figures.contains(std::string(job) + "/total")) return job;
  }
  return "";
}

void PutIn(HeldOut& out, const HeldOutValue& value) {
  if (value.step == 0) {
    out.before = value;
    return;
  }
  out.last = value;
  const bool better =
      !out.best || (out.measure == "loss" ? value.value < out.best->value : value.value > out.best->value);
  if (better) out.best = value;
}

std::optional<HeldOut> OfFigures(const TrainerFigures& figures) {
  if (figures.empty()) return std::nullopt;
  const std::string job = JobOf(figures.begin()->second);
  HeldOut out{.measure = job == "sft" ? "loss" : "accuracy",
              .before = {},
              .last = {},
              .best = {},
              .ungraded = {},
              .more = {}};
  for (const auto& [step, of] : figures) {
    const auto number = [&](const std::string& name) {
      const auto it = of.find(job + "/" + name);
      return it == of.end() ? 0 : it->second;
    };
    const auto total = static_cast<int64_t>(number("total"));
    const double value = number(out.measure);
    const MeanInterval interval = job == "sft" ? MeanInterval{value, number("loss/low"), number("loss/high")}
                                               : ShareInterval(value, total);
    HeldOutValue at{step.value, interval.mean, interval.low, interval.high, total, 0, ""};
    // No margin is above 0, and their mean is 0.
    if (job != "sft" && value == 0 && of.contains(job + "/margin") && number("margin") == 0) at.ties = true;
    PutIn(out, at);
  }
  for (const auto& [name, value] : figures.rbegin()->second) {
    if (!name.starts_with(job + "/")) continue;
    const std::string what = name.substr(job.size() + 1);
    if (what != out.measure && what != "total" && what.find('/') == std::string::npos) out.more[what] = value;
  }
  return out;
}

}  // namespace

void AddFigures(StepNumber step, const std::map<std::string, double>& metrics, TrainerFigures& figures) {
  figures.erase(figures.upper_bound(step), figures.end());
  for (const auto& [name, value] : metrics) {
    if (!name.starts_with(kPrefix)) continue;
    const bool before = name.ends_with(kBefore);
    const std::string what =
        name.substr(kPrefix.size(), name.size() - kPrefix.size() - (before ? kBefore.size() : 0));
    const std::string job = what.substr(0, what.find('/'));
    if (job != what && std::ranges::find(kJudged, job) != std::end(kJudged))
      figures[before ? StepNumber{0} : step][what] = value;
  }
}

std::optional<HeldOut> HeldOutOf(const std::map<StepNumber, record::EvalResult>& evals,
                                 const TrainerFigures& figures) {
  HeldOut out{.measure = "accuracy", .before = {}, .last = {}, .best = {}, .ungraded = {}, .more = {}};
  std::optional<HeldOut> judged = OfFigures(figures);
  for (const auto& [step, r] : evals) {
    if (r.graded != 0) out.measure = "reward";
  }
  for (const auto& [step, r] : evals) {
    if (IsControl(r)) out.measure = kReturn;
  }
  for (const auto& [step, r] : evals) {
    if (r.total > 0) PutIn(out, ValueOf(r, out.measure));
    if (r.total == 0 && r.lost > 0)
      out.ungraded = {.step = step.value, .lost = r.lost, .why_lost = r.why_lost};
  }
  if (!out.before && !out.last) {
    if (judged || !out.ungraded) {
      if (judged) judged->ungraded = out.ungraded;
      return judged;
    }
    return out;
  }
  if (judged) {  // graded answers come first
    out.more = judged->more;
    if (judged->last) out.more[judged->measure] = judged->last->value;
  }
  return out;
}

std::string HeldOutText(const std::string& measure, double value) {
  char text[32];
  std::snprintf(text, sizeof(text), measure == "accuracy" ? "%.1f %%" : "%.4g",
                measure == "accuracy" ? 100 * value : value);
  return text;
}

std::string HeldOutShort(const std::string& measure, const HeldOutValue& v) {
  return v.ties.value_or(false) ? "every pair ties" : HeldOutText(measure, v.value);
}

std::string HeldOutText(const std::string& measure, const HeldOutValue& v) {
  if (v.ties.value_or(false)) return HeldOutShort(measure, v);
  const int64_t asked = v.total + v.lost;
  std::string of = (v.lost > 0 ? std::to_string(v.total) + " of " : "") + std::to_string(asked) +
                   (measure == kReturn ? " episode" : " row") + (asked == 1 ? "" : "s");
  if (v.lost > 0) of += "; " + std::to_string(v.lost) + " lost, the last: " + v.why_lost;
  if (v.total < 2) return HeldOutText(measure, v.value) + " (" + of + ")";  // which tells no spread
  const bool share = measure == "accuracy";
  char text[96];
  std::snprintf(text, sizeof(text),
                share ? " (95 %% interval %.1f to %.1f, " : " (95 %% interval %.4g to %.4g, ",
                share ? 100 * v.low : v.low, share ? 100 * v.high : v.high);
  return HeldOutText(measure, v.value) + text + of + ")";
}

std::vector<std::string> HeldOutLines(const HeldOut& h, int64_t steps) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& when, const HeldOutValue& v) {
    lines.push_back(h.measure + " " + when + ": " + HeldOutText(h.measure, v));
  };
  const auto at = [](const HeldOutValue& v) { return "at step " + std::to_string(v.step); };
  if (h.before) add("before", *h.before);
  if (h.last) add(h.last->step == steps ? "after" : at(*h.last), *h.last);
  const bool better =
      h.best && (h.measure == "loss" ? h.best->value < h.last->value : h.best->value > h.last->value);
  if (better) add("best, " + at(*h.best), *h.best);
  if (h.ungraded) {
    lines.push_back((h.ungraded->step == 0 ? "before" : at(*h.ungraded)) + ": none of " +
                    std::to_string(h.ungraded->lost) +
                    " answers could be graded, the last: " + h.ungraded->why_lost);
  }
  for (const auto& [name, value] : h.more)
    lines.push_back(name + ": " + HeldOutText(name.ends_with("accuracy") ? "accuracy" : name, value));
  return lines;
}

std::map<std::string, double> EvalMetrics(const record::EvalResult& r) {
  std::map<std::string, double> m;
  m["eval/total"] = static_cast<double>(r.total);
  m["eval/lost"] = static_cast<double>(r.lost);
  if (r.total == 0) return m;
  if (r.graded == 0) {
    const MeanInterval accuracy = Accuracy(r);
    m["eval/accuracy"] = accuracy.mean;
    m["eval/accuracy/low"] = accuracy.low;
    m["eval/accuracy/high"] = accuracy.high;
  }
  const MeanInterval reward = RewardInterval(r);
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
