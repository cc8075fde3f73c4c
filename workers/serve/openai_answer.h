#pragma once
// Answers in OpenAI's form, with vLLM's names, from what is heard of a turn: whole, or as the pieces of a
// stream. Pure; not thread-safe. The model outlives it.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "workers/serve/openai_request.h"
#include "workers/serve/served_model.h"
#include "workers/serve/turn.h"

namespace tidepool::workers {

class OpenAiAnswer {
 public:
  // id: 24 letters or so that name the answer.
  OpenAiAnswer(const ServedModel& model, const AskedTurn& asked, const std::string& id, int64_t unix_s);
  ~OpenAiAnswer();
  OpenAiAnswer(OpenAiAnswer&&) noexcept;

  // Before anything else: the pieces that a stream begins with.
  std::vector<nlohmann::ordered_json> Begin();
  // The pieces of a stream that it makes; none where the answer is to be whole.  requires that it is no
  // failure
  std::vector<nlohmann::ordered_json> Add(const TurnDelta& delta);
  [[nodiscard]] bool done() const;  // all choices have ended
  // requires done(): the last pieces of a stream, or the answer.
  std::vector<nlohmann::ordered_json> Last();
  nlohmann::ordered_json Whole();

 private:
  struct Choice;
  struct Part;
  [[nodiscard]] nlohmann::ordered_json Frame(bool piece) const;
  [[nodiscard]] nlohmann::ordered_json Shape(int64_t index, const Part& part, bool piece) const;
  [[nodiscard]] nlohmann::ordered_json LogprobsOf(const Part& part) const;
  [[nodiscard]] nlohmann::ordered_json Usage() const;

  const ServedModel& model_;
  const AnswerStyle style_;
  const std::vector<std::string> stop_;
  const std::vector<int32_t> stop_token_ids_;
  const std::vector<std::vector<int32_t>> prompts_;
  const int64_t samples_;
  const std::string id_;
  const int64_t unix_s_;
  std::vector<Choice> choices_;
  int64_t left_;
};

}  // namespace tidepool::workers
