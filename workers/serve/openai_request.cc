#include "workers/serve/openai_request.h"

#include <algorithm>
#include <set>
#include <utility>

#include "workers/serve/request_reading.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

// --- how tokens are drawn

// What all forms have. max_tokens is taken by the caller.
void TakeSampling(RequestFields& fields, const ServedModel& model, Turn* turn) {
  down::ChunkSampling& s = turn->sampling;
  TakeDrawing(fields, model, turn);
  s.top_k = std::max<int64_t>(fields.Integer("top_k", -1).value_or(0), 0);  // -1 and 0: off
  s.min_p = fields.Number("min_p", 0, 1).value_or(0);
  if (static_cast<float>(s.min_p) >= 1)
    fields.Refuse("min_p", "a number from 0, below 1 is expected, found 1");
  turn->seed = fields.Integer("seed");
  turn->samples = fields.Integer("n", 1, kChoicesMost).value_or(1);
  TakeStop(fields, "stop", model, &s);
  s.stop_token_ids = fields.Ids("stop_token_ids", model.vocab_size);
  if (static_cast<int64_t>(s.stop_token_ids.size()) > kStopsMost)
    fields.Refuse("stop_token_ids", "at most " + std::to_string(kStopsMost) + " are taken");
  const std::string drawn = "the engine draws tokens by temperature, top_k, top_p and min_p alone";
  fields.Only("presence_penalty", {0}, drawn);
  fields.Only("frequency_penalty", {0}, drawn);
  fields.Only("repetition_penalty", {1}, drawn);
  fields.Only("logit_bias", {Json::object()}, drawn);
  fields.Only("min_tokens", {0}, "an answer ends where the model ends it");
  fields.Only("ignore_eos", {false}, "an answer ends where the model ends it");
  fields.Only("skip_special_tokens", {true}, "texts are without special tokens; token_ids have them");
  fields.Only("spaces_between_special_tokens", {true, false}, "");
  fields.Only("include_stop_str_in_output", {false}, "texts end before a stop string; token_ids have it");
  fields.Only("prompt_logprobs", {0}, "the engine has log-probabilities of the tokens that it draws");
}

constexpr const char* kOwnLogprobs =
    "the engine has the log-probability of the token that it has drawn, and of no other";

// --- what all OpenAI forms have

void TakeCommon(RequestFields& fields, const ServedModel& model, AnswerStyle* style) {
  TakeModelName(fields, model);
  style->stream = fields.Flag("stream");
  if (const Json* options = fields.Take("stream_options")) {
    if (!style->stream) fields.Refuse("stream_options", "is for stream: true");
    RequestFields inner = fields.Within(*options, "stream_options");
    style->include_usage = inner.Flag("include_usage");
    inner.Only("continuous_usage_stats", {false}, "usage comes with the last piece");
    inner.Finish();
  }
}

// Who asks and what for; no part of the answer.
void PassOverNotes(RequestFields& fields) {
  for (const char* name : {"user", "metadata", "safety_identifier", "prompt_cache_key"})
    fields.PassOver(name);
  fields.Only("store", {false}, "answers are not kept");
  fields.Only("service_tier", {"auto", "default"}, "there is one tier");
}

// --- POST /v1/completions

