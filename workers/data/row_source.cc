#include "workers/data/row_source.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <utility>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/base/limited_call.h"
#include "core/base/names.h"
#include "core/base/utf8.h"
#include "core/model/hugging_face.h"
#include "workers/data/model_folder.h"
#include "workers/data/turn_text.h"

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

// `what` has so many tokens, and `key` allows so many. `why` it does.
Status Fits(const std::string& what, size_t tokens, const std::string& key, int64_t most,
            const std::string& why = "") {
  if (static_cast<int64_t>(tokens) <= most) return OkStatus();
  return InvalidArgument("the " + what + " has " + std::to_string(tokens) + " tokens, more than " + key +
                         " = " + std::to_string(most) + why);
}

}  // namespace

StatusOr<std::unique_ptr<RowSource>> RowSource::OfFolder(const std::string& model_dir,
                                                         const std::string& template_date) {
  JobConfig config;
  config.data.task = "products";  // some data have to be there
  config.data.held_out = 0;
  config.data.template_date = template_date;
  config.data.max_prompt_tokens = int64_t{1} << 20;
  config.train.micro_batch_tokens = int64_t{1} << 40;
  return Create(config, model_dir);
}

StatusOr<std::unique_ptr<RowSource>> RowSource::Create(const JobConfig& config,
                                                       const std::string& model_dir) {
  std::unique_ptr<RowSource> source(new RowSource());
  source->sft_ = config.kind() == JobKind::kSft || config.kind() == JobKind::kDistill;
  source->pairs_ = TrainsOnPairs(config);
  source->scores_ = config.kind() == JobKind::kRewardModel;
  TP_ASSIGN_OR_RETURN(source->template_time_s_, DayStart(config.data.template_date));
  source->max_prompt_tokens_ = config.data.max_prompt_tokens;
  source->max_new_tokens_ = config.rollout.max_new_tokens;
  source->max_row_tokens_ = config.train.micro_batch_tokens;
  if (config.model.init) {
    source->max_positions_ = config.model.init->max_position;
    source->positions_key_ = "model.init.max_position";
  } else if (const auto spec = model::ReadSpec(model_dir); spec.ok()) {  // else the model's reader says why
    source->max_positions_ = spec->max_position;
    source->positions_key_ = "max_position_embeddings of " + model_dir;
    source->vocab_ = spec->vocab_size;
  }
  // A default max_prompt_tokens is what the tightest of these leaves (core/config/across_keys.cc): that is to
  // be raised.
  const bool answers = AnswersHeldOut(config);
  const int64_t response = answers ? config.rollout.max_new_tokens : 1;
  const std::string less =
      answers ? "rollout.max_new_tokens = " + std::to_string(response) : "1 of an answer";
  for (const auto& [key, tokens] :
       {std::pair(std::string(kMicroBatch), config.train.micro_batch_tokens),
        std::pair(source->positions_key_, source->max_positions_),
        std::pair(std::string("rollout.kv_cache_tokens"), config.rollout.kv_cache_tokens)}) {
    if (tokens - response != config.data.max_prompt_tokens) continue;
    source->max_prompt_why_ = " (" + key + " = " + std::to_string(tokens) + " less " + less + ")";
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
    source->environment_ = config.environment()->name;
    source->reset_timeout_s_ = config.environment()->reset_timeout_s;
  }
  const bool rows = !(config.data.task.empty() && config.data.path.empty());
  if (config.environment() == nullptr || (config.environment()->is_endpoint() && rows)) {
    TP_ASSIGN_OR_RETURN(tasks::DataSource data,
                        tasks::DataSource::Create(config.data, config.seed, config.kind()));
    source->data_ = std::make_unique<tasks::DataSource>(std::move(data));
  }
  TP_ASSIGN_OR_RETURN(source->tokenizer_, text::Tokenizer::Load(model_dir));
  source->characters_ =
      config.model.init
          ? "; the model knows the characters of model.init.alphabet alone: add it there if it is "
            "ASCII, or change the text"
          : "; " + model_dir +
                "/tokenizer.json knows no such character: change the text, or take "
                "another model";
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

StatusOr<std::string> RowSource::AfterTurn(const nlohmann::ordered_json& messages,
                                           const nlohmann::ordered_json& tools) const {
  text::ChatOptions options;
  options.unix_time_s = template_time_s_;
  options.tools = tools;
  return TextBehindAnswer(*template_, *tokenizer_, end_tokens_,
                          {{{"role", "user"}, {"content", "TIDEPOOL-QUESTION"}}}, messages, options);
}

// What the template writes between two turns is read off a conversation whose words are known.
Status RowSource::LearnTurns() {
  shown_tools_ = text::ToolFormatOf(*template_);
  const std::string words = "TIDEPOOL-OBSERVATION";
  TP_ASSIGN_OR_RETURN(const std::string after, AfterTurn({{{"role", "user"}, {"content", words}}}, nullptr));
  const size_t heard = after.rfind(words);
  if (heard == std::string::npos) {
    return InvalidArgument(
        "the model's chat template does not show a conversation turn by turn, so an environment cannot speak "
        "after the model");
  }
  before_turn_ = after.substr(0, heard);
  after_turn_ = after.substr(heard + words.size());
  // What a template refuses or passes over is said as a user's words.
  text::ChatOptions options;
  options.unix_time_s = template_time_s_;
  const auto begins = template_->Render(
      {{{"role", "system"}, {"content", words}}, {{"role", "user"}, {"content", "?"}}}, options);
  takes_system_ = begins.ok() && begins->find(words) != std::string::npos;
  if (shown_tools_ != text::ToolFormat::kNone) {
    const auto result = [](const std::string& text) {
      return nlohmann::ordered_json{{"role", "tool"}, {"content", text}, {"name", "tidepool"}};
    };
    const auto two = AfterTurn({result("?"), result(words)}, nullptr);
    if (!two.ok() || two->find(words) == std::string::npos) shown_tools_ = text::ToolFormat::kNone;
  }
  return OkStatus();
}

StatusOr<nlohmann::ordered_json> RowSource::ReadConversation(const std::string& json) const {
  TP_ASSIGN_OR_RETURN(auto said, ParseJsonObject<nlohmann::ordered_json>(json, "the messages"));
  auto& messages = said["messages"];
  said.emplace("tools", nullptr);  // where there is none
  if (!messages.is_array() || messages.empty()) return InvalidArgument("there are no messages");
  const bool takes_tools = shown_tools_ != text::ToolFormat::kNone;
  if (template_ == nullptr || (takes_tools && takes_system_)) return said;
  // A template may ask for turns that alternate, so neighbours become one.
  auto joined = nlohmann::ordered_json::array();
  for (auto& message : messages) {
    const bool spoken = message["role"] == "user" || (message["role"] == "tool" && !takes_tools) ||
                        (message["role"] == "system" && !takes_system_);
    if (spoken) message["role"] = "user";
    if (spoken && !joined.empty() && joined.back()["role"] == "user") {
      joined.back()["content"] =
          joined.back()["content"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
    } else {
      joined.push_back(std::move(message));
    }
  }
  messages = std::move(joined);
  return said;
}

namespace {

std::string Contents(const nlohmann::ordered_json& messages) {
  std::string text;
  for (const auto& message : messages)
    text += (text.empty() ? "" : "\n") + message["content"].get<std::string>();
  return text;
}

}  // namespace

StatusOr<EncodedRow> RowSource::EncodeFirst(const Heard& heard) const {
  tasks::Question question;
  question.prompt = heard.text;
  if (!heard.conversation) return Encode(std::move(question));
  TP_ASSIGN_OR_RETURN(auto said, ReadConversation(heard.text));
  if (shown_tools_ == text::ToolFormat::kNone && !said["tools"].is_null()) {
    auto& content = said["messages"][0]["content"];
    content = text::PlainTools(said["tools"]) + "\n\n" + content.get<std::string>();
    said["tools"] = nullptr;
  }
  EncodedRow row;
  if (template_ == nullptr) {
    TP_ASSIGN_OR_RETURN(row.prompt, EncodeText(Contents(said["messages"]), true));
  } else {
    text::ChatOptions options;
    options.add_generation_prompt = true;
    options.unix_time_s = template_time_s_;
    options.tools = said["tools"];
    TP_ASSIGN_OR_RETURN(const std::string rendered, template_->Render(said["messages"], options));
    TP_ASSIGN_OR_RETURN(row.prompt, EncodeText(rendered, false));
  }
  for (const auto& m : said["messages"])
    question.messages.push_back({m["role"].get<std::string>(), m["content"].get<std::string>()});
  row.question = std::move(question);
  TP_RETURN_IF_ERROR(CheckFits(row));
  return row;
}

StatusOr<std::vector<int32_t>> RowSource::EncodeObservation(const Heard& heard, bool ended) const {
  std::string text = before_turn_ + heard.text + after_turn_;
  if (heard.conversation) {
    TP_ASSIGN_OR_RETURN(const auto said, ReadConversation(heard.text));
    if (template_ == nullptr) {
      text = Contents(said["messages"]);
    } else {
      TP_ASSIGN_OR_RETURN(text, AfterTurn(said["messages"], said["tools"]));
    }
  }
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeText(text, false));
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
  return EncodeText(rendered, false);
}

StatusOr<std::vector<int32_t>> RowSource::EncodePrompt(const std::string& prompt) const {
  if (template_ != nullptr) return EncodeMessages({{"user", prompt}});
  return EncodeText(prompt, true);
}

std::string RowSource::WithoutSpecialTokens(std::string text) const {
  for (const text::AddedToken& token : tokenizer_->added_tokens()) {
    const size_t first = Characters(token.content).front().size();
    // One of a single character, or with a space where it would be broken, a space does not break.
    const bool breaks = token.special && token.content.size() > first && token.content[0] != ' ' &&
                        token.content[first] != ' ';
    for (size_t at = 0; breaks && (at = text.find(token.content, at)) != std::string::npos; ++at)
      text.insert(at + first, " ");
  }
  return text;
}

StatusOr<std::vector<int32_t>> RowSource::EncodeAnswered(const tasks::RewardInput& input) const {
  const bool plain = input.messages.empty() || (template_ == nullptr && input.messages.size() == 1);
  std::vector<tasks::Message> messages = input.messages;
  for (tasks::Message& m : messages) m.content = WithoutSpecialTokens(std::move(m.content));
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      plain ? EncodePrompt(WithoutSpecialTokens(input.prompt)) : EncodeMessages(messages));
  TP_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, EncodeText(WithoutSpecialTokens(input.text), false));
  ids.insert(ids.end(), answer.begin(), answer.end());
  if (input.ended) ids.push_back(end_token_);
  return CheckedIds(std::move(ids));
}

