// Requests of /v1/responses and /v1/messages: conversations of blocks, which become the messages that a chat
// template knows.
#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "workers/serve/request_reading.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOwnContext = "answers are not kept: a request brings its whole conversation";

// The text of a list of parts, each of one of these types; or a text as it is.
std::string TextOf(RequestFields& fields, const std::string& name, const std::set<std::string>& types) {
  const Json* content = fields.Take(name);
  if (content == nullptr) return "";
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    fields.Refuse(name, "a text or a list of parts is expected");
    return "";
  }
  std::string text;
  for (size_t i = 0; i < content->size() && fields.ok(); ++i) {
    RequestFields part = fields.Within((*content)[i], At(name, i));
    const std::string type = part.Text("type");
    if (!types.contains(type)) part.Refuse("type", "text alone is read, found '" + type + "'");
    text += part.Text("text");
    part.PassOver("annotations");
    part.PassOver("logprobs");
    part.PassOver("cache_control");
    part.Finish();
  }
  return text;
}

Json Call(const std::string& id, const std::string& name, Json arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

// A call of the assistant goes to its last message, if nothing is between.
void AddCall(Json& messages, Json call) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  Json& last = messages.back();
  if (!last.contains("tool_calls")) last["tool_calls"] = Json::array();
  last["tool_calls"].push_back(std::move(call));
}

// Tools as chat templates write them: OpenAI's form of a chat.  schema: the key of the parameters
void TakeNamedTools(RequestFields& fields, const ServedModel& model, const char* schema, AskedTurn* asked,
                    Json* tools) {
  const Json* list = fields.Take("tools");
  if (list == nullptr || (list->is_array() && list->empty())) return;
  if (!list->is_array()) return fields.Refuse("tools", "a list is expected");
  if (model.tools == text::ToolFormat::kNone)
    return fields.Refuse("tools", "the model's chat template shows no form of calls that is read here");
  *tools = Json::array();
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    RequestFields tool = fields.Within((*list)[i], At("tools", i));
    const std::string type = tool.Text("type");
    if (!type.empty() && type != "function" && type != "custom")
      tool.Refuse("type", "tools are functions of the caller, found '" + type + "'");
    const std::string name = tool.Text("name"), description = tool.Text("description");
    if (name.empty()) tool.Refuse("name", "is missing");
    Json function = {{"name", name}};
    if (!description.empty()) function["description"] = description;
    if (const Json* parameters = tool.Take(schema)) {
      if (!parameters->is_object()) tool.Refuse(schema, "a JSON schema is expected, which is an object");
      function["parameters"] = *parameters;
    }
    tool.PassOver("strict");  // the engine does not hold calls to a schema: docs/serving.md says so
    tool.PassOver("cache_control");
    tool.Finish();
    tools->push_back({{"type", "function"}, {"function", std::move(function)}});
    asked->style.tools.push_back(name);
  }
}

void NoTools(AskedTurn* asked, Json* tools) {
  *tools = nullptr;
  asked->style.tools.clear();
}

// --- POST /v1/responses

void TakeItem(RequestFields& item, Json& messages) {
  const std::string type = item.Text("type");
  item.PassOver("id");
  item.PassOver("status");
  item.PassOver("phase");  // of an answer that is sent back
  if (type.empty() || type == "message") {
    const std::string role = item.Text("role");
    static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant"};
    if (!kRoles.contains(role))
      item.Refuse("role", "system, developer, user or assistant is expected, found '" + role + "'");
    messages.push_back({{"role", role == "developer" ? "system" : role},
                        {"content", TextOf(item, "content", {"input_text", "output_text", "text"})}});
  } else if (type == "function_call") {
    const std::string id = item.Text("call_id"), name = item.Text("name"), text = item.Text("arguments");
    const auto arguments = ReadObject(text.empty() ? "{}" : text, "a JSON object as a text is expected");
    if (!arguments.ok()) return item.Refuse("arguments", arguments.status().message());
    AddCall(messages, Call(id, name, *arguments));
  } else if (type == "function_call_output") {
    const std::string id = item.Text("call_id");
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", TextOf(item, "output", {"input_text"})}});
  } else {
    item.Refuse("type", "message, function_call or function_call_output is expected, found '" + type + "'");
  }
  item.Finish();
}

}  // namespace