void TakePrompts(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  Turn* turn = &asked->turn;
  AnswerStyle* style = &asked->style;
  const Json* prompt = fields.Take("prompt");
  if (prompt == nullptr) return fields.Refuse("prompt", "is missing");
  if (model.trained) {  // its session tokenises what is new
    if (!prompt->is_string()) return fields.Refuse("prompt", "of a session one text is expected");
    asked->text = prompt->get<std::string>();
    return;
  }
  const bool one =
      prompt->is_string() || (prompt->is_array() && !prompt->empty() && prompt->front().is_number());
  const Json list = one ? Json::array({*prompt}) : *prompt;
  if (!list.is_array() || list.empty())
    return fields.Refuse("prompt", "a text, a list of token ids, or a list of either is expected");
  if (static_cast<int64_t>(list.size()) > kChoicesMost)
    return fields.Refuse("prompt", "at most " + std::to_string(kChoicesMost) + " prompts are taken, found " +
                                       std::to_string(list.size()));
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string name = one ? "prompt" : At("prompt", i);
    std::vector<int32_t> ids;
    if (list[i].is_string()) {
      auto encoded = EncodedPrompt(model, list[i].get_ref<const std::string&>(), /*special=*/true);
      if (!encoded.ok()) return fields.Refuse(name, encoded.status().message());
      ids = *std::move(encoded);
    } else if (const auto wrong = TakeIds(list[i], model.vocab_size, &ids)) {
      return fields.Refuse(name, *wrong);
    }
    if (style->echo)
      style->echoed.push_back(list[i].is_string() ? list[i].get<std::string>()
                                                  : model.tokenizer->Decode(ids, /*skip_special=*/true));
    turn->prompts.push_back(std::move(ids));
  }
}

void ReadCompletion(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  Turn& turn = asked->turn;
  AnswerStyle& style = asked->style;
  TakeCommon(fields, model, &style);
  TakeSampling(fields, model, &turn);
  PassOverNotes(fields);
  style.return_token_ids = fields.Flag("return_token_ids");
  style.logprobs = fields.Take("logprobs") != nullptr;
  fields.Only("logprobs", {0}, kOwnLogprobs);
  style.echo = fields.Flag("echo");
  if (style.echo && style.logprobs) fields.Refuse("echo", "the engine has no log-probabilities of a prompt");
  fields.Only("suffix", {""}, "the model writes what follows a prompt");
  const int64_t n = turn.samples;
  fields.Only("best_of", {n}, "all n answers are returned");
  const auto max_tokens = TakeMaxTokens(fields, "max_tokens", model);
  if (model.trained) fields.Only("echo", {false}, "a session's own words are not repeated");
  if (!fields.ok()) return;
  TakePrompts(fields, model, asked);
  if (model.trained) return;
  CheckRoom(fields, "prompt", "max_tokens", model, max_tokens, kCompletionTokens, &turn);
}

// --- POST /v1/chat/completions

// The text of a message's content: a text, or a list of parts that are texts. Null stays null.
Json ContentOf(RequestFields& fields, const Json* content) {
  if (content == nullptr) return nullptr;
  if (content->is_string()) return *content;
  if (!content->is_array()) {
    fields.Refuse("content", "a text or a list of parts is expected");
    return nullptr;
  }
  std::string text;
  for (size_t i = 0; i < content->size() && fields.ok(); ++i) {
    const Json& part = (*content)[i];
    RequestFields inner = fields.Within(part, At("content", i));
    const std::string type = inner.Text("type");
    if (type != "text") inner.Refuse("type", "text alone is read, found '" + type + "'");
    text += inner.Text("text");
    inner.Finish();
  }
  return text;
}

// Calls that the model made before. Templates write arguments as JSON, clients send that JSON as a text.
Json CallsOf(RequestFields& fields, const Json& calls) {
  Json out = Json::array();
  if (!calls.is_array()) {
    fields.Refuse("tool_calls", "a list is expected");
    return out;
  }
  for (size_t i = 0; i < calls.size() && fields.ok(); ++i) {
    RequestFields call = fields.Within(calls[i], At("tool_calls", i));
    const std::string id = call.Text("id");
    call.Only("type", {"function"}, "tools are functions");
    const Json* function = call.Take("function");
    if (function == nullptr) call.Refuse("function", "is missing");
    call.Finish();
    if (!fields.ok()) break;
    RequestFields named = call.Within(*function, "function");
    const std::string name = named.Text("name");
    const std::string text = named.Text("arguments");
    named.Finish();
    Json arguments = Json::object();
    if (!text.empty()) {
      auto parsed = ReadObject(text, "a JSON object as a text is expected");
      if (!parsed.ok()) named.Refuse("arguments", parsed.status().message());
      if (parsed.ok()) arguments = *std::move(parsed);
    }
    out.push_back({{"id", id},
                   {"type", "function"},
                   {"function", {{"name", name}, {"arguments", std::move(arguments)}}}});
  }
  return out;
}

