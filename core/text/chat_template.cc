#include "core/text/chat_template.h"

#include <filesystem>

#include "core/base/json_text.h"
#include "core/files/mapped_file.h"
#include "core/text/jinja/template.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kTemplateBytesMax = 1 << 20;
constexpr int64_t kConfigBytesMax = int64_t{64} << 20;  // added_tokens_decoder can be long

StatusOr<std::unique_ptr<jinja::Template>> Compile(const std::string& source, const std::string& where) {
  if (static_cast<int64_t>(source.size()) > kTemplateBytesMax) {
    return ResourceExhausted(where + ": the chat template has " + std::to_string(source.size()) +
                             " bytes, at most " + std::to_string(kTemplateBytesMax) + " are read");
  }
  if (const size_t at = FindInvalidUtf8(source); at != std::string::npos) {
    return InvalidArgument(where + ": the chat template is no UTF-8 at byte " + std::to_string(at));
  }
  StatusOr<std::unique_ptr<jinja::Template>> result = jinja::Template::Compile(source);
  if (!result.ok()) return result.status().At(where + ": chat template");
  return result;
}

// "x" or {"content": "x", ...}
std::string TokenText(const OrderedJson& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.contains("content") && json["content"].is_string()) {
    return json["content"].get<std::string>();
  }
  return {};
}

// An empty object if the file is not there.
StatusOr<OrderedJson> ReadObject(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return OrderedJson(OrderedJson::object());
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(path, kConfigBytesMax));
  return ParseJsonObject<OrderedJson>(text, path);
}

// A message as templates expect it, which is what transformers makes of it before it renders. A key whose
// value is null is not there: APIs write `content: null` beside tool calls, and templates that concatenate
// would print "None". The reasoning has three names; a template finds it under two of them.
OrderedJson Normalised(const OrderedJson& message) {
  if (!message.is_object()) return message;
  OrderedJson out = OrderedJson::object(), reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) out[key] = value;
  }
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning.is_null() && out.contains(name)) reasoning = out[name];
  }
  if (reasoning.is_null()) return out;
  OrderedJson first = {{"thinking", reasoning}};
  first.update(out);
  first["reasoning_content"] = reasoning;
  return first;
}

}  // namespace

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::FromSource(
    const std::string& source, std::map<std::string, std::string> special_tokens, const std::string& where) {
  auto result = std::unique_ptr<ChatTemplate>(new ChatTemplate());
  result->where_ = where;
  result->special_tokens_ = std::move(special_tokens);
  TP_ASSIGN_OR_RETURN(result->default_, Compile(source, where));
  return result;
}

StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(const std::string& folder) {
  const std::string file = folder + "/chat_template.jinja";
  const std::string config_file = folder + "/tokenizer_config.json";
  TP_ASSIGN_OR_RETURN(const OrderedJson config, ReadObject(config_file));
  TP_ASSIGN_OR_RETURN(const OrderedJson map, ReadObject(folder + "/special_tokens_map.json"));
  std::map<std::string, std::string> tokens;
  for (const char* name :
       {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}) {
    for (const OrderedJson* source : {&map, &config}) {
      if (!source->contains(name)) continue;
      if (std::string token = TokenText((*source)[name]); !token.empty()) tokens[name] = std::move(token);
    }
  }
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    TP_ASSIGN_OR_RETURN(const std::string source, files::ReadSmallFile(file, kTemplateBytesMax));
    return FromSource(source, std::move(tokens), file);
  }
  const OrderedJson chat_template =
      config.contains("chat_template") ? config["chat_template"] : OrderedJson();
  if (chat_template.is_string()) {
    return FromSource(chat_template.get<std::string>(), std::move(tokens), config_file);
  }
  if (chat_template.is_array()) {
    auto result = std::unique_ptr<ChatTemplate>(new ChatTemplate());
    result->where_ = config_file;
    result->special_tokens_ = std::move(tokens);
    for (const OrderedJson& entry : chat_template) {
      if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() ||
          !entry.contains("template") || !entry["template"].is_string()) {
        return InvalidArgument(config_file + ": chat_template has an entry without a name or a template");
      }
      const auto name = entry["name"].get<std::string>();
      if (name != "default" && name != "tool_use") continue;
      TP_ASSIGN_OR_RETURN((name == "default" ? result->default_ : result->tool_use_),
                          Compile(entry["template"].get<std::string>(), config_file));
    }
    if (!result->default_) return InvalidArgument(config_file + ": chat_template has no entry named default");
    return result;
  }
  return NotFound(folder +
                  ": has no chat template, neither chat_template.jinja nor chat_template in "
                  "tokenizer_config.json; give the prompt as text, or add a template");
}

StatusOr<std::string> ChatTemplate::Render(const OrderedJson& messages, const ChatOptions& options) const {
  if (!messages.is_array()) return InvalidArgument(where_ + ": messages are no array");
  OrderedJson variables = OrderedJson::object();
  for (const auto& [name, token] : special_tokens_) variables[name] = token;
  if (options.variables.is_object()) variables.update(options.variables);
  OrderedJson& chat = variables["messages"] = OrderedJson::array();
  for (const OrderedJson& message : messages) chat.push_back(Normalised(message));
  variables["tools"] = options.tools;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = options.add_generation_prompt;
  const bool with_tools = !options.tools.is_null();
  const jinja::Template& chosen = with_tools && tool_use_ ? *tool_use_ : *default_;
  try {
    StatusOr<std::string> text = chosen.Render(variables, {.unix_time_s = options.unix_time_s, .limits = {}});
    if (!text.ok()) return text.status().At(where_);
    return text;
  } catch (const std::exception& e) {  // bad_alloc, or the JSON library's
    return ResourceExhausted(where_ + ": cannot render: " + e.what());
  }
}

}  // namespace tidepool::text
