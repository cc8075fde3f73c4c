#pragma once
// Requests in OpenAI's forms, with vLLM's names where OpenAI has none, and in Anthropic's, to turns. A field
// that the engine has nothing for is refused by its name; docs/serving.md lists them. Pure; any thread.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/text/chat_template.h"
#include "workers/serve/api_error.h"
#include "workers/serve/served_model.h"
#include "workers/serve/turn.h"

namespace tidepool::workers {

enum class AnswerForm {
  kCompletion,  // POST /v1/completions
  kChat,        // POST /v1/chat/completions
  kTokens,      // POST /inference/v1/generate: token in, token out
  kResponses,   // POST /v1/responses
  kMessages,    // POST /v1/messages, Anthropic's
};

// How the answer to a turn is to look.
struct AnswerStyle {
  AnswerForm form = AnswerForm::kChat;
  bool stream = false;
  bool include_usage = false;     // of a stream: a last piece with it
  bool return_token_ids = false;  // and weight_versions
  bool logprobs = false;
  bool echo = false;                // kCompletion: the prompt goes before each answer
  std::string request_id;           // kTokens: that the caller named; empty: none
  std::vector<std::string> tools;   // names that may be called; empty: text is text
  std::vector<std::string> echoed;  // with echo, of each prompt
};

struct AskedTurn {
  Turn turn;
  AnswerStyle style;
  // What the prompt is of: messages as chat templates read them, and what else the template sees; of a
  // completion null, and the text of its prompt, where that is one.
  nlohmann::ordered_json messages = nullptr;
  text::ChatOptions chat = {};
  std::string text = {};
};

// body: the request's. 400: which field is wrong and why; 404: another model.
std::variant<AskedTurn, ApiError> ReadRequest(AnswerForm form, std::string_view body,
                                              const ServedModel& model);

}  // namespace tidepool::workers