void ReadResponses(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  TakeModelName(fields, model);
  TakeDrawing(fields, model, &asked->turn);
  asked->style.stream = fields.Flag("stream");
  const auto max_tokens = TakeMaxTokens(fields, "max_output_tokens", model);
  fields.Only("store", {false}, kOwnContext);
  fields.Only("previous_response_id", {}, kOwnContext);
  fields.Only("conversation", {}, kOwnContext);
  fields.Only("background", {false}, kOwnContext);
  fields.Only("include", {Json::array()}, "an answer has what is in docs/serving.md");
  fields.Only("truncation", {"disabled"}, "a conversation that is too long is refused");
  fields.Only("text", {Json::object(), Json::object({{"format", Json::object({{"type", "text"}})}})},
              "the engine does not hold answers to a form");
  fields.Only("reasoning", {Json::object()},
              "say it by the chat template: POST /v1/chat/completions, chat_template_kwargs");
  fields.Only("top_logprobs", {0}, "the engine has log-probabilities of the tokens that it draws");
  fields.Only("parallel_tool_calls", {true}, "the model calls as many as it likes");
  fields.Only("service_tier", {"auto", "default"}, "there is one tier");
  fields.Only("stream_options", {Json::object(), Json::object({{"include_obfuscation", false}})},
              "pieces are as they are");
  for (const char* name : {"user", "metadata", "safety_identifier", "prompt_cache_key"})
    fields.PassOver(name);
  text::ChatOptions options;
  TakeNamedTools(fields, model, "parameters", asked, &options.tools);
  if (const Json* choice = fields.Take("tool_choice")) {
    if (*choice != "none" && *choice != "auto")
      fields.Refuse("tool_choice", "none or auto is expected: the engine cannot force a call");
    if (*choice == "none") NoTools(asked, &options.tools);
  }
  Json messages = Json::array();
  if (const std::string system = fields.Text("instructions"); !system.empty())
    messages.push_back({{"role", "system"}, {"content", system}});
  const Json* input = fields.Take("input");
  if (input == nullptr) return fields.Refuse("input", "is missing");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (!input->is_array() || input->empty()) {
    return fields.Refuse("input", "a text or a list of items is expected");
  }
  const size_t items = input->is_array() ? input->size() : 0;
  if (!MayAskTemplate(fields, "input", model, items)) return;
  for (size_t i = 0; i < items && fields.ok(); ++i) {
    RequestFields item = fields.Within((*input)[i], At("input", i));
    TakeItem(item, messages);
  }
  AskTemplate(fields, "input", "max_output_tokens", model, messages, options, max_tokens, asked);
}

// --- POST /v1/messages

namespace {

void TakeBlock(RequestFields& block, const std::string& role, std::string* text, Json& messages) {
  const std::string type = block.Text("type");
  block.PassOver("cache_control");
  if (type == "text") {
    *text += block.Text("text");
    block.PassOver("citations");
  } else if (type == "tool_use" && role == "assistant") {
    const std::string id = block.Text("id"), name = block.Text("name");
    const Json* input = block.Take("input");
    if (input != nullptr && !input->is_object()) return block.Refuse("input", "an object is expected");
    if (!text->empty()) messages.push_back({{"role", role}, {"content", std::exchange(*text, {})}});
    AddCall(messages, Call(id, name, input == nullptr ? Json::object() : *input));
  } else if (type == "tool_result" && role == "user") {
    if (!text->empty()) messages.push_back({{"role", role}, {"content", std::exchange(*text, {})}});
    const std::string id = block.Text("tool_use_id");
    block.PassOver("is_error");  // what went wrong stands in the content
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", id}, {"content", TextOf(block, "content", {"text"})}});
  } else {
    block.Refuse("type", "'" + type + "' is no block of " + (role == "user" ? "a user" : "an assistant") +
                             " that is read here");
  }
  block.Finish();
}

void TakeMessage(RequestFields& message, Json& messages) {
  const std::string role = message.Text("role");
  if (role != "user" && role != "assistant")
    message.Refuse("role", "user or assistant is expected, found '" + role + "'");
  const Json* content = message.Take("content");
  if (content == nullptr || !(content->is_string() || content->is_array()))
    message.Refuse("content", "a text or a list of blocks is expected");
  message.Finish();
  if (!message.ok()) return;
  std::string text = content->is_string() ? content->get<std::string>() : "";
  const size_t blocks = content->is_array() ? content->size() : 0;
  for (size_t i = 0; i < blocks && message.ok(); ++i) {
    RequestFields block = message.Within((*content)[i], At("content", i));
    TakeBlock(block, role, &text, messages);
  }
  if (!text.empty() || content->is_string()) messages.push_back({{"role", role}, {"content", text}});
}

}  // namespace

void ReadMessages(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  TakeModelName(fields, model);
  TakeDrawing(fields, model, &asked->turn);
  asked->style.stream = fields.Flag("stream");
  down::ChunkSampling& sampling = asked->turn.sampling;
  sampling.top_k = fields.Integer("top_k", 0).value_or(0);
  TakeStop(fields, "stop_sequences", model, &sampling);
  const auto max_tokens = TakeMaxTokens(fields, "max_tokens", model);
  if (!max_tokens && !model.trained) fields.Refuse("max_tokens", "is missing");
  fields.Only("thinking", {Json::object({{"type", "disabled"}})},
              "the model thinks as its chat template has it");
  fields.Only("service_tier", {"auto", "standard_only"}, "there is one tier");
  fields.PassOver("metadata");
  text::ChatOptions options;
  TakeNamedTools(fields, model, "input_schema", asked, &options.tools);
  if (const Json* choice = fields.Take("tool_choice")) {
    RequestFields chosen = fields.Within(*choice, "tool_choice");
    const std::string type = chosen.Text("type");
    if (type != "none" && type != "auto")
      chosen.Refuse("type", "none or auto is expected: the engine cannot force a call");
    if (type == "none") NoTools(asked, &options.tools);
    chosen.Only("disable_parallel_tool_use", {false}, "the model calls as many as it likes");
    chosen.Finish();
  }
  Json messages = Json::array();
  if (const std::string system = TextOf(fields, "system", {"text"}); !system.empty())
    messages.push_back({{"role", "system"}, {"content", system}});
  const Json* list = fields.Take("messages");
  if (list == nullptr || !list->is_array() || list->empty())
    return fields.Refuse("messages", "a list with at least one message is expected");
  if (!MayAskTemplate(fields, "messages", model, list->size())) return;
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    RequestFields message = fields.Within((*list)[i], At("messages", i));
    TakeMessage(message, messages);
  }
  AskTemplate(fields, "messages", "max_tokens", model, messages, options, max_tokens, asked);
}

}  // namespace tidepool::workers
