#include "core/tasks/judge.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/base/utf8.h"
#include "core/tasks/rewards/reward_plugin.h"

namespace tidepool::tasks {
namespace {

constexpr const char* kBegin = "Grade a response to a question.\n\nQuestion:\n{question}\n\n";
constexpr const char* kReference = "Reference answer:\n{answer}\n\n";
constexpr const char* kEnd =
    "Response:\n{response}\n\nHow good is the response, from 0 (useless) to 10 (perfect)? Answer with the "
    "number alone.";
constexpr const char* kNumber = R"([-+]?\d+(?:\.\d+)?)";
constexpr std::string_view kPlaces[] = {"{question}", "{response}", "{answer}"};

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// For a line of a message.
std::string Quoted(std::string_view answer) {
  constexpr size_t kMost = 100;
  const bool cut = answer.size() > kMost;
  std::string text(answer.substr(0, cut ? CharacterStart(answer, kMost) : kMost));
  for (char& c : text) c = c == '\n' || c == '\r' ? ' ' : c;
  return "'" + text + (cut ? "'..." : "'");
}

}  // namespace

StatusOr<Judge> Judge::Create(const RewardFunction& function) {
  Judge judge;
  const bool usual = function.prompt.empty();
  judge.prompt_ = usual ? std::string(kBegin) + kReference + kEnd : function.prompt;
  judge.without_answer_ = usual ? std::string(kBegin) + kEnd : function.prompt;
  if (judge.prompt_.find("{response}") == std::string::npos)
    return InvalidArgument("prompt: has no {response}, so every response would get the same grade; add it");
  auto pattern = Pattern::Compile(function.score_pattern.empty() ? kNumber : function.score_pattern);
  if (!pattern.ok()) return pattern.status().At("score_pattern");
  judge.pattern_ = *std::move(pattern);
  judge.min_ = function.score_min;
  judge.max_ = function.score_max;
  if (judge.min_ == judge.max_)
    return InvalidArgument("score_max: is score_min, so every response would get the same grade");
  return judge;
}

std::string Judge::Ask(const RewardInput& input) const {
  const std::string* const texts[] = {&input.prompt, &input.text, &input.answer};
  const std::string& prompt = input.answer.empty() ? without_answer_ : prompt_;
  std::string asked;
  for (size_t at = 0; at < prompt.size();) {
    size_t next = std::string::npos, which = 0;
    for (size_t i = 0; i < std::size(kPlaces); ++i) {
      const size_t found = prompt.find(kPlaces[i], at);
      if (found < next) next = found, which = i;
    }
    asked += prompt.substr(at, next - at);
    if (next == std::string::npos) break;
    asked += *texts[which];
    at = next + kPlaces[which].size();
  }
  return asked;
}

Verdict Judge::Read(std::string_view answer, bool cut) const {
  const auto found = pattern_->Find(answer);
  if (!found.ok()) return BadData("score_pattern: " + found.status().message());
  if (!found->has_value()) return BadData("the judge's answer has no score: " + Quoted(answer));
  std::string_view text = **found;
  if (cut && text.data() + text.size() == answer.data() + answer.size())
    return BadData("the judge's answer is cut at max_new_tokens within its score: " + Quoted(answer));
  if (text.starts_with('+')) text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return BadData("what score_pattern took of the judge's answer is no number: " + Quoted(text));
  if (value < std::min(min_, max_) || value > std::max(min_, max_)) {
    return BadData("the judge's score " + Text(value) + " is not between " + Text(min_) + " and " +
                   Text(max_) + ": " + Quoted(answer));
  }
  return Ok((value - min_) / (max_ - min_), "the judge said " + Quoted(answer));
}

}  // namespace tidepool::tasks
