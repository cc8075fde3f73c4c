#pragma once
// Rows of data as token ids: questions from core/tasks, rendered and tokenised with the model's own
// template and tokenizer. Token ids are the record from here on; text is derived. Immutable after
// creation; any thread.

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/environments/episode.h"
#include "core/tasks/data_source.h"
#include "core/tasks/reward.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "core/text/tool_calls.h"

namespace tidepool::workers {

struct EncodedRow {
  tasks::Question question;
  std::vector<int32_t> prompt;
  std::vector<int32_t> response;       // not in rl: what is learned, its end token included
  std::vector<uint8_t> loss_mask;      // of the response: 1 on tokens with loss; empty: on all
  uint64_t state = 0;                  // episodes: that the first turn acts in
  std::vector<int32_t> rejected;       // pairs only: the other answer; `response` is the chosen one
  std::vector<uint8_t> rejected_mask;  // as loss_mask
  tasks::RowOrigin origin;             // of a row of data
};

class RowSource {
 public:
  // `model_dir`: Hugging Face folder with the tokenizer. Errors name file and key.
  static StatusOr<std::unique_ptr<RowSource>> Create(const JobConfig& config, const std::string& model_dir);
  // The text side of a model folder, without any data. `template_date`: data.template_date
  static StatusOr<std::unique_ptr<RowSource>> OfFolder(const std::string& model_dir,
                                                       const std::string& template_date);

  // The questions of a job with data; a job with an environment has none, but those that rollout.endpoint
  // hands out.
  [[nodiscard]] const tasks::DataSource& data() const { return *data_; }
  // Of either: rows of an epoch, held-out ones, what a resumed run has to have again.
  [[nodiscard]] int64_t size() const {
    return fragments_ ? fragments_->size : episodes_ ? episodes_->size() : data_->size();
  }
  [[nodiscard]] int64_t held_out_size() const {
    return fragments_  ? fragments_->held_out
           : episodes_ ? episodes_->held_out_size()
                       : data_->held_out_size();
  }
  [[nodiscard]] const std::string& identity() const {
    return fragments_                      ? fragments_->identity
           : episodes_ && data_ == nullptr ? episodes_->identity()
                                           : data_->identity();
  }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] bool is_chat() const { return template_ != nullptr; }

  // Some row can be used. kInvalidArgument: of a few hundred, from all over the data, none can.
  [[nodiscard]] Status CheckRows() const;
  // No row has a character that the tokenizer has no token for; it would be lost. kInvalidArgument: the first
  // of them, by their places. Rows are tokenised for it only where a tokenizer can lose any.
  [[nodiscard]] Status CheckCharacters() const;
  // A generated response to a held-out row can be compared with something: not where all of them are
  // conversations or texts to be learned.
  [[nodiscard]] bool HasAnswers() const;
  // kInvalidArgument: the row is bad (too long, empty, no answer for sft); the message begins with its place.
  StatusOr<EncodedRow> Row(int64_t ordinal) const { return Checked({ordinal, false}); }
  StatusOr<EncodedRow> HeldOut(int64_t index) const { return Checked({index, true}); }
  // The two halves of these: a row's tokens, however many they are, and whether model and config take them.
  struct Which {
    int64_t number = 0;  // ordinal, or index of held-out ones
    bool held_out = false;
  };
  // kNotFound: a character has no token.
  [[nodiscard]] StatusOr<EncodedRow> Tokens(const Which& which) const;
  [[nodiscard]] Status CheckFits(const EncodedRow& row) const;
  // A question that comes from elsewhere, both halves.
  StatusOr<EncodedRow> Encode(tasks::Question question) const;
  // The same, tokenised by whoever has it.
  StatusOr<EncodedRow> Encoded(tasks::Question question, std::vector<int32_t> prompt) const;
  // kInvalidArgument: an id is outside the vocabulary.
  StatusOr<std::vector<int32_t>> CheckedIds(std::vector<int32_t> ids) const;
  // "FILE:LINE", "TASK, question N" or "ENVIRONMENT, episode N".
  [[nodiscard]] std::string Place(const Which& which) const;
  // Ids of a prompt: rendered as one user message where the model has a chat template, else the text
  // itself with the tokenizer's special tokens.
  StatusOr<std::vector<int32_t>> EncodePrompt(const std::string& prompt) const;
  StatusOr<std::vector<int32_t>> EncodeMessages(const std::vector<tasks::Message>& messages) const;
  // Ids of a text as it stands. kNotFound: a character has no token.  `special`: with those around a text
  [[nodiscard]] StatusOr<std::vector<int32_t>> EncodeText(const std::string& text, bool special) const;
  // With a space in each special token that is written in `text`: who wrote it does not end a turn, or begin
  // one.
  [[nodiscard]] std::string WithoutSpecialTokens(std::string text) const;
  // Question and response in this model's own tokens, special tokens that are written in them broken, as an
  // answer of a pair stands in `job: reward_model`: the end token behind it, where it ended by itself.
  // kInvalidArgument: more than one message, and no chat template; an id outside the vocabulary. kNotFound: a
  // character has no token.
  [[nodiscard]] StatusOr<std::vector<int32_t>> EncodeAnswered(const tasks::RewardInput& input) const;
  // Text of a response, special tokens left out.
  [[nodiscard]] std::string ResponseText(const std::vector<int32_t>& ids) const;
  // Text that the model read: special tokens as they are written.
  [[nodiscard]] std::string PromptText(const std::vector<int32_t>& ids) const;
  // What an environment said: what EncodeObservation made ids of.
  [[nodiscard]] std::string ObservationText(const std::vector<int32_t>& ids) const;
  // The conversation that a response to this row answers.
  [[nodiscard]] std::vector<tasks::Message> Conversation(const EncodedRow& row) const;
  // What a grader sees of a response to this row.  `ended`: by itself
  [[nodiscard]] tasks::RewardInput InputOf(const SampleId& tid, const EncodedRow& row,
                                           const std::vector<int32_t>& ids, bool ended) const;
  [[nodiscard]] int32_t end_token() const { return end_token_; }
  [[nodiscard]] bool IsEnd(int32_t id) const;
  // What an environment says: a text, or messages (environments::TextStep).
  struct Heard {
    const std::string& text;
    bool conversation = false;
  };
  // Its first words as a row: a text as any prompt, messages with their tools. Both halves.
  [[nodiscard]] StatusOr<EncodedRow> EncodeFirst(const Heard& heard) const;
  // Ids that an environment's words add to a record: where the model has a chat template as the next user
  // message, or as the messages that they are, up to where the model speaks again, else the text itself.
  // `ended`: the policy closed its turn with an end token; else one is put before. kInvalidArgument: the
  // template cannot be cut between turns, or refuses the messages.
  [[nodiscard]] StatusOr<std::vector<int32_t>> EncodeObservation(const Heard& heard, bool ended) const;
  // That the model of a job with an environment writes calls of tools in: its template's. One that shows
  // none, or takes no results in a row, has them as a text that asks for the tagged form, and results as a
  // user's.
  [[nodiscard]] text::ToolFormat tool_format() const {
    return shown_tools_ == text::ToolFormat::kNone ? text::ToolFormat::kTagged : shown_tools_;
  }

