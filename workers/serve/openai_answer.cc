#include "workers/serve/openai_answer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/utf8.h"
#include "workers/serve/choice_reader.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

// [{"version","start","end"}] of tokens [start, end) of the answer.
Json WeightVersions(const TokenRecord& tokens, int64_t from) {
  Json list = Json::array();
  for (const auto& [version, count] : tokens.versions) {
    list.push_back({{"version", version.number}, {"start", from}, {"end", from + count}});
    from += count;
  }
  return list;
}

}  // namespace

// What is said of a choice at once: a piece, or all of it.
struct OpenAiAnswer::Part {
  std::string text = {};
  std::vector<text::ToolCall> calls = {};
  int64_t first_call = 0;   // calls of the choice that were said before
  int64_t first_token = 0;  // tokens that were said before
  int64_t offset = 0;       // characters of them
  TokenRecord tokens = {};
  TurnEnd end = TurnEnd::kNone;
  Json stop_reason = nullptr;
};

struct OpenAiAnswer::Choice {
  ChoiceReader reader;
  int64_t tokens = 0, calls = 0, offset = 0;
  Part whole = {};  // where the answer is
};

OpenAiAnswer::OpenAiAnswer(const ServedModel& model, const AskedTurn& asked, const std::string& id,
                           int64_t unix_s)
    : model_(model),
      style_(asked.style),
      prompts_(asked.turn.prompts),
      samples_(asked.turn.samples),
      id_(id),
      unix_s_(unix_s),
      left_(asked.turn.choices()) {
  choices_.reserve(static_cast<size_t>(left_));
  for (int64_t i = 0; i < left_; ++i) choices_.push_back({ChoiceReader(model, asked)});
}
OpenAiAnswer::~OpenAiAnswer() = default;

bool OpenAiAnswer::done() const { return left_ == 0; }

Json OpenAiAnswer::Frame(bool piece) const {
  switch (style_.form) {
    case AnswerForm::kTokens:
      return {{"request_id", style_.request_id.empty() ? "gen-" + id_ : style_.request_id}};
    case AnswerForm::kCompletion:
      return {
          {"id", "cmpl-" + id_}, {"object", "text_completion"}, {"created", unix_s_}, {"model", model_.name}};
    default:
      break;
  }
  return {{"id", "chatcmpl-" + id_},
          {"object", piece ? "chat.completion.chunk" : "chat.completion"},
          {"created", unix_s_},
          {"model", model_.name}};
}

Json OpenAiAnswer::LogprobsOf(const Part& part) const {
  const bool lists = style_.form == AnswerForm::kCompletion;
  Json content = Json::array(), tokens = Json::array(), logprobs = Json::array(), offsets = Json::array();
  int64_t offset = part.offset;
  for (size_t i = 0; i < part.tokens.ids.size(); ++i) {
    const std::array<int32_t, 1> id{part.tokens.ids[i]};
    const std::string token = model_.tokenizer->Decode(id);
    if (lists) {
      tokens.push_back(token);
      logprobs.push_back(part.tokens.logprobs[i]);
      offsets.push_back(offset);
      offset += CharacterCount(model_.tokenizer->Decode(id, /*skip_special=*/true));
      continue;
    }
    Json bytes = Json::array();
    for (const char c : model_.tokenizer->TokenBytes(id[0])) bytes.push_back(static_cast<uint8_t>(c));
    content.push_back({{"token", token},
                       {"logprob", part.tokens.logprobs[i]},
                       {"bytes", std::move(bytes)},
                       {"top_logprobs", Json::array()}});
  }
  if (!lists) return {{"content", std::move(content)}, {"refusal", nullptr}};
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", nullptr},
          {"text_offset", std::move(offsets)}};
}

Json OpenAiAnswer::Shape(int64_t index, const Part& part, bool piece) const {
  Json choice = {{"index", index}};
  if (style_.form == AnswerForm::kCompletion) choice["text"] = part.text;
  if (style_.form == AnswerForm::kChat) {
    Json message = Json::object();
    if (!piece) message["role"] = "assistant";
    const bool null = part.text.empty() && !part.calls.empty();
    if (!piece || !part.text.empty()) message["content"] = null ? Json() : Json(part.text);
    if (!piece) message["refusal"] = nullptr;
    Json calls = Json::array();
    for (size_t i = 0; i < part.calls.size(); ++i) {
      const int64_t number = part.first_call + static_cast<int64_t>(i);
      Json call = Json::object();
      if (piece) call["index"] = number;
      call["id"] = "call-" + id_ + "-" + std::to_string(index) + "-" + std::to_string(number);
      call["type"] = "function";
      call["function"] = {{"name", part.calls[i].name}, {"arguments", part.calls[i].arguments}};
      calls.push_back(std::move(call));
    }
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    choice[piece ? "delta" : "message"] = std::move(message);
  }
  choice["logprobs"] = style_.logprobs ? LogprobsOf(part) : Json();
  if (part.end == TurnEnd::kNone) {
    choice["finish_reason"] = nullptr;
  } else {
    const bool called = part.first_call + static_cast<int64_t>(part.calls.size()) > 0;
    choice["finish_reason"] = part.end == TurnEnd::kLength ? "length" : called ? "tool_calls" : "stop";
    choice["stop_reason"] = part.stop_reason;
  }
  if (style_.return_token_ids) {
    choice["token_ids"] = part.tokens.ids;
    choice["weight_versions"] = WeightVersions(part.tokens, part.first_token);
    const bool first = !piece || part.first_token == 0;
    if (style_.form == AnswerForm::kCompletion && first)
      choice["prompt_token_ids"] = prompts_[static_cast<size_t>(index / samples_)];
  }
  return choice;
}

