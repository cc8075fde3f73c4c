#include "workers/serve/request_reading.h"

#include <algorithm>
#include <utility>

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kStopBytesMost = 1024;

constexpr const char* kRunDraws =
    "a run trains on tokens that it draws by its own settings (rollout.*); leave it out";

}  // namespace

void TakeStop(RequestFields& fields, const std::string& name, const ServedModel& model,
              down::ChunkSampling* sampling) {
  if (model.trained) return fields.Only(name, {Json::array()}, kRunDraws);
  const Json* stop = fields.Take(name);
  if (stop == nullptr) return;
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (static_cast<int64_t>(list.size()) > kStopsMost)
    return fields.Refuse(name, "at most " + std::to_string(kStopsMost) + " texts are taken, found " +
                                   std::to_string(list.size()));
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        static_cast<int64_t>(text.get_ref<const std::string&>().size()) > kStopBytesMost)
      return fields.Refuse(name, "texts of 1 to " + std::to_string(kStopBytesMost) + " bytes are expected");
    sampling->stop.push_back(text.get<std::string>());
  }
}

std::optional<int64_t> TakeMaxTokens(RequestFields& fields, const std::string& name,
                                     const ServedModel& model) {
  const auto most = fields.Integer(name, 1);
  if (!model.trained || !most) return most;
  if (*most < model.trained->turn_tokens)
    fields.Refuse(name, "a turn of this run has " + std::to_string(model.trained->turn_tokens) +
                            " tokens at most (environment.max_turn_tokens), found " + std::to_string(*most) +
                            "; set that in the run's config, and leave it out here");
  return std::nullopt;
}

void TakeDrawing(RequestFields& fields, const ServedModel& model, Turn* turn) {
  if (const auto& run = model.trained) {
    fields.Only("temperature", {run->temperature}, kRunDraws);
    fields.Only("top_p", {run->top_p}, kRunDraws);
    fields.Only("top_k", {run->top_k, run->top_k == 0 ? -1 : run->top_k}, kRunDraws);
    fields.Only("min_p", {run->min_p}, kRunDraws);
    fields.Only("seed", {}, kRunDraws);
    fields.Only("n", {1}, "a session is one episode; take another one");
    fields.Only("stop_token_ids", {Json::array()}, kRunDraws);
  }
  down::ChunkSampling& s = turn->sampling;
  s.given = true;
  s.temperature = fields.Number("temperature", 0, kTemperatureMost).value_or(1);
  s.top_p = fields.Number("top_p", 0, 1).value_or(1);
  if (static_cast<float>(s.top_p) <= 0)
    fields.Refuse("top_p", "a number above 0, at most 1 is expected, found 0");
}

void TakeModelName(RequestFields& fields, const ServedModel& model) {
  const std::string name = fields.Text("model");
  if (!name.empty() && name != model.name)
    fields.Refuse("model", "this server has " + model.name + " alone, found " + name);
}

void CheckRoom(RequestFields& fields, const std::string& name, const std::string& max_name,
               const ServedModel& model, std::optional<int64_t> max_tokens, int64_t otherwise, Turn* turn) {
  if (!fields.ok()) return;
  if (turn->choices() > kChoicesMost)
    return fields.Refuse("n", "a request may have " + std::to_string(kChoicesMost) + " answers, found " +
                                  std::to_string(turn->prompts.size()) + " prompts with " +
                                  std::to_string(turn->samples) + " each");
  int64_t longest = 0;
  for (const auto& prompt : turn->prompts) {
    if (prompt.empty()) return fields.Refuse(name, "the prompt has no tokens");
    longest = std::max(longest, static_cast<int64_t>(prompt.size()));
  }
  const int64_t room = model.max_tokens - longest;
  const std::string has = "the prompt has " + std::to_string(longest) + " tokens, and there is room for " +
                          std::to_string(model.max_tokens) + " of prompt and answer together";
  if (room < 1) return fields.Refuse(name, has + "; shorten it");
  if (max_tokens && *max_tokens > room)
    return fields.Refuse(max_name, has + "; ask for " + std::to_string(room) + " new tokens at most, found " +
                                       std::to_string(*max_tokens));
  turn->max_new_tokens = max_tokens.value_or(otherwise > 0 ? std::min(otherwise, room) : room);
}

StatusOr<std::vector<int32_t>> EncodedPrompt(const ServedModel& model, const std::string& text,
                                             bool special) {
  // A token has at least a byte of its text, but for those that are put around it.
  constexpr size_t kLongestToken = 1024;
  if (text.size() > static_cast<size_t>(model.max_tokens) * kLongestToken)
    return InvalidArgument("a text of " + std::to_string(text.size()) +
                           " bytes is more than the model reads");
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, model.tokenizer->Encode(text, {.add_special = special}));
  const auto most = std::ranges::max_element(ids);
  if (most != ids.end() && *most >= model.vocab_size)
    return InvalidArgument("token id " + std::to_string(*most) + " is outside the model's vocabulary of " +
                           std::to_string(model.vocab_size) + "; the tokenizer is not this model's");
  return ids;
}

bool MayAskTemplate(RequestFields& fields, const std::string& name, const ServedModel& model,
                    size_t messages) {
  if (static_cast<int64_t>(messages) > model.max_tokens)
    fields.Refuse(name, std::to_string(messages) + " messages are more than the " +
                            std::to_string(model.max_tokens) + " tokens that there is room for");
  if (model.template_text == nullptr)
    fields.Refuse(name, "the model has no chat template; POST /v1/completions takes a prompt");
  return fields.ok();
}

void AskTemplate(RequestFields& fields, const std::string& name, const std::string& max_name,
                 const ServedModel& model, const Json& messages, text::ChatOptions options,
                 std::optional<int64_t> max_tokens, AskedTurn* asked) {
  if (!fields.ok()) return;
  asked->messages = messages;
  asked->chat = options;
  if (model.trained) return;  // its session renders what is new
  options.add_generation_prompt = true;
  options.unix_time_s = model.created_unix_s;
  const auto text = model.template_text->Render(messages, options);
  if (!text.ok()) return fields.Refuse(name, "the model's chat template: " + text.status().message());
  // A rendered chat carries its own special tokens.
  auto ids = EncodedPrompt(model, *text, /*special=*/false);
  if (!ids.ok()) return fields.Refuse(name, ids.status().message());
  asked->turn.prompts.push_back(*std::move(ids));
  CheckRoom(fields, name, max_name, model, max_tokens, 0, &asked->turn);
}

}  // namespace tidepool::workers
