#include "core/environments/text_game.h"

#include <algorithm>

#include "core/base/hash.h"
#include "core/base/made.h"
#include "core/base/names.h"
#include "core/environments/vector.h"

namespace tidepool::environments {

// core/base/plugin_check.h.
std::string FaultOf(const TextEnvironmentPlugin& plugin) {
  return plugin.make == nullptr ? "has no .make" : "";
}

const std::vector<TextEnvironmentInfo>& ListTextEnvironments() {
  static const std::vector<TextEnvironmentInfo> infos = [] {
    std::vector<TextEnvironmentInfo> all;
    for (const auto& [name, make, file] : TextEnvironmentPlugins()) {
      all.push_back(make());
      all.back().name = name;
      all.back().file = file;
    }
    return all;
  }();
  return infos;
}

const TextEnvironmentInfo* FindTextEnvironment(std::string_view name) {
  const auto it = std::ranges::find(ListTextEnvironments(), name, &TextEnvironmentInfo::name);
  return it == ListTextEnvironments().end() ? nullptr : &*it;
}

std::string LabelOf(const TextEnvironmentInfo& info) {
  return "environment " + info.name + " (" + info.file + ")";
}

std::string NoSuchEnvironment(const std::string& name) {
  std::vector<std::string> names;
  for (const TextEnvironmentInfo& info : ListTextEnvironments()) names.push_back(info.name);
  for (const VectorSpec& spec : ListVectorEnvironments()) names.push_back(spec.name);
  return "no environment is named '" + name + "'; " + DidYouMean(name, names);
}

StatusOr<std::unique_ptr<TextEnvironment>> MakeTextEnvironment(
    const std::string& name, const std::map<std::string, std::string>& options, uint64_t seed) {
  const TextEnvironmentInfo* info = FindTextEnvironment(name);
  if (info == nullptr) return NotFound("name: " + NoSuchEnvironment(name));
  TP_ASSIGN_OR_RETURN(const tasks::OptionValues values, tasks::OptionValues::Parse(info->options, options));
  return Made({.label = LabelOf(*info), .place = "name: "}, [&] { return info->make(values, seed); });
}

StatusOr<int64_t> MaxTurns(const std::string& name, const TextEnvironment& environment) {
  const TextEnvironmentInfo* info = FindTextEnvironment(name);
  return Made(
      {.label = info == nullptr ? name : LabelOf(*info), .function = "max_turns()", .place = "name: "},
      [&]() -> StatusOr<int64_t> { return environment.max_turns(); });
}

std::string DrawLayout(uint64_t seed, bool held_out, int64_t index,
                       const std::function<std::string(Rng&)>& draw) {
  Rng rng = Rng(seed).Fork(held_out ? "held out" : "training").Fork(static_cast<uint64_t>(index));
  std::string layout;
  for (int tries = 0; tries < 1000; ++tries) {
    layout = draw(rng);
    if ((Mix64(seed ^ Hash64(layout)) % 4 == 0) == held_out) break;
  }
  return layout;
}

std::string AnswerText(const std::string& text, bool bare) {
  std::string answer;
  const size_t open = text.rfind("<answer>");
  const size_t close = open == std::string::npos ? open : text.find("</answer>", open);
  if (close != std::string::npos) {
    answer = text.substr(open + 8, close - open - 8);
  } else if (bare) {
    answer = text;
  }
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  while (!answer.empty() && space(answer.back())) answer.pop_back();
  size_t begin = 0;
  while (begin < answer.size() && space(answer[begin])) ++begin;
  return answer.substr(begin);
}

}  // namespace tidepool::environments