StatusOr<std::vector<int32_t>> RowSource::EncodeText(const std::string& text, bool special) const {
  auto ids = tokenizer_->Encode(text, {.add_special = special});
  if (ids.status().code() == StatusCode::kNotFound) return NotFound(ids.status().message() + characters_);
  return ids;
}

Status RowSource::CheckCharacters() const {
  constexpr int64_t kLooked = 100'000;  // evenly spread: seconds
  constexpr int64_t kNamed = 5;
  if (data_ == nullptr || tokenizer_->TakesAnyText()) return OkStatus();
  int64_t count = 0, looked = 0;
  std::set<std::string> all;
  std::string first;
  for (const bool held_out : {false, true}) {
    const int64_t rows = held_out ? held_out_size() : size();
    for (int64_t row = 0; row < rows; row += 1 + rows / kLooked, ++looked) {
      if (Tokens({row, held_out}).status().code() != StatusCode::kNotFound) continue;
      const std::set<std::string> unknown =
          tokenizer_->Unknown(TextOf(held_out ? data_->HeldOut(row) : data_->Row(row)));
      all.insert(unknown.begin(), unknown.end());
      if (++count <= kNamed) first += "\n" + Place({row, held_out}) + ": " + Listed(unknown);
    }
  }
  if (count == 0) return OkStatus();
  return InvalidArgument(std::to_string(count) + " of " + std::to_string(looked) +
                         " rows have characters without a token: " + Listed(all) + characters_ +
                         (count > kNamed ? "; the first rows:" : ":") + first);
}

