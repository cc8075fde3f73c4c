#include "workers/data/reward_trial.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "core/base/child_call.h"
#include "core/tasks/reward.h"

namespace tidepool::workers {
namespace {

using Outcome = tasks::Verdict::Outcome;

// The first row that can be used, of those that are trained on if there are any.
std::optional<RowSource::Which> FirstUsable(const RowSource& rows) {
  constexpr int64_t kMost = 256;
  for (const bool held_out : {false, true}) {
    const int64_t count = std::min(kMost, held_out ? rows.held_out_size() : rows.size());
    for (int64_t i = 0; i < count; ++i) {
      if ((held_out ? rows.HeldOut(i) : rows.Row(i)).ok()) return RowSource::Which{i, held_out};
    }
  }
  return std::nullopt;
}

// As a run would give it: the sample that answered has a name, and said all it had to say.
tasks::RewardInput Answered(const RowSource& rows, const RowSource::Which& which, const EncodedRow& row) {
  tasks::RewardInput input =
      rows.InputOf({which.number, 0, which.held_out ? SampleId::kEvalSample : 0}, row, {}, /*ended=*/true);
  input.text = input.answer.empty() ? "0" : input.answer;
  const auto ids = rows.EncodeText(input.text, /*special=*/false);
  input.response_tokens = ids.ok() ? static_cast<int64_t>(ids->size()) + 1 : 1;
  return input;
}

std::string TextOf(const tasks::Verdict& verdict) {
  if (verdict.outcome != Outcome::kOk) return "no score, the row is at fault: " + verdict.detail;
  char score[32];
  std::snprintf(score, sizeof(score), "%.6g", verdict.score);
  return score + (verdict.detail.empty() ? "" : ", " + verdict.detail);
}

}  // namespace

StatusOr<std::vector<TriedReward>> TryRewards(const JobConfig& config, const RowSource& rows) {
  std::vector<TriedReward> tried;
  if (config.rl() == nullptr || config.environment() != nullptr || config.model.is_policy()) return tried;
  const auto which = FirstUsable(rows);
  if (!which) return tried;
  TP_ASSIGN_OR_RETURN(const EncodedRow row,
                      which->held_out ? rows.HeldOut(which->number) : rows.Row(which->number));
  const tasks::RewardInput input = Answered(rows, *which, row);
  const std::string on =
      rows.Place(*which) + ", answered by " + (input.answer.empty() ? "0" : "its own answer");
  for (size_t i = 0; i < config.reward.functions.size(); ++i) {
    const RewardFunction& f = config.reward.functions[i];
    if (!f.endpoint.empty() || f.by_model()) continue;
    const std::string key = "reward.functions[" + std::to_string(i) + "]: ";
    PluginCall limited = tasks::RewardCall(f.name, f.timeout_s);
    limited.on = on;
    const std::string call = limited.what + " on " + on;
    TP_ASSIGN_OR_RETURN(const tasks::Reward reward, tasks::MakeReward(f.name));
    // What comes back begins with one of these.
    constexpr char kCannot = '!', kSaid = '=';
    const auto said = InChild([&](const ChildNote& note) {
      note(call, std::chrono::duration<double>(f.timeout_s));
      const tasks::Verdict verdict = reward(input);
      return verdict.outcome == Outcome::kInfra ? kCannot + verdict.detail : kSaid + TextOf(verdict);
    });
    if (said.status().code() == StatusCode::kUnavailable) {  // this machine's fault, not the reward's
      tried.push_back({.reward = f.name, .on = on, .verdict = {}, .not_tried = said.status().message()});
      continue;
    }
    if (said.status().code() == StatusCode::kDeadlineExceeded) return InvalidArgument(key + limited.Late());
    if (!said.ok()) return InvalidArgument(key + said.status().message() + "; correct it and build again");
    if (said->front() == kCannot) return InvalidArgument(key + call + ": " + said->substr(1));
    tried.push_back({.reward = f.name, .on = on, .verdict = said->substr(1)});
  }
  return tried;
}

}  // namespace tidepool::workers
