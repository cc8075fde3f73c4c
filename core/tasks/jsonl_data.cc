#include "core/tasks/jsonl_data.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/tasks/grading.h"

namespace tidepool::tasks {
namespace {

using nlohmann::json;

std::string AsText(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

StatusOr<std::vector<Message>> ReadMessages(const json& list, const char* field) {
  const std::string name(field);
  if (!list.is_array() || list.empty()) return InvalidArgument(name + " is no list of {role, content}");
  std::vector<Message> out;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = name + "[" + std::to_string(i) + "]";
    const json& item = list[i];
    if (!item.is_object() || !item.contains("role") || !item["role"].is_string())
      return InvalidArgument(where + " has no role");
    if (!item.contains("content") || !item["content"].is_string()) {
      return InvalidArgument(where + ".content is no text; only text messages can be read");
    }
    Message message{item["role"].get<std::string>(), item["content"].get<std::string>()};
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      return InvalidArgument(where + ".role is '" + message.role +
                             "'; expected system, user, assistant or tool");
    }
    out.push_back(std::move(message));
  }
  return out;
}

std::string LastUserText(const std::vector<Message>& messages) {
  const auto it =
      std::find_if(messages.rbegin(), messages.rend(), [](const Message& m) { return m.role == "user"; });
  return it == messages.rend() ? messages.back().content : it->content;
}

}  // namespace

StatusOr<Question> ParseRow(std::string_view json_text, RowKind kind) {
  if (const std::string problem = JsonTextProblem(json_text); !problem.empty())
    return InvalidArgument(problem);
  const json row = json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (row.is_discarded()) return InvalidArgument("no valid JSON; each line is one object, in UTF-8");
  if (!row.is_object()) return InvalidArgument(std::string("expected an object; found ") + row.type_name());
  Question q;
  const auto prompt = row.find("prompt");
  const auto messages = row.find("messages");
  if (kind == RowKind::kSft && messages != row.end()) {
    TP_ASSIGN_OR_RETURN(q.messages, ReadMessages(*messages, "messages"));
    if (std::ranges::none_of(q.messages, [](const Message& m) { return m.role == "assistant"; })) {
      return InvalidArgument("messages has no assistant turn, so there is nothing to learn from");
    }
    q.prompt = LastUserText(q.messages);
  } else if (prompt == row.end()) {
    return InvalidArgument(kind == RowKind::kSft ? "neither messages nor prompt" : "no prompt");
  } else if (prompt->is_string()) {
    q.prompt = prompt->get<std::string>();
    if (q.prompt.empty()) return InvalidArgument("prompt is empty");
  } else {
    TP_ASSIGN_OR_RETURN(q.messages, ReadMessages(*prompt, "prompt"));
    q.prompt = LastUserText(q.messages);
  }
  if (const auto answer = row.find("answer"); answer != row.end() && !answer->is_null()) {
    if (answer->is_structured() || answer->is_boolean())
      return InvalidArgument("answer is neither text nor a number");
    q.answer = AsText(*answer);
  }
  if (kind == RowKind::kSft && messages == row.end() && q.answer.empty()) {
    return InvalidArgument("a prompt without an answer; sft rows need messages, or prompt and answer");
  }
  if (kind == RowKind::kPair) {
    for (const char* name : {"chosen", "rejected"}) {
      const auto text = row.find(name);
      if (text == row.end())
        return InvalidArgument(std::string("no ") + name +
                               "; rows of pairs need prompt, chosen and rejected");
      if (!text->is_string() || text->get<std::string>().empty())
        return InvalidArgument(std::string(name) + " is no text");
    }
    if (row["chosen"] == row["rejected"])
      return InvalidArgument("chosen and rejected are the same, so there is nothing to learn from");
    q.answer = row["chosen"].get<std::string>();
  }
  for (const auto& [key, value] : row.items()) {
    if (key != "prompt" && key != "answer" && !(kind == RowKind::kPair && key == "chosen") &&
        !(kind == RowKind::kSft && key == "messages"))
      q.fields[key] = AsText(value);
  }
  return q;
}

StatusOr<JsonlData> JsonlData::Parse(std::string text, const std::string& name, const JsonlOptions& options) {
  JsonlData data;
  data.kind_ = options.kind;
  data.digest_ = Sha256Hex(text);
  data.text_ = std::move(text);
  const std::string_view all = data.text_;
  int64_t line_number = 0;
  for (size_t at = 0; at < all.size();) {
    ++line_number;
    const size_t newline = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(at, newline - at);
    const auto offset = static_cast<int64_t>(at);
    at = newline + 1;
    if (Trim(line).empty()) continue;
    Status status = OkStatus();
    if (static_cast<int64_t>(line.size()) > options.max_line_bytes) {
      status = InvalidArgument("the line has " + std::to_string(line.size()) + " bytes; at most " +
                               std::to_string(options.max_line_bytes) + " are read");
    } else {
      status = ParseRow(line, options.kind).status();
    }
    if (status.ok()) {
      data.rows_.push_back({offset, static_cast<int64_t>(line.size()), line_number});
      continue;
    }
    ++data.bad_lines_;
    if (data.problems_.size() < 20)
      data.problems_.push_back(name + ":" + std::to_string(line_number) + ": " + status.message());
  }
  const auto lines = static_cast<double>(data.rows_.size()) + static_cast<double>(data.bad_lines_);
  if (data.bad_lines_ > 0 && static_cast<double>(data.bad_lines_) > options.max_bad_fraction * lines) {
    std::string message = name + ": " + std::to_string(data.bad_lines_) + " of " +
                          std::to_string(static_cast<int64_t>(lines)) +
                          " lines cannot be used; correct or remove them";
    for (size_t i = 0; i < std::min<size_t>(5, data.problems_.size()); ++i)
      message += "\n" + data.problems_[i];
    return InvalidArgument(message);
  }
  if (data.rows_.empty()) return InvalidArgument(name + ": no rows; each line is one JSON object");
  return data;
}

StatusOr<JsonlData> JsonlData::Open(const std::string& path, const JsonlOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return NotFound(path + ": no such file; expected JSONL rows");
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || bytes > options.max_file_bytes) {
    return ResourceExhausted(path + ": " + std::to_string(bytes) + " bytes; at most " +
                             std::to_string(options.max_file_bytes) + " are read; split the file");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!in || !in.read(text.data(), bytes))
    return Unavailable(path + ": cannot be read: " + std::strerror(errno));
  return Parse(std::move(text), path, options);
}

Question JsonlData::Row(int64_t index) const {
  const Place& place = rows_.at(static_cast<size_t>(index));
  const std::string_view line =
      std::string_view(text_).substr(static_cast<size_t>(place.offset), static_cast<size_t>(place.length));
  StatusOr<Question> row = ParseRow(line, kind_);
  return std::move(row).value();  // the line was parsed when the file was opened
}

}  // namespace tidepool::tasks