// What is encoded of a question.
std::string RowSource::TextOf(const tasks::Question& q) const {
  std::string text = q.messages.empty() ? q.prompt : "";
  for (const auto* turns : {&q.messages, &q.chosen_turns, &q.rejected_turns}) {
    for (const tasks::Message& m : *turns) text += m.content;
  }
  if (sft_ || pairs_) text += q.answer;
  const auto rejected = q.fields.find("rejected");
  if (pairs_ && rejected != q.fields.end()) text += rejected->second;
  return text;
}

Status RowSource::CheckRows() const {
  if (episodes_ && episodes_->is_service()) return OkStatus();  // its games are begun by environment workers
  const int64_t tried = std::min<int64_t>(size(), 256);
  Status why;
  for (int64_t i = 0; i < tried; ++i) {
    why = Row(size() / tried * i).status();
    if (why.ok()) return why;
  }
  return why.ok() ? why
                  : InvalidArgument("no row of the data can be used; the last one tried: " + why.message());
}

bool RowSource::HasAnswers() const {
  if (!sft_ || data_ == nullptr) return true;
  for (int64_t i = 0; i < std::min<int64_t>(held_out_size(), 256); ++i) {
    if (!data_->HeldOut(i).answer.empty()) return true;
  }
  return false;
}

StatusOr<EncodedRow> RowSource::Checked(const Which& which) const try {
  StatusOr<EncodedRow> row = Tokens(which);
  const Status status = row.ok() ? CheckFits(*row) : row.status();
  if (!status.ok()) return status.At(Place(which));
  return row;
} catch (const PluginThrew& threw) {
  return DataLoss(threw.what());
}

