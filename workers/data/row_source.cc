#include "workers/data/row_source.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/hash.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

// "2024-07-26" -> seconds since 1970 at its start, UTC.
StatusOr<int64_t> DayStart(const std::string& date) {
  int year = 0;
  unsigned month = 0, day = 0;
  char rest = 0;
  const bool read =
      date.size() == 10 && std::sscanf(date.c_str(), "%4d-%2u-%2u%c", &year, &month, &day, &rest) == 3;
  const std::chrono::year_month_day ymd{std::chrono::year(year), std::chrono::month(month),
                                        std::chrono::day(day)};
  if (!read || !ymd.ok())
    return InvalidArgument("data.template_date: found '" + date + "', expected a day as YYYY-MM-DD");
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::sys_days(ymd).time_since_epoch())
      .count();
}

constexpr const char* kMicroBatch = "train.micro_batch_tokens";

// `what` has so many tokens, and `key` allows so many.
Status Fits(const std::string& what, size_t tokens, const std::string& key, int64_t most) {
  if (static_cast<int64_t>(tokens) <= most) return OkStatus();
  return InvalidArgument("the " + what + " has " + std::to_string(tokens) + " tokens, more than " + key +
                         " " + std::to_string(most));
}

}  // namespace

StatusOr<std::unique_ptr<RowSource>> RowSource::Create(const JobConfig& config,
                                                       const std::string& model_dir) {
  std::unique_ptr<RowSource> source(new RowSource());
  source->sft_ = config.kind() == JobKind::kSft || config.kind() == JobKind::kDistill;
  source->pairs_ = TrainsOnPairs(config);
  TP_ASSIGN_OR_RETURN(source->template_time_s_, DayStart(config.data.template_date));
  source->max_prompt_tokens_ = config.data.max_prompt_tokens;
  source->max_row_tokens_ = config.train.micro_batch_tokens;
  if (config.model.init) source->max_positions_ = config.model.init->max_position;
  // A default max_prompt_tokens is what the tightest of these leaves (core/config/across_keys.cc): that is to
  // be raised.
  for (const auto& [key, tokens] : {std::pair("train.micro_batch_tokens", config.train.micro_batch_tokens),
                                    std::pair("model.init.max_position", source->max_positions_),
                                    std::pair("rollout.kv_cache_tokens", config.rollout.kv_cache_tokens)}) {
    if (tokens - config.rollout.max_new_tokens != config.data.max_prompt_tokens) continue;
    source->max_prompt_why_ =
        std::string(" (") + key + " = " + std::to_string(tokens) +
        " less rollout.max_new_tokens = " + std::to_string(config.rollout.max_new_tokens) + ")";
    break;
  }
  if (config.model.is_policy()) {
    const EnvironmentConfig& e = *config.environment();
    std::string text = e.name + " " + std::to_string(e.instances) + " " +
                       std::to_string(e.max_episode_steps) + " " + std::to_string(e.held_out) + " " +
                       std::to_string(config.rollout.steps_per_fragment) + " " + std::to_string(config.seed);
    for (const auto& [key, value] : e.options) text += " " + key + "=" + value;
    source->fragments_ = {.size = int64_t{1} << 40,
                          .held_out = e.held_out,
                          .environment = e.name,
                          .identity = Sha256Hex(text).substr(0, 16)};
    return source;
  }
  if (config.environment() != nullptr) {
    TP_ASSIGN_OR_RETURN(environments::EpisodeSource episodes, environments::EpisodeSource::Create(config));
    source->episodes_ = std::move(episodes);
  } else {
    TP_ASSIGN_OR_RETURN(tasks::DataSource data,
                        tasks::DataSource::Create(config.data, config.seed, config.kind()));
    source->data_ = std::make_unique<tasks::DataSource>(std::move(data));
  }
  TP_ASSIGN_OR_RETURN(source->tokenizer_, text::Tokenizer::Load(model_dir));
  auto chat = text::ChatTemplate::Load(model_dir);
  if (chat.ok()) {
    source->template_ = std::move(*chat);
  } else if (chat.status().code() != StatusCode::kNotFound) {
    return chat.status();
  }
  TP_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, EndTokens(model_dir));
  if (ends.empty()) {
    return InvalidArgument(
        model_dir + ": neither generation_config.json nor config.json names an end token (eos_token_id)");
  }
  source->end_token_ = ends.front();
  source->end_tokens_ = ends;
  if (source->episodes_ && source->template_ != nullptr) TP_RETURN_IF_ERROR(source->LearnTurns());
  return source;
}