Json MessageOf(RequestFields& fields) {
  Json out;
  const std::string role = fields.Text("role");
  static const std::set<std::string> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!kRoles.contains(role))
    fields.Refuse("role", "system, developer, user, assistant or tool is expected, found '" + role + "'");
  // OpenAI's newer word for the same; templates know the older one.
  out["role"] = role == "developer" ? "system" : role;
  out["content"] = ContentOf(fields, fields.Take("content"));
  for (const char* name : {"name", "reasoning_content", "tool_call_id"}) {
    if (const std::string text = fields.Text(name); !text.empty()) out[name] = text;
  }
  if (const Json* calls = fields.Take("tool_calls")) {
    if (role != "assistant") fields.Refuse("tool_calls", "are an assistant's");
    Json list = CallsOf(fields, *calls);
    if (!list.empty()) out["tool_calls"] = std::move(list);
  }
  if (out["content"].is_null() && !out.contains("tool_calls")) fields.Refuse("content", "is missing");
  if (out["content"].is_null()) out["content"] = "";
  // What OpenAI's clients send back of an answer.
  fields.Only("refusal", {}, "no model here refuses by a field");
  fields.Only("annotations", {Json::array()}, "messages are texts");
  fields.Only("audio", {}, "messages are texts");
  fields.Only("function_call", {}, "calls are tool_calls");
  fields.Finish();
  return out;
}

void TakeTools(RequestFields& fields, const ServedModel& model, AnswerStyle* style, Json* tools) {
  const Json* list = fields.Take("tools");
  const Json* choice = fields.Take("tool_choice");
  fields.Only("parallel_tool_calls", {true}, "the model calls as many as it likes");
  if (choice != nullptr && *choice != "none" && *choice != "auto")
    return fields.Refuse("tool_choice", "none or auto is expected: the engine cannot force a call");
  if (list == nullptr || (list->is_array() && list->empty())) return;
  if (!list->is_array()) return fields.Refuse("tools", "a list is expected");
  if (model.tools == text::ToolFormat::kNone)
    return fields.Refuse("tools", "the model's chat template shows no form of calls that is read here");
  for (size_t i = 0; i < list->size() && fields.ok(); ++i) {
    RequestFields tool = fields.Within((*list)[i], At("tools", i));
    if (tool.Text("type") != "function") tool.Refuse("type", "function is expected");
    const Json* function = tool.Take("function");
    if (function == nullptr) tool.Refuse("function", "is missing");
    tool.Finish();
    if (!fields.ok()) return;
    RequestFields named = tool.Within(*function, "function");
    const std::string name = named.Text("name");
    if (name.empty()) named.Refuse("name", "is missing");
    (void)named.Text("description");
    if (const Json* parameters = named.Take("parameters"); parameters != nullptr && !parameters->is_object())
      named.Refuse("parameters", "a JSON schema is expected, which is an object");
    named.PassOver("strict");  // the engine does not hold calls to a schema: docs/serving.md says so
    named.Finish();
    style->tools.push_back(name);
  }
  if (choice != nullptr && *choice == "none") {  // as if there were none
    style->tools.clear();
    return;
  }
  *tools = *list;
}