StatusOr<EncodedRow> RowSource::Tokens(const Which& which) const {
  if (fragments_) return Fragment(which.held_out ? "episode" : "fragment", which.number);
  if (episodes_)
    return EncodeGame({which.number, 0, which.held_out ? SampleId::kEvalSample : SampleId::kRowSample});
  TP_ASSIGN_OR_RETURN(EncodedRow row,
                      TokensOf(which.held_out ? data_->HeldOut(which.number) : data_->Row(which.number)));
  row.origin = which.held_out ? data_->HeldOutOrigin(which.number) : data_->Origin(which.number);
  return row;
}

std::string RowSource::Place(const Which& which) const {
  if (data_ != nullptr)
    return which.held_out ? data_->HeldOutPlace(which.number) : data_->Place(which.number);
  return (fragments_ ? fragments_->environment : environment_) + (which.held_out ? ", held-out" : ",") +
         (fragments_ && !which.held_out ? " fragment " : " episode ") + std::to_string(which.number);
}

EncodedRow RowSource::Fragment(const char* what, int64_t number) const {
  EncodedRow row;
  row.question.prompt = fragments_->environment + " " + what + " " + std::to_string(number);
  return row;
}

StatusOr<EncodedRow> RowSource::EncodeGame(const SampleId& tid) const {
  if (episodes_->is_service()) return episodes_->Begin(tid, 0, {}).status();
  tasks::Question question;
  uint64_t state = 0;
  LimitedCall({.what = episodes_->label(),
               .on = "the begin of " + episodes_->NameOf(tid) +
                     (tid.is_eval() ? "" : " (row " + std::to_string(tid.ordinal) + ")"),
               .limit_s = reset_timeout_s_,
               .key = "environment.reset_timeout_s"})
      .Run([&] {
        const std::unique_ptr<environments::TextGame> game = episodes_->Game(tid);
        question.prompt = game->Reset();
        state = environments::StateHash(*game);
      });
  TP_ASSIGN_OR_RETURN(EncodedRow row, TokensOf(std::move(question)));
  row.state = state;
  return row;
}

StatusOr<EncodedRow> RowSource::Encode(tasks::Question question) const {
  TP_ASSIGN_OR_RETURN(EncodedRow row, TokensOf(std::move(question)));
  TP_RETURN_IF_ERROR(CheckFits(row));
  return row;
}

StatusOr<EncodedRow> RowSource::Encoded(tasks::Question question, std::vector<int32_t> prompt) const {
  EncodedRow row;
  TP_ASSIGN_OR_RETURN(row.prompt, CheckedIds(std::move(prompt)));
  row.question = std::move(question);
  TP_RETURN_IF_ERROR(CheckFits(row));
  return row;
}

StatusOr<std::vector<int32_t>> RowSource::CheckedIds(std::vector<int32_t> ids) const {
  for (const int32_t id : ids) {
    const int64_t known = std::min<int64_t>(tokenizer_->vocab_size(), vocab_);
    if (id < 0 || id >= known)
      return InvalidArgument("token id " + std::to_string(id) + " is outside the vocabulary of " +
                             std::to_string(known));
  }
  return ids;
}