bool RowSource::IsEnd(int32_t id) const { return std::ranges::find(end_tokens_, id) != end_tokens_.end(); }

// What the template writes between two turns is read off a conversation whose words are known.
Status RowSource::LearnTurns() {
  const std::string reply = "TIDEPOOL-REPLY", words = "TIDEPOOL-OBSERVATION";
  const nlohmann::ordered_json list = {{{"role", "user"}, {"content", "TIDEPOOL-QUESTION"}},
                                       {{"role", "assistant"}, {"content", reply}},
                                       {{"role", "user"}, {"content", words}}};
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.unix_time_s = template_time_s_;
  TP_ASSIGN_OR_RETURN(const std::string rendered, template_->Render(list, options));
  const size_t said = rendered.rfind(reply), heard = rendered.rfind(words);
  if (said == std::string::npos || heard == std::string::npos || heard < said) {
    return InvalidArgument(
        "the model's chat template does not show a conversation turn by turn, so an environment cannot speak "
        "after the model");
  }
  before_turn_ = rendered.substr(said + reply.size(), heard - said - reply.size());
  after_turn_ = rendered.substr(heard + words.size());
  // The model says its end token itself.
  for (const int32_t end : end_tokens_) {
    const std::vector<int32_t> one{end};
    const std::string text = tokenizer_->Decode(one, /*skip_special=*/false);
    if (!text.empty() && before_turn_.compare(0, text.size(), text) == 0) {
      before_turn_.erase(0, text.size());
      return OkStatus();
    }
  }
  return InvalidArgument(
      "the model's chat template does not close the model's turns with an end token of the model, so turns "
      "cannot be told apart");
}

StatusOr<std::vector<int32_t>> RowSource::EncodeObservation(const std::string& text, bool ended) const {
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      tokenizer_->Encode(before_turn_ + text + after_turn_, {.add_special = false}));
  if (!ended) ids.insert(ids.begin(), end_token_);
  return ids;
}

StatusOr<std::vector<int32_t>> RowSource::EncodeMessages(const std::vector<tasks::Message>& messages) const {
  if (template_ == nullptr) {
    return InvalidArgument(
        "the row has messages, but the model's folder has no chat template; use `prompt` rows or add "
        "chat_template.jinja");
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const auto& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.unix_time_s = template_time_s_;
  TP_ASSIGN_OR_RETURN(const std::string rendered, template_->Render(list, options));
  // A rendered chat carries its own special tokens; adding them again would give two begins of text.
  return tokenizer_->Encode(rendered, {.add_special = false});
}

StatusOr<std::vector<int32_t>> RowSource::EncodePrompt(const std::string& prompt) const {
  if (template_ != nullptr) return EncodeMessages({{"user", prompt}});
  return tokenizer_->Encode(prompt, {.add_special = true});
}

Status RowSource::CheckRows() const {
  const int64_t tried = std::min<int64_t>(size(), 256);
  Status why;
  for (int64_t i = 0; i < tried; ++i) {
    why = Row(size() / tried * i).status();
    if (why.ok()) return why;
  }
  return why.ok() ? why
                  : InvalidArgument("no row of the data can be used; the last one tried: " + why.message());
}

StatusOr<EncodedRow> RowSource::Row(int64_t ordinal) const {
  if (fragments_) return Fragment("fragment", ordinal);
  return episodes_ ? EncodeGame({ordinal, 0, SampleId::kRowSample}) : Encode(data_->Row(ordinal));
}
StatusOr<EncodedRow> RowSource::HeldOut(int64_t index) const {
  if (fragments_) return Fragment("episode", index);
  return episodes_ ? EncodeGame({index, 0, SampleId::kEvalSample}) : Encode(data_->HeldOut(index));
}

EncodedRow RowSource::Fragment(const char* what, int64_t number) const {
  EncodedRow row;
  row.question.prompt = fragments_->environment + " " + what + " " + std::to_string(number);
  return row;
}

StatusOr<EncodedRow> RowSource::EncodeGame(const SampleId& tid) const {
  const std::unique_ptr<environments::TextGame> game = episodes_->Game(tid);
  tasks::Question question;
  question.prompt = game->Reset();
  TP_ASSIGN_OR_RETURN(EncodedRow row, Encode(std::move(question)));
  row.state = environments::StateHash(*game);
  return row;
}

StatusOr<EncodedRow> RowSource::Encode(tasks::Question question) const {
  if (sft_ && !question.messages.empty()) return EncodeConversation(std::move(question));
  EncodedRow row;
  TP_ASSIGN_OR_RETURN(row.prompt, question.messages.empty() ? EncodePrompt(question.prompt)
                                                            : EncodeMessages(question.messages));
  if (row.prompt.empty()) return InvalidArgument("the prompt has no tokens");
  if (static_cast<int64_t>(row.prompt.size()) > max_prompt_tokens_) {
    return InvalidArgument("the prompt has " + std::to_string(row.prompt.size()) +
                           " tokens, more than data.max_prompt_tokens = " +
                           std::to_string(max_prompt_tokens_) + max_prompt_why_);
  }
  if (sft_ || pairs_) {
    TP_ASSIGN_OR_RETURN(row.response, EncodeAnswer(row, question.answer, pairs_ ? "chosen" : "answer"));
    row.loss_mask.assign(row.response.size(), 1);
  }
  if (pairs_) {
    TP_ASSIGN_OR_RETURN(row.rejected, EncodeAnswer(row, question.fields["rejected"], "rejected"));
    TP_RETURN_IF_ERROR(Fits("pair", 2 * row.prompt.size() + row.response.size() + row.rejected.size(),
                            kMicroBatch, max_row_tokens_));
    if (row.response == row.rejected) return InvalidArgument("chosen and rejected are the same");
  }
  row.question = std::move(question);
  return row;
}

StatusOr<std::vector<int32_t>> RowSource::EncodeAnswer(const EncodedRow& row, const std::string& answer,
                                                       const char* field) const {
  if (answer.empty()) return InvalidArgument("the row has no " + std::string(field) + " to learn from");
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer_->Encode(answer, {.add_special = false}));
  ids.push_back(end_token_);
  const size_t tokens = row.prompt.size() + ids.size();
  TP_RETURN_IF_ERROR(Fits("row", tokens, "model.init.max_position", max_positions_));
  TP_RETURN_IF_ERROR(Fits("row", tokens, kMicroBatch, max_row_tokens_));
  return ids;
}