 private:
  RowSource() = default;
  [[nodiscard]] EncodedRow Fragment(const char* what, int64_t number) const;
  StatusOr<EncodedRow> Checked(const Which& which) const;
  StatusOr<EncodedRow> EncodeGame(const SampleId& tid) const;
  StatusOr<EncodedRow> TokensOf(tasks::Question question) const;
  StatusOr<EncodedRow> EncodeConversation(const std::vector<tasks::Message>& messages,
                                          int64_t learned_from) const;
  StatusOr<EncodedRow> EncodePair(const tasks::Question& question) const;
  StatusOr<EncodedRow> EncodeWholeText(tasks::Question question) const;
  Status LearnTurns();
  // Messages and tools as the model's template takes them. kInvalidArgument: it is no conversation.
  [[nodiscard]] StatusOr<nlohmann::ordered_json> ReadConversation(const std::string& json) const;
  // What the template writes behind the end token of a model's turn when these messages come.
  [[nodiscard]] StatusOr<std::string> AfterTurn(const nlohmann::ordered_json& messages,
                                                const nlohmann::ordered_json& tools) const;
  [[nodiscard]] std::string TextOf(const tasks::Question& question) const;

  StatusOr<std::vector<int32_t>> EncodeAnswer(const std::string& answer, const char* field) const;

  bool sft_ = false;     // rows have one answer: sft, distill
  bool pairs_ = false;   // dpo, reward_model
  bool scores_ = false;  // reward_model alone
  int64_t max_prompt_tokens_ = 0;
  int64_t max_new_tokens_ = 0;
  std::string max_prompt_why_;  // where it comes from, where it was not written
  int64_t max_row_tokens_ = 0;
  int64_t max_positions_ = int64_t{1} << 40;
  std::string positions_key_;  // what says so
  int64_t vocab_ = int64_t{1} << 40;
  std::string characters_;  // what it knows, for messages
  int32_t end_token_ = -1;
  std::vector<int32_t> end_tokens_;
  std::optional<environments::EpisodeSource> episodes_;
  std::string environment_;     // their name
  double reset_timeout_s_ = 0;  // of theirs
  // A control task: rows are fragments to be played, without words (workers/controller/fragments.h).
  struct FragmentRows {
    int64_t size = 0, held_out = 0;
    std::string environment, identity;
  };
  std::optional<FragmentRows> fragments_;
  std::string before_turn_,
      after_turn_;  // what a chat template writes around a later user message, after the end token
  text::ToolFormat shown_tools_ = text::ToolFormat::kNone;
  bool takes_system_ = true;     // the template shows a system message
  int64_t template_time_s_ = 0;  // data.template_date
  std::unique_ptr<tasks::DataSource> data_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
};

}  // namespace tidepool::workers