void ReadChat(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  Turn& turn = asked->turn;
  AnswerStyle& style = asked->style;
  TakeCommon(fields, model, &style);
  TakeSampling(fields, model, &turn);
  PassOverNotes(fields);
  style.return_token_ids = fields.Flag("return_token_ids");
  style.logprobs = fields.Flag("logprobs");
  fields.Only("top_logprobs", {0}, kOwnLogprobs);
  fields.Only("response_format", {Json::object({{"type", "text"}})},
              "the engine does not hold answers to a form");
  fields.Only("modalities", {Json::array({"text"})}, "answers are texts");
  fields.Only("echo", {false}, "the prompt is not repeated");
  fields.Only("add_generation_prompt", {true}, "the model answers");
  fields.Only("continue_final_message", {false}, "an answer is a message of its own");
  auto max_tokens = TakeMaxTokens(fields, "max_tokens", model);
  const auto newer = TakeMaxTokens(fields, "max_completion_tokens", model);
  if (max_tokens && newer && *max_tokens != *newer)
    fields.Refuse("max_tokens", "is another than max_completion_tokens");
  if (newer) max_tokens = newer;
  text::ChatOptions options;
  if (const Json* variables = fields.Take("chat_template_kwargs")) {
    if (!variables->is_object()) fields.Refuse("chat_template_kwargs", "an object is expected");
    options.variables = *variables;
  }
  TakeTools(fields, model, &style, &options.tools);
  const Json* messages = fields.Take("messages");
  if (messages == nullptr) return fields.Refuse("messages", "is missing");
  if (!messages->is_array() || messages->empty())
    return fields.Refuse("messages", "a list with at least one message is expected");
  if (!MayAskTemplate(fields, "messages", model, messages->size())) return;
  Json list = Json::array();
  for (size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    RequestFields message = fields.Within((*messages)[i], At("messages", i));
    list.push_back(MessageOf(message));
  }
  AskTemplate(fields, "messages", newer ? "max_completion_tokens" : "max_tokens", model, list, options,
              max_tokens, asked);
}

// --- POST /inference/v1/generate

void ReadTokens(RequestFields& fields, const ServedModel& model, AskedTurn* asked) {
  Turn& turn = asked->turn;
  AnswerStyle& style = asked->style;
  TakeCommon(fields, model, &style);
  style.return_token_ids = true;
  style.request_id = fields.Text("request_id");
  fields.Only("priority", {0}, "requests begin in the order in which they come");
  fields.PassOver("cache_salt");
  turn.prompts.push_back(fields.Ids("token_ids", model.vocab_size));
  const Json* given = fields.Take("sampling_params");
  const Json none = Json::object();
  RequestFields params = fields.Within(given == nullptr ? none : *given, "sampling_params");
  TakeSampling(params, model, &turn);
  style.logprobs = params.Take("logprobs") != nullptr;
  params.Only("logprobs", {0}, kOwnLogprobs);
  params.Only("detokenize", {true, false}, "");
  const auto max_tokens = params.Integer("max_tokens", 1);
  params.Finish();
  CheckRoom(fields, "token_ids", "sampling_params.max_tokens", model, max_tokens, kCompletionTokens, &turn);
}

}  // namespace

std::variant<AskedTurn, ApiError> ReadRequest(AnswerForm form, std::string_view body,
                                              const ServedModel& model) {
  auto json = ReadObject(body, "the body");
  if (!json.ok()) return ApiError{400, json.status().message()};
  AskedTurn asked;
  asked.style.form = form;
  std::optional<ApiError> error;
  RequestFields fields(*json, &error);
  switch (form) {
    case AnswerForm::kCompletion:
      ReadCompletion(fields, model, &asked);
      break;
    case AnswerForm::kChat:
      ReadChat(fields, model, &asked);
      break;
    case AnswerForm::kTokens:
      ReadTokens(fields, model, &asked);
      break;
    case AnswerForm::kResponses:
      ReadResponses(fields, model, &asked);
      break;
    case AnswerForm::kMessages:
      ReadMessages(fields, model, &asked);
      break;
  }
  fields.Finish();
  if (!error) return asked;
  if (error->param == "model" && json->find("model")->is_string())
    error->status = 404;  // one that is not here
  return *error;
}

}  // namespace tidepool::workers
