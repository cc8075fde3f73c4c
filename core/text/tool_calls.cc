#include "core/text/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/json_text.h"
#include "core/text/held_suffix.h"

namespace tidepool::text {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kArgumentsMost = 256;  // of a call
constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

std::string_view Trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t\r\n");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r\n") + 1 - from);
}

}  // namespace

ToolFormat ToolFormatOf(const ChatTemplate& chat) {
  const Json messages = {{{"role", "user"}, {"content", "tidepool"}}};
  ChatOptions options;
  options.add_generation_prompt = true;
  const auto without = chat.Render(messages, options);
  options.tools = Json::array({{{"type", "function"},
                                {"function",
                                 {{"name", "tidepool_probe"},
                                  {"description", "none"},
                                  {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
  const auto with = chat.Render(messages, options);
  if (!with.ok() || (without.ok() && *without == *with)) return ToolFormat::kNone;
  // Qwen3-Coder and GLM write no JSON within the tags.
  const bool json =
      with->find("<function=") == std::string::npos && with->find("<arg_key>") == std::string::npos;
  if (json && with->find(kOpen) != std::string::npos) return ToolFormat::kTagged;
  // "Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}."
  if (with->find("\"name\": function name, \"parameters\"") != std::string::npos) return ToolFormat::kJson;
  return ToolFormat::kNone;
}

bool ToolText::TakeCalls(std::string_view text, std::vector<ToolPiece>* pieces) const {
  if (!JsonTextProblem(text).empty() || !JsonKeysWithin(text, kArgumentsMost)) return false;
  const Json json = Json::parse(Trimmed(text), nullptr, /*allow_exceptions=*/false);
  std::vector<ToolPiece> found;
  const auto take = [&](const Json& call) {
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return false;
    const auto name = call["name"].get<std::string>();
    if (names_ && std::ranges::find(*names_, name) == names_->end()) return false;
    const char* key = format_ == ToolFormat::kJson ? "parameters" : "arguments";
    const Json arguments = call.contains(key) ? call[key] : Json::object();
    if (!arguments.is_object()) return false;
    found.push_back({"", ToolCall{name, arguments.dump()}});
    return true;
  };
  const bool all = json.is_array() ? !json.empty() && std::ranges::all_of(json, take) : take(json);
  if (all) pieces->insert(pieces->end(), found.begin(), found.end());
  return all;
}

std::vector<ToolPiece> ToolText::Push(std::string_view text) {
  std::vector<ToolPiece> pieces;
  held_ += text;
  // The first so many bytes are text.
  const auto show = [&](size_t bytes) {
    if (bytes > 0) pieces.push_back({held_.substr(0, bytes), std::nullopt});
    held_.erase(0, bytes);
  };
  if (format_ == ToolFormat::kNone) {
    show(held_.size());
    return pieces;
  }
  if (format_ == ToolFormat::kJson) {
    const std::string_view begin = Trimmed(held_);
    // Text that does not begin as a call is none; one that does is one or none at its end.
    if (!begin.empty() && begin.front() != '{') show(held_.size());
    return pieces;
  }
  while (true) {
    if (after_call_) held_.erase(0, std::min(held_.find_first_not_of(" \t\r\n"), held_.size()));
    after_call_ = after_call_ && held_.empty();
    const size_t open = held_.find(kOpen);
    const size_t close = open == std::string::npos ? open : held_.find(kClose, open);
    if (close == std::string::npos) {
      show(open == std::string::npos ? held_.size() - HeldSuffix(held_, kOpen) : open);
      return pieces;
    }
    show(open);
    const size_t inside = close - open - kOpen.size();
    if (TakeCalls(std::string_view(held_).substr(kOpen.size(), inside), &pieces)) {
      held_.erase(0, kOpen.size() + inside + kClose.size());
      after_call_ = true;
    } else {
      show(kOpen.size() + inside + kClose.size());
    }
  }
}

std::vector<ToolPiece> ToolText::Finish() {
  std::vector<ToolPiece> pieces;
  const std::string left = std::exchange(held_, {});
  if (format_ == ToolFormat::kJson && TakeCalls(left, &pieces)) return pieces;
  // A model's end token may stand in the place of the closing tag.
  if (format_ == ToolFormat::kTagged && left.starts_with(kOpen) &&
      TakeCalls(std::string_view(left).substr(kOpen.size()), &pieces))
    return pieces;
  if (!left.empty()) pieces.push_back({left, std::nullopt});
  return pieces;
}

std::string PlainTools(const Json& tools) {
  std::string text = "You may call these tools, one JSON object a line:\n";
  for (const Json& tool : tools) text += (tool.contains("function") ? tool["function"] : tool).dump() + "\n";
  return text + "To call one, write\n" + std::string(kOpen) + R"({"name": NAME, "arguments": {...}})" +
         std::string(kClose);
}

ToolTurn ReadToolTurn(ToolFormat format, std::string_view text) {
  ToolText reader(format, std::nullopt);
  std::vector<ToolPiece> pieces = reader.Push(text);
  for (ToolPiece& piece : reader.Finish()) pieces.push_back(std::move(piece));
  ToolTurn turn;
  for (ToolPiece& piece : pieces) {
    if (piece.call) {
      turn.calls.push_back(*std::move(piece.call));
      continue;
    }
    const bool looks_like_a_call = format == ToolFormat::kTagged
                                       ? piece.text.starts_with(kOpen)
                                       : format == ToolFormat::kJson && Trimmed(piece.text).starts_with('{');
    if (looks_like_a_call && turn.broken.empty()) turn.broken = piece.text;
    turn.text += piece.text;
  }
  return turn;
}

}  // namespace tidepool::text