// The conversation is rendered turn by turn; what an assistant turn adds to the text has loss.
StatusOr<EncodedRow> RowSource::EncodeConversation(tasks::Question question) const {
  if (template_ == nullptr) {
    return InvalidArgument(
        "the row has messages, but the model's folder has no chat template; use prompt and answer, or add "
        "chat_template.jinja");
  }
  EncodedRow row;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  std::string done;
  // What the turns so far say that was not said before.
  const auto more = [&](bool ask) -> StatusOr<std::vector<int32_t>> {
    TP_ASSIGN_OR_RETURN(std::string now, template_->Render(list, {.add_generation_prompt = ask,
                                                                  .unix_time_s = template_time_s_}));
    if (!now.starts_with(done)) {
      return InvalidArgument(
          "the chat template rewrites earlier turns, so a conversation cannot be cut into turns to learn");
    }
    const std::string fresh = now.substr(done.size());
    done = std::move(now);
    return tokenizer_->Encode(fresh, {.add_special = false});
  };
  bool first = true;
  for (const auto& m : question.messages) {
    const bool assistant = m.role == "assistant";
    if (assistant) {
      TP_ASSIGN_OR_RETURN(const std::vector<int32_t> context, more(/*ask=*/true));
      std::vector<int32_t>& into = std::exchange(first, false) ? row.prompt : row.response;
      into.insert(into.end(), context.begin(), context.end());
      row.loss_mask.resize(row.response.size(), 0);
    }
    list.push_back({{"role", m.role}, {"content", m.content}});
    if (assistant) {
      TP_ASSIGN_OR_RETURN(const std::vector<int32_t> turn, more(/*ask=*/false));
      row.response.insert(row.response.end(), turn.begin(), turn.end());
      row.loss_mask.resize(row.response.size(), 1);
    }
  }
  if (row.response.empty()) return InvalidArgument("the conversation has no assistant turn to learn");
  TP_RETURN_IF_ERROR(
      Fits("conversation", row.prompt.size() + row.response.size(), kMicroBatch, max_row_tokens_));
  row.question = std::move(question);
  return row;
}

std::string RowSource::ResponseText(const std::vector<int32_t>& ids) const {
  return tokenizer_ == nullptr ? "" : tokenizer_->Decode(ids, /*skip_special=*/true);
}

}  // namespace tidepool::workers