std::vector<AnswerEvent> OpenAiAnswer::Begin() {
  std::vector<AnswerEvent> pieces;
  if (!style_.stream || style_.form == AnswerForm::kTokens) return pieces;
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (style_.form == AnswerForm::kCompletion && !style_.echo) continue;
    Json piece = Frame(true);
    Json choice = {{"index", i}};
    if (style_.form == AnswerForm::kCompletion) {
      choice["text"] = style_.echoed[i / static_cast<size_t>(samples_)];
    } else {
      choice["delta"] = {{"role", "assistant"}, {"content", ""}};
    }
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = nullptr;
    piece["choices"] = Json::array({std::move(choice)});
    if (i == 0 && style_.return_token_ids && style_.form == AnswerForm::kChat)
      piece["prompt_token_ids"] = prompts_[0];
    pieces.push_back({"", Dumped(piece)});
  }
  return pieces;
}

std::vector<AnswerEvent> OpenAiAnswer::Add(const TurnDelta& delta) {
  Choice& choice = choices_[static_cast<size_t>(delta.choice)];
  ChoicePart read = choice.reader.Read(delta);
  Part part{.first_call = choice.calls,
            .first_token = choice.tokens,
            .offset = choice.offset,
            .tokens = std::move(read.tokens),
            .end = read.end,
            .stop_reason = std::move(read.stop_reason)};
  for (text::ToolPiece& piece : read.pieces) {
    if (piece.call) part.calls.push_back(*std::move(piece.call));
    part.text += piece.text;
  }
  if (part.end != TurnEnd::kNone) --left_;
  choice.tokens += delta.tokens.size();
  choice.calls += static_cast<int64_t>(part.calls.size());
  choice.offset += style_.logprobs ? CharacterCount(model_.tokenizer->Decode(delta.tokens.ids, true)) : 0;
  std::vector<AnswerEvent> pieces;
  if (style_.stream) {
    Json piece = Frame(true);
    piece["choices"] = Json::array({Shape(delta.choice, part, true)});
    if (style_.include_usage) piece["usage"] = nullptr;
    pieces.push_back({"", Dumped(piece)});
    return pieces;
  }
  Part& whole = choice.whole;
  whole.text += part.text;
  whole.calls.insert(whole.calls.end(), part.calls.begin(), part.calls.end());
  whole.tokens.Append(part.tokens);
  whole.end = part.end;
  whole.stop_reason = std::move(part.stop_reason);
  return pieces;
}

Json OpenAiAnswer::Usage() const {
  int64_t prompt = 0, answer = 0;
  for (const auto& ids : prompts_) prompt += static_cast<int64_t>(ids.size());
  for (const Choice& choice : choices_) answer += choice.tokens;
  return {{"prompt_tokens", prompt}, {"completion_tokens", answer}, {"total_tokens", prompt + answer}};
}

std::vector<AnswerEvent> OpenAiAnswer::Last() {
  std::vector<AnswerEvent> pieces;
  if (style_.include_usage) {
    Json piece = Frame(true);
    piece["choices"] = Json::array();
    piece["usage"] = Usage();
    pieces.push_back({"", Dumped(piece)});
  }
  pieces.push_back({"", "[DONE]"});
  return pieces;
}

Json OpenAiAnswer::Whole() {
  Json answer = Frame(false);
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    Part& part = choices_[i].whole;
    if (style_.echo) part.text = style_.echoed[i / static_cast<size_t>(samples_)] + part.text;
    choices.push_back(Shape(static_cast<int64_t>(i), part, false));
  }
  answer["choices"] = std::move(choices);
  if (style_.return_token_ids && style_.form == AnswerForm::kChat) answer["prompt_token_ids"] = prompts_[0];
  answer["usage"] = Usage();
  return answer;
}

}  // namespace tidepool::workers
