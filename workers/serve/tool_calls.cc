#include "workers/serve/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/json_text.h"
#include "workers/serve/held_suffix.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

std::string_view Trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t\r\n");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r\n") + 1 - from);
}

}  // namespace

ToolFormat ToolFormatOf(const text::ChatTemplate& chat) {
  const Json messages = {{{"role", "user"}, {"content", "tidepool"}}};
  text::ChatOptions options;
  options.add_generation_prompt = true;
  const auto without = chat.Render(messages, options);
  options.tools = Json::array({{{"type", "function"},
                                {"function",
                                 {{"name", "tidepool_probe"},
                                  {"description", "none"},
                                  {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
  const auto with = chat.Render(messages, options);
  if (!with.ok() || (without.ok() && *without == *with)) return ToolFormat::kNone;
  if (with->find(kOpen) != std::string::npos) return ToolFormat::kTagged;
  // "Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}."
  if (with->find("\"name\": function name, \"parameters\"") != std::string::npos) return ToolFormat::kJson;
  return ToolFormat::kNone;
}

bool ToolText::TakeCalls(std::string_view text, std::vector<ToolCall>* calls) const {
  if (!JsonTextProblem(text).empty()) return false;
  const Json json = Json::parse(Trimmed(text), nullptr, /*allow_exceptions=*/false);
  std::vector<ToolCall> found;
  const auto take = [&](const Json& call) {
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
    const auto name = call["name"].get<std::string>();
    if (std::ranges::find(names_, name) == names_.end()) return false;
    const char* key = format_ == ToolFormat::kJson ? "parameters" : "arguments";
    const Json arguments = call.contains(key) ? call[key] : Json::object();
    if (!arguments.is_object()) return false;
    found.push_back({name, arguments.dump()});
    return true;
  };
  const bool all = json.is_array() ? !json.empty() && std::ranges::all_of(json, take) : take(json);
  if (all) calls->insert(calls->end(), found.begin(), found.end());
  return all;
}

ToolText::Part ToolText::Push(std::string_view text) {
  Part part;
  if (format_ == ToolFormat::kNone) {
    part.text = text;
    return part;
  }
  held_ += text;
  if (format_ == ToolFormat::kJson) {
    const std::string_view begin = Trimmed(held_);
    // Text that does not begin as a call is none; one that does is one or none at its end.
    if (!begin.empty() && begin.front() != '{') part.text = std::exchange(held_, {});
    return part;
  }
  while (true) {
    const size_t open = held_.find(kOpen);
    if (open == std::string::npos) {
      const size_t keep = held_.size() - HeldSuffix(held_, kOpen);
      part.text += held_.substr(0, keep);
      held_.erase(0, keep);
      return part;
    }
    const size_t close = held_.find(kClose, open);
    if (close == std::string::npos) {
      part.text += held_.substr(0, open);
      held_.erase(0, open);
      return part;
    }
    const size_t end = close + kClose.size();
    const std::string inside = held_.substr(open + kOpen.size(), close - open - kOpen.size());
    const bool call = TakeCalls(inside, &part.calls);
    part.text += held_.substr(0, call ? open : end);
    held_.erase(0, end);
  }
}

ToolText::Part ToolText::Finish() {
  Part part;
  std::string left = std::exchange(held_, {});
  if (format_ == ToolFormat::kJson && TakeCalls(left, &part.calls)) return part;
  // A model's end token may stand in the place of the closing tag.
  if (format_ == ToolFormat::kTagged && left.starts_with(kOpen) &&
      TakeCalls(std::string_view(left).substr(kOpen.size()), &part.calls))
    return part;
  part.text = std::move(left);
  return part;
}

}  // namespace tidepool::workers
