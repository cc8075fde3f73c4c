#pragma once
// Answers of /v1/responses and /v1/messages: a list of blocks, each a text or a call.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "workers/serve/answer_writer.h"
#include "workers/serve/choice_reader.h"

namespace tidepool::workers {

// The blocks, and when each begins, grows and ends; what is said of it is its form's.
class BlockAnswer : public AnswerWriter {
 public:
  BlockAnswer(const ServedModel& model, const AskedTurn& asked, const std::string& id, int64_t unix_s);
  std::vector<AnswerEvent> Begin() override;
  std::vector<AnswerEvent> Add(const TurnDelta& delta) override;
  [[nodiscard]] bool done() const override { return end_ != TurnEnd::kNone; }
  std::vector<AnswerEvent> Last() override;

 protected:
  using Json = nlohmann::ordered_json;
  struct Block {
    std::string text;  // of a call: its arguments
    std::optional<text::ToolCall> call = std::nullopt;
  };
  virtual void SayBegin() = 0;
  virtual void SayBlock(size_t index) = 0;                          // it begins
  virtual void SayMore(size_t index, const std::string& text) = 0;  // it has this more
  virtual void SayBlockEnd(size_t index) = 0;
  virtual void SayEnd() = 0;
  void Say(const std::string& type, Json fields);
  [[nodiscard]] std::string NameOf(const char* prefix, size_t index) const;
  [[nodiscard]] bool called() const;

  const ServedModel& model_;
  const std::string id_;
  const int64_t unix_s_, prompt_tokens_;
  std::vector<Block> blocks_;
  int64_t tokens_ = 0;
  TurnEnd end_ = TurnEnd::kNone;
  Json stop_reason_;

 private:
  void EndBlock();

  const bool stream_;
  ChoiceReader reader_;
  bool open_ = false;  // the last block goes on
  std::vector<AnswerEvent> said_;
};

// OpenAI's responses.
class ResponsesAnswer : public BlockAnswer {
 public:
  using BlockAnswer::BlockAnswer;
  nlohmann::ordered_json Whole() override;

 protected:
  void SayBegin() override;
  void SayBlock(size_t index) override;
  void SayMore(size_t index, const std::string& text) override;
  void SayBlockEnd(size_t index) override;
  void SayEnd() override;

 private:
  void SayNumbered(const std::string& type, Json fields);
  [[nodiscard]] Json Item(size_t index, bool whole) const;
  [[nodiscard]] Json Response(bool whole) const;
  int64_t sequence_ = 0;
};

// Anthropic's messages.
class MessagesAnswer : public BlockAnswer {
 public:
  using BlockAnswer::BlockAnswer;
  nlohmann::ordered_json Whole() override;

 protected:
  void SayBegin() override;
  void SayBlock(size_t index) override;
  void SayMore(size_t index, const std::string& text) override;
  void SayBlockEnd(size_t index) override;
  void SayEnd() override;

 private:
  [[nodiscard]] Json Message(bool whole) const;
  [[nodiscard]] Json Content(size_t index, bool whole) const;
};

}  // namespace tidepool::workers
