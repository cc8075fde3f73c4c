#include "core/tasks/reward.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/base/made.h"
#include "core/base/names.h"
#include "core/base/running_call.h"
#include "core/tasks/grading.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {

// core/base/plugin_check.h.
std::string FaultOf(const RewardPlugin& plugin) {
  return plugin.make == nullptr && plugin.keys.empty() ? "has no .make" : "";
}

const std::vector<RewardInfo>& ListRewards() {
  static const std::vector<RewardInfo> infos = [] {
    std::vector<RewardInfo> all;
    for (const auto& [name, make, file] : RewardPlugins()) {
      const RewardPlugin plugin = make();
      all.push_back({name, plugin.argument, plugin.doc, file, plugin.keys});
    }
    return all;
  }();
  return infos;
}

const RewardInfo* FindReward(std::string_view spec) {
  const auto info = std::ranges::find(ListRewards(), spec.substr(0, spec.find(':')), &RewardInfo::name);
  return info == ListRewards().end() ? nullptr : &*info;
}

bool Reads(const RewardFunction& function, std::string_view key) {
  const auto has = [key](const RewardInfo& info) { return std::ranges::count(info.keys, key) > 0; };
  if (std::ranges::none_of(ListRewards(), has)) return true;
  const RewardInfo* info = function.endpoint.empty() ? FindReward(function.name) : nullptr;
  return info != nullptr && has(*info);
}

std::string RewardLabel(std::string_view spec) {
  const std::string name(spec.substr(0, spec.find(':')));
  const RewardInfo* info = FindReward(name);
  return "reward " + name + (info == nullptr ? "" : " (" + info->file + ")");
}

StatusOr<Reward> MakeReward(std::string_view spec) {
  const size_t colon = spec.find(':');
  const std::string name(spec.substr(0, colon));
  const std::string argument(colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1));
  std::vector<std::string> names;
  for (const auto& [of, make, file] : RewardPlugins()) {
    names.push_back(of);
    if (of != name) continue;
    const RewardPlugin plugin = make();
    if (!argument.empty() && plugin.argument.empty()) {
      return InvalidArgument(name + ": takes no argument; found '" + argument + "'");
    }
    if (!plugin.keys.empty())
      return InvalidArgument(name + ": grades by a model, and none is named; add `path: FOLDER` beside it");
    const std::string label = name + " (" + file + ")";
    TP_ASSIGN_OR_RETURN(Reward reward,
                        Made({.label = "reward " + label}, [&] { return plugin.make(argument); }));
    return RunningReward(label, std::move(reward));
  }
  return NotFound("no reward is named '" + name + "'; " + DidYouMean(name, names) +
                  " (a reward of your own needs an endpoint)");
}

bool LacksAnswer(const Reward& reward, RewardInput row) {
  if (!Trim(row.answer).empty()) return false;
  row.text.clear();
  row.ended = true;
  if (reward(row).outcome != Verdict::Outcome::kData) return false;
  row.answer = "0";
  return reward(row).outcome != Verdict::Outcome::kData;
}

namespace {
void WriteName(const void* of, LineBuffer& out) {
  const auto& in = *static_cast<const RewardInput*>(of);
  if (!in.sample.empty()) out.Add("sample ").Add(in.sample).Add(" (");
  if (!in.file.empty()) {
    out.Add(in.file).Add(":").Add(in.line);
  } else {
    out.Add(in.held_out ? "held-out question " : "question ").Add(in.row);
  }
  if (!in.sample.empty()) out.Add(")");
}
}  // namespace

std::string NameOf(const RewardInput& in) {
  LineBuffer name;
  WriteName(&in, name);
  return std::string(name.text());
}

PluginCall RewardCall(std::string_view spec, double timeout_s) {
  return {.what = RewardLabel(spec), .on = {}, .limit_s = timeout_s, .key = "its timeout_s"};
}

Reward RunningReward(const std::string& name, Reward reward) {
  return [name, label = "reward " + name, reward = std::move(reward)](const RewardInput& input) -> Verdict {
    const auto failed = [&](const std::string& how) {
      return Verdict{Verdict::Outcome::kInfra, 0, name + " " + how};
    };
    const RunningCall call(label, LaterWords{WriteName, &input});
    try {
      Verdict verdict = reward(input);
      if (verdict.outcome == Verdict::Outcome::kOk && !std::isfinite(verdict.score))
        return failed("gave the score " + std::to_string(verdict.score) + ", which is no finite number");
      return verdict;
    } catch (const std::exception& e) {  // a plug-in's: the process goes on
      return failed(std::string("threw an exception: ") + e.what());
    } catch (...) {
      return failed("threw something that is no std::exception");
    }
  };
}

}  // namespace tidepool::tasks