StatusOr<EncodedRow> RowSource::TokensOf(tasks::Question question) const {
  EncodedRow row;
  if (sft_ && question.learned_from >= 0) {
    TP_ASSIGN_OR_RETURN(row, EncodeConversation(question.messages, question.learned_from));
    row.question = std::move(question);
    return row;
  }
  if (sft_ && question.raw) return EncodeWholeText(std::move(question));
  if (pairs_ && !question.chosen_turns.empty()) {
    TP_ASSIGN_OR_RETURN(row, EncodePair(question));
    row.question = std::move(question);
    return row;
  }
  if (question.raw) {
    TP_ASSIGN_OR_RETURN(row.prompt, EncodeText(question.prompt, true));
  } else {
    TP_ASSIGN_OR_RETURN(row.prompt, question.messages.empty() ? EncodePrompt(question.prompt)
                                                              : EncodeMessages(question.messages));
  }
  if (sft_ || pairs_) {
    TP_ASSIGN_OR_RETURN(row.response, EncodeAnswer(question.answer, pairs_ ? "chosen" : "answer"));
  }
  if (pairs_) {
    TP_ASSIGN_OR_RETURN(row.rejected, EncodeAnswer(question.fields["rejected"], "rejected"));
    if (row.response == row.rejected) return InvalidArgument("chosen and rejected are the same");
  }
  row.question = std::move(question);
  return row;
}

Status RowSource::CheckFits(const EncodedRow& row) const {
  if (fragments_) return OkStatus();
  const size_t prompt = row.prompt.size();
  if (prompt == 0) return InvalidArgument("the prompt has no tokens");
  const bool conversation = sft_ && row.question.learned_from >= 0;
  if (!conversation) {
    TP_RETURN_IF_ERROR(Fits("prompt", prompt, "data.max_prompt_tokens", max_prompt_tokens_, max_prompt_why_));
  }
  for (const std::vector<int32_t>* ids : {&row.prompt, &row.response, &row.rejected}) {
    const auto most = std::ranges::max_element(*ids);
    if (most == ids->end() || *most < vocab_) continue;
    return InvalidArgument("token id " + std::to_string(*most) + " ('" +
                           tokenizer_->Decode(std::vector{*most}) +
                           "') is outside the model's vocabulary of " + std::to_string(vocab_) +
                           "; the tokenizer is not this model's");
  }
  if (row.response.empty()) return OkStatus();  // how far an answer goes is the engine's business
  const char* what = conversation ? "conversation" : "row";
  for (const std::vector<int32_t>* answer : {&row.response, &row.rejected}) {
    const size_t tokens = prompt + answer->size();
    TP_RETURN_IF_ERROR(Fits(what, tokens, positions_key_, max_positions_));
    TP_RETURN_IF_ERROR(Fits(what, tokens, kMicroBatch, max_row_tokens_));
  }
  if (!pairs_) return OkStatus();
  return Fits("pair", 2 * prompt + row.response.size() + row.rejected.size(), kMicroBatch, max_row_tokens_);
}

StatusOr<std::vector<int32_t>> RowSource::EncodeAnswer(const std::string& answer, const char* field) const {
  if (answer.empty()) return InvalidArgument("the row has no " + std::string(field) + " to learn from");
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeText(answer, false));
  ids.push_back(end_token_);
  return ids;
}

// The first token is given, the others and the end are learned.
StatusOr<EncodedRow> RowSource::EncodeWholeText(tasks::Question question) const {
  EncodedRow row;
  TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeText(question.prompt, true));
  if (ids.empty()) return InvalidArgument("the text has no tokens");
  ids.push_back(end_token_);
  row.prompt.assign(ids.begin(), ids.begin() + 1);
  row.response.assign(ids.begin() + 1, ids.end());
  row.question = std::move(question);
  return row;
}

