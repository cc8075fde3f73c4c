#pragma once
// Answers of completions, chats and token in, token out: OpenAI's forms, with vLLM's names.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workers/serve/answer_writer.h"

namespace tidepool::workers {

class OpenAiAnswer : public AnswerWriter {
 public:
  OpenAiAnswer(const ServedModel& model, const AskedTurn& asked, const std::string& id, int64_t unix_s);
  ~OpenAiAnswer() override;

  std::vector<AnswerEvent> Begin() override;
  std::vector<AnswerEvent> Add(const TurnDelta& delta) override;
  [[nodiscard]] bool done() const override;
  std::vector<AnswerEvent> Last() override;
  nlohmann::ordered_json Whole() override;

 private:
  struct Choice;
  struct Part;
  [[nodiscard]] nlohmann::ordered_json Frame(bool piece) const;
  [[nodiscard]] nlohmann::ordered_json Shape(int64_t index, const Part& part, bool piece) const;
  [[nodiscard]] nlohmann::ordered_json LogprobsOf(const Part& part) const;
  [[nodiscard]] nlohmann::ordered_json Usage() const;

  const ServedModel& model_;
  const AnswerStyle style_;
  const std::vector<std::vector<int32_t>> prompts_;
  const int64_t samples_;
  const std::string id_;
  const int64_t unix_s_;
  std::vector<Choice> choices_;
  int64_t left_;
};

}  // namespace tidepool::workers