// Two conversations that go on from one prompt.
StatusOr<EncodedRow> RowSource::EncodePair(const tasks::Question& question) const {
  std::vector<EncodedRow> both;
  for (const auto* turns : {&question.chosen_turns, &question.rejected_turns}) {
    std::vector<tasks::Message> all = question.messages;
    if (all.empty()) all = {{"user", question.prompt}};
    const auto shared = static_cast<int64_t>(all.size());
    all.insert(all.end(), turns->begin(), turns->end());
    TP_ASSIGN_OR_RETURN(EncodedRow one, EncodeConversation(all, shared));
    both.push_back(std::move(one));
  }
  EncodedRow row = std::move(both[0]);
  row.rejected = std::move(both[1].response);
  if (row.response == row.rejected) return InvalidArgument("chosen and rejected are the same");
  row.rejected_mask = std::move(both[1].loss_mask);
  return row;
}

// The conversation is rendered turn by turn; what a learned turn adds to the text has loss.
StatusOr<EncodedRow> RowSource::EncodeConversation(const std::vector<tasks::Message>& messages,
                                                   int64_t learned_from) const {
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
    return EncodeText(fresh, false);
  };
  bool first = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const tasks::Message& m = messages[i];
    const bool learned = m.role == "assistant" && static_cast<int64_t>(i) >= learned_from;
    if (learned) {
      TP_ASSIGN_OR_RETURN(const std::vector<int32_t> context, more(/*ask=*/true));
      std::vector<int32_t>& into = std::exchange(first, false) ? row.prompt : row.response;
      into.insert(into.end(), context.begin(), context.end());
      row.loss_mask.resize(row.response.size(), 0);
    }
    list.push_back({{"role", m.role}, {"content", m.content}});
    if (learned) {
      TP_ASSIGN_OR_RETURN(std::vector<int32_t> turn, more(/*ask=*/false));
      // A score stands on the end token, as EncodeAnswered has it, not on what the template writes behind it.
      if (scores_ && i + 1 == messages.size()) {
        const auto end = std::find_if(turn.rbegin(), turn.rend(), [&](int32_t id) { return IsEnd(id); });
        if (end != turn.rend()) turn.erase(end.base(), turn.end());
      }
      row.response.insert(row.response.end(), turn.begin(), turn.end());
      row.loss_mask.resize(row.response.size(), 1);
    }
  }
  if (row.response.empty()) return InvalidArgument("the conversation has no assistant turn to learn");
  return row;
}

std::string RowSource::ResponseText(const std::vector<int32_t>& ids) const {
  return tokenizer_ == nullptr ? "" : tokenizer_->Decode(ids, /*skip_special=*/true);
}

std::string RowSource::PromptText(const std::vector<int32_t>& ids) const {
  return tokenizer_ == nullptr ? "" : tokenizer_->Decode(ids, /*skip_special=*/false);
}

std::string RowSource::ObservationText(const std::vector<int32_t>& ids) const {
  const bool closed = !ids.empty() && IsEnd(ids.front());  // of a turn that was cut
  std::string text = PromptText(closed ? std::vector<int32_t>(ids.begin() + 1, ids.end()) : ids);
  if (text.starts_with(before_turn_)) text.erase(0, before_turn_.size());
  if (text.ends_with(after_turn_)) text.resize(text.size() - after_turn_.size());
  return text;
}

std::vector<tasks::Message> RowSource::Conversation(const EncodedRow& row) const {
  const std::vector<tasks::Message>& all = row.question.messages;
  if (all.empty()) return {{"user", row.question.prompt}};
  // A supervised conversation is answered where its first answer is.
  const auto end = sft_ ? std::ranges::find(all, "assistant", &tasks::Message::role) : all.end();
  return {all.begin(), end};
}

tasks::RewardInput RowSource::InputOf(const SampleId& tid, const EncodedRow& row,
                                      const std::vector<int32_t>& ids, bool ended) const {
  return {.prompt = row.question.prompt,
          .answer = row.question.answer,
          .fields = row.question.fields,
          .text = ResponseText(ids),
          .response_tokens = static_cast<int64_t>(ids.size()),
          .ended = ended,
          .max_new_tokens = max_new_tokens_,
          .messages = Conversation(row),
          .rendered_prompt = PromptText(row.prompt),
          .file = row.origin.file,
          .line = row.origin.line,
          .row = row.origin.row,
          .held_out = tid.is_eval(),
          .sample = ToString(tid)};
}

}  // namespace tidepool::workers
