#include "workers/serve/agent_episodes.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/base/hash.h"
#include "core/environments/episode.h"
#include "workers/data/turn_text.h"
#include "workers/serve/answer_writer.h"
#include "workers/serve/choice_reader.h"
#include "workers/serve/conversation.h"
#include "workers/serve/request_reading.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::duration;
using std::chrono::duration_cast;

constexpr std::chrono::milliseconds kTakePatience{1000};  // for a sample to come
constexpr std::chrono::seconds kUnasked{60};              // until the first request of a session
// First requests of a group that are refused in a row, for each of its samples; then those of its samples
// that no session has are given up.
constexpr int64_t kRefusedMost = 4;
constexpr size_t kSessionsMost = 4096, kTakersMost = 1024, kGroupsMost = 4096, kEndedMost = 4096;

std::string Trimmed(const std::string& text) {
  const size_t from = text.find_first_not_of(" \t\r\n");
  if (from == std::string::npos) return "";
  return text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
}

// What two requests that say the same have in common. Names of calls are made up by answers, and differ
// between forms; frameworks cut the white space around an answer. Both are the model's own words, of which
// the tokens are kept.
Json Canonical(const Json& messages) {
  Json out = Json::array();
  for (const Json& message : messages) {
    Json m = message;
    if (m.value("role", "") == "assistant") {
      if (m.contains("content") && m["content"].is_string())
        m["content"] = Trimmed(m["content"].get<std::string>());
      if (m.contains("tool_calls"))
        for (Json& call : m["tool_calls"]) call.erase("id");
    }
    out.push_back(std::move(m));
  }
  return out;
}

Json SettingOf(const AskedTurn& asked) {
  return {{"tools", asked.chat.tools},
          {"variables", asked.chat.variables},
          {"chat", asked.style.form != AnswerForm::kCompletion}};
}

ApiError Conflict(const std::string& what, const std::string& param = "") { return {409, what, param}; }

// The first message of the history that the request does not have, in words.
std::string Difference(const Json& history, const Json& messages) {
  for (size_t i = 0; i < history.size(); ++i) {
    if (i >= messages.size())
      return "the request ends before message " + std::to_string(i) + " of the session";
    if (history[i] != messages[i]) return "messages[" + std::to_string(i) + "] is another than it was";
  }
  return "";
}

int64_t NowUnix() {
  return duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

AgentEpisodes::Clock::duration Seconds(double s) {
  return duration_cast<AgentEpisodes::Clock::duration>(duration<double>(s));
}

}  // namespace

AgentEpisodes::AgentEpisodes(const JobConfig& config, std::unique_ptr<const ServedModel> model,
                             std::vector<int32_t> ends, std::unique_ptr<const tasks::DataSource> data,
                             Say say)
    : config_(config),
      model_(std::move(model)),
      ends_(std::move(ends)),
      data_(std::move(data)),
      say_(std::move(say)),
      idle_(Seconds(config.environment()->step_timeout_s)),
      longest_(Seconds(config.environment()->episode_timeout_s)),
      turns_most_(config.environment()->max_turns) {}

// --- the run's side

void AgentEpisodes::Play(AgentTurn turn) {
  const MutexLock lock(mu_);
  const GroupKey key{turn.tid.ordinal, turn.tid.issue};
  if (turn.turn < 0)
    return SayLost(turn.tid, turn.att, turn.turn, "the reward of its session is not kept here any more",
                   false);
  // What was issued anew is not wanted any more as it was.
  for (auto at = groups_.lower_bound({key.first, 0}); at != groups_.end() && at->first < key;) {
    const GroupKey old = (at++)->first;
    ForgetGroup(old, "its sample was dropped by the run and issued anew");
  }
  if (turn.tid.sample == SampleId::kRowSample) {
    Group& group = groups_[key];
    group.att = turn.att;
    if (group.known) {
      group.row.att = turn.att;
      return say_(group.row);
    }
    group.asked = true;
    while (groups_.size() > kGroupsMost)
      ForgetGroup(groups_.begin()->first, "the run goes on without its sample");
    return Give();
  }
  if (const auto doomed = doomed_.find(turn.tid); doomed != doomed_.end()) {
    const auto [att, why] = doomed->second;
    doomed_.erase(doomed);
    if (att == turn.att) return SayLost(turn.tid, turn.att, turn.turn, why, true);
  }
  if (const auto known = by_sample_.find(turn.tid); known != by_sample_.end()) {
    const auto at = sessions_.find(known->second);
    Session& session = at->second;
    if (session.att == turn.att && session.stage == Stage::kDrawn && turn.turn == session.turn + 1)
      return Deliver(session, std::move(turn));
    if (session.att == turn.att && turn.turn == session.turn) {  // the same once more
      if (session.stage == Stage::kDrawn) say_(session.said);
      return;
    }
    ++counts_.lost;
    Close(at, "its sample was begun anew by the run");
  }
  const auto group = groups_.find(key);
  if (group != groups_.end()) group->second.over.erase(turn.tid.sample);
  if (turn.turn == 1 && group != groups_.end() && !group->second.given_up.empty()) {
    SayLost(turn.tid, turn.att, turn.turn, group->second.given_up, false);
    return SampleOver(turn.tid);
  }
  if (turn.turn != 1 || group == groups_.end() || !group->second.known)
    return SayLost(turn.tid, turn.att, turn.turn, "its session ended with the worker that had it", false);
  std::erase_if(group->second.waiting, [&](const AgentTurn& w) { return w.tid == turn.tid; });
  group->second.waiting.push_back(std::move(turn));
  Bind(key);
  Give();
}

void AgentEpisodes::SayLost(const SampleId& tid, int32_t att, int64_t turn, const std::string& why,
                            bool late) {
  say_(
      {.tid = tid, .att = att, .turn = turn, .outcome = GradeOutcome::kInfra, .why = why, .timed_out = late});
}

void AgentEpisodes::SayOf(Session& session, up::EnvStepped what) {
  what.tid = *session.tid;
  what.att = session.att;
  what.turn = session.turn;
  what.history = session.hash;
  what.next_history = environments::ExtendHistory(what.history, what.observation, what.reward);
  what.state = what.done ? 0 : what.next_history;
  what.seconds = duration<double>(Clock::now() - session.touched).count();
  session.hash = what.next_history;
  session.said = what;
  say_(std::move(what));
}

int64_t AgentEpisodes::Free(const Group& group) const {
  if ((!group.asked && !group.known) || !group.given_up.empty()) return 0;
  return SamplesPerRow(config_) - group.open - static_cast<int64_t>(group.over.size());
}

void AgentEpisodes::SampleOver(const SampleId& tid) {
  const auto found = groups_.find({tid.ordinal, tid.issue});
  if (found == groups_.end()) return;
  Group& group = found->second;
  group.over.insert(tid.sample);
  if (group.open == 0 && static_cast<int64_t>(group.over.size()) >= SamplesPerRow(config_))
    groups_.erase(found);
}

void AgentEpisodes::End(const SampleId& tid, int32_t att) {
  const MutexLock lock(mu_);
  if (const auto doomed = doomed_.find(tid); doomed != doomed_.end() && doomed->second.first == att)
    doomed_.erase(doomed);
  if (const auto known = by_sample_.find(tid); known != by_sample_.end()) {
    const auto at = sessions_.find(known->second);
    if (at->second.att != att) return;
    ++counts_.lost;
    Close(at, "the run has dropped its sample");
    return SampleOver(tid);
  }
  const GroupKey key{tid.ordinal, tid.issue};
  const auto group = groups_.find(key);
  if (group == groups_.end()) return;
  std::erase_if(group->second.waiting, [&](const AgentTurn& w) { return w.tid == tid && w.att == att; });
  group->second.over.insert(tid.sample);
  CloseSurplus(key, "the run has dropped its sample");
  SampleOver(tid);
}

// Where the programs have changed in mid-run, nobody says any more what the group began with.
void AgentEpisodes::GiveUpRest(const GroupKey& key) {
  Group& group = groups_.at(key);
  group.given_up = "sessions of its group begin otherwise than the first of them did, " +
                   std::to_string(group.refused) +
                   " requests in a row; what a session begins with has to follow from its row alone";
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    const bool rest = at->second.group == key && at->second.stage == Stage::kNew;
    counts_.lost += rest ? 1 : 0;
    at = rest ? Close(at, group.given_up) : std::next(at);
  }
  for (const AgentTurn& turn : std::exchange(group.waiting, {})) {
    SayLost(turn.tid, turn.att, turn.turn, group.given_up, false);
    group.over.insert(turn.tid.sample);
  }
  if (group.open == 0 && static_cast<int64_t>(group.over.size()) >= SamplesPerRow(config_))
    groups_.erase(key);
}

// A session that has no sample yet is for any of its group: more of them than samples are left lead nowhere.
void AgentEpisodes::CloseSurplus(const GroupKey& key, const std::string& why) {
  for (const Stage stage : {Stage::kNew, Stage::kFirst}) {  // who waits for an answer goes last
    for (auto at = sessions_.begin(); at != sessions_.end();) {
      if (Free(groups_.at(key)) >= 0) return;
      if (at->second.group == key && at->second.stage == stage) {
        ++counts_.lost;
        at = Close(at, why);
      } else {
        ++at;
      }
    }
  }
}

AgentEpisodes::Sessions::iterator AgentEpisodes::Close(Sessions::iterator at, const std::string& why) {
  Session& session = at->second;
  if (session.tid) by_sample_.erase(*session.tid);
  // Who waits for a sample of the group may have its place.
  const auto group = groups_.find(session.group);
  if (group != groups_.end()) --group->second.open;
  if (session.reply)
    session.reply->Answer(ErrorOf(session.asked.style.form, {410, "session " + session.id + ": " + why}));
  ended_[session.id] = why;
  ended_order_.push_back(session.id);
  if (ended_order_.size() > kEndedMost) {
    ended_.erase(ended_order_.front());
    ended_order_.erase(ended_order_.begin());
  }
  return sessions_.erase(at);
}

AgentEpisodes::Sessions::iterator AgentEpisodes::GiveUp(Sessions::iterator at, const std::string& why) {
  Session& session = at->second;
  ++counts_.expired;
  const auto tid = session.tid;
  if (tid && session.stage == Stage::kIdle) SayLost(*tid, session.att, session.turn, why, true);
  if (tid && session.stage == Stage::kDrawn) doomed_[*tid] = {session.att, why};
  const auto next = Close(at, why);
  if (tid) SampleOver(*tid);
  return next;
}

void AgentEpisodes::ForgetGroup(const GroupKey& key, const std::string& why) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    if (at->second.group != key) {
      ++at;
      continue;
    }
    ++counts_.lost;
    at = Close(at, why);
  }
  groups_.erase(key);
}

void AgentEpisodes::Tick(Clock::time_point now) {
  const MutexLock lock(mu_);
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    const Session& s = at->second;
    const auto untouched = now - s.touched;
    if (s.stage == Stage::kNew && untouched > std::min<Clock::duration>(idle_, kUnasked)) {
      at = GiveUp(at, "nothing was asked in it for " +
                          std::to_string(duration_cast<std::chrono::seconds>(untouched).count()) + " s");
    } else if (s.stage == Stage::kIdle && untouched > idle_) {
      at = GiveUp(at, "nobody has touched it for environment.step_timeout_s");
    } else if (now - s.begun > longest_) {
      at = GiveUp(at, "it has taken longer than environment.episode_timeout_s");
    } else {
      ++at;
    }
  }
  for (auto at = groups_.begin(); at != groups_.end();) {
    const GroupKey key = at->first;
    const Group& group = (at++)->second;
    if (group.refused == 0 || !group.given_up.empty()) continue;
    const bool awaited = std::ranges::any_of(
        sessions_, [&](const auto& s) { return s.second.group == key && s.second.stage == Stage::kFirst; });
    if (!awaited &&
        (group.refused >= kRefusedMost * SamplesPerRow(config_) || now - group.refused_since > idle_))
      GiveUpRest(key);
  }
  Give();
  std::erase_if(takers_, [&](const Taker& taker) TP_REQUIRES(mu_) {
    if (now < taker.until) return false;
    ++counts_.none_left;
    taker.reply->Answer(ToResponse(
        {429, "no sample waits for a program: the run generates and trains with what it has; try again"}));
    return true;
  });
}

// --- the programs' side

void AgentEpisodes::Take(const std::string& url, std::shared_ptr<HttpReply> reply) {
  int64_t number = 0;
  {
    const MutexLock lock(mu_);
    if (sessions_.size() >= kSessionsMost || takers_.size() >= kTakersMost) {
      ++counts_.none_left;
      return reply->Answer(
          ToResponse({429, std::to_string(sessions_.size()) + " sessions are open, and " +
                               std::to_string(takers_.size()) + " programs wait for one; try again"}));
    }
    number = ++asked_to_take_;
    takers_.push_back({number, url, reply, Clock::now() + kTakePatience});
    Give();
  }
  // Not under the lock: it may be called at once.
  reply->OnGone([this, number] {
    const MutexLock lock(mu_);
    std::erase_if(takers_, [&](const Taker& taker) { return taker.number == number; });
  });
}

void AgentEpisodes::Touch(const std::string& id) {
  const MutexLock lock(mu_);
  if (const auto at = sessions_.find(id); at != sessions_.end()) at->second.touched = Clock::now();
}

void AgentEpisodes::Give() {
  for (auto& [key, group] : groups_) {
    while (!takers_.empty() && Free(group) > 0) {
      const Taker taker = takers_.front();
      takers_.erase(takers_.begin());
      taker.reply->Answer(Open(key, group, taker.url));
    }
    if (takers_.empty()) return;
  }
}

HttpResponse AgentEpisodes::Open(const GroupKey& key, Group& group, const std::string& url) {
  const auto id = RandomHex(), secret = RandomHex();
  if (!id.ok() || !secret.ok()) return ToResponse({500, "the system has no random numbers"});
  Session session;
  session.id = id->substr(0, 32);
  session.digest = Sha256Hex(*secret);
  session.group = key;
  session.begun = session.touched = Clock::now();
  Json row = Json::object();
  if (data_ != nullptr) {
    const tasks::Question q = data_->Row(key.first);
    row["prompt"] = q.prompt;
    if (!q.messages.empty()) {
      row["messages"] = Json::array();
      for (const tasks::Message& m : q.messages)
        row["messages"].push_back({{"role", m.role}, {"content", m.content}});
    }
    if (!q.answer.empty()) row["answer"] = q.answer;
    for (const auto& [name, value] : q.fields) row[name] = value;
  }
  const Json answer = {{"id", session.id},
                       {"key", *secret},
                       {"base_url", url + "/sessions/" + session.id + "/v1"},
                       {"model", model_->name},
                       {"ordinal", key.first},
                       {"group", std::to_string(key.first) + "." + std::to_string(key.second)},
                       {"row", std::move(row)}};
  ++group.open;
  ++counts_.taken;
  sessions_.emplace(session.id, std::move(session));
  return JsonResponse(answer);
}

bool AgentEpisodes::Refused(const std::shared_ptr<HttpReply>& reply, AnswerForm form,
                            const std::optional<ApiError>& error) {
  if (error) reply->Answer(ErrorOf(form, *error));
  return error.has_value();
}

// The text that the model reads next: all of a first request, else what is behind its last answer.
StatusOr<std::string> AgentEpisodes::BehindAnswer(const AskedTurn& asked, const Json& messages, size_t known,
                                                  size_t text_known) const {
  if (asked.style.form == AnswerForm::kCompletion) return asked.text.substr(text_known);
  text::ChatOptions options = asked.chat;
  options.unix_time_s = model_->created_unix_s;
  if (known == 0) {
    options.add_generation_prompt = true;
    return model_->template_text->Render(messages, options);
  }
  const Json before(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(known) - 1);
  const Json after(messages.begin() + static_cast<std::ptrdiff_t>(known), messages.end());
  return TextBehindAnswer(*model_->template_text, *model_->tokenizer, ends_, before, after, options);
}

void AgentEpisodes::Ask(const std::string& id, AskedTurn asked, std::shared_ptr<HttpReply> reply) {
  const AnswerForm form = asked.style.form;
  const bool chat = form != AnswerForm::kCompletion;
  const Json canonical = chat ? Canonical(asked.messages) : Json();
  const Json setting = SettingOf(asked);
  const std::string history = chat ? "messages" : "prompt";
  size_t known = 0, text_known = 0;
  // What it may say, and how much of it is known, under the lock; its tokens without; then the turn.
  const auto look = [&](Session& session) TP_REQUIRES(mu_) -> std::optional<ApiError> {
    session.touched = Clock::now();
    if (session.reading) return Conflict("another request of this session is being read");
    if (session.stage == Stage::kNew) return std::nullopt;
    if (setting != session.setting) {
      ++counts_.histories_refused;
      return Conflict("tools, chat_template_kwargs and the form of requests stay as they were in a session",
                      "tools");
    }
    if (session.stage != Stage::kIdle) return Conflict("another request of this session is being answered");
    known = session.history.size();
    text_known = session.text.size();
    const std::string differs = chat ? Difference(session.history, canonical)
                                : asked.text.starts_with(session.text)
                                    ? ""
                                    : "the prompt does not begin with what was said";
    if (!differs.empty()) {
      ++counts_.histories_refused;
      return Conflict(differs +
                          "; a session's requests begin with all that was said in it, and nothing of it "
                          "is tokenised again; take another session for another history",
                      history);
    }
    if (chat ? canonical.size() == known : asked.text.size() == text_known)
      return ApiError{400, "nothing is said behind the model's answer", history};
    if (chat && canonical.back().value("role", "") == "assistant")
      return ApiError{400, "the last message is the assistant's; the model answers another one", history};
    if (turns_most_ > 0 && session.turn >= turns_most_)
      return ApiError{400, "the episode has had its " + std::to_string(turns_most_) +
                               " turns (environment.max_turns); send its reward"};
    return std::nullopt;
  };
  {
    const MutexLock lock(mu_);
    const auto at = sessions_.find(id);
    if (at == sessions_.end())
      return reply->Answer(ErrorOf(form, {404, "there is no such session any more"}));
    Session& session = at->second;
    // The same once more, of a program that has not heard the answer: it gets the same.
    const bool same =
        session.stage != Stage::kNew && setting == session.setting &&
        (chat ? canonical == Canonical(session.asked.messages) : asked.text == session.asked.text);
    if (same && !session.reading) {
      session.touched = Clock::now();
      session.asked.style = asked.style;
      if (session.stage == Stage::kIdle) return Answer(session, std::move(reply));
      if (session.reply) session.reply->Answer(ErrorOf(form, Conflict("the request was sent once more")));
      session.reply = std::move(reply);
      return;
    }
    if (Refused(reply, form, look(session))) return;
    session.reading = true;
  }
  auto text = BehindAnswer(asked, asked.messages, known, text_known);
  StatusOr<std::vector<int32_t>> ids = std::vector<int32_t>();
  if (text.ok()) ids = EncodedPrompt(*model_, *text, !chat && text_known == 0);

  const MutexLock lock(mu_);
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return reply->Answer(ErrorOf(form, {404, "there is no such session any more"}));
  Session& session = at->second;
  session.reading = false;
  const Status made = text.ok() ? ids.status() : text.status();
  if (!made.ok()) return reply->Answer(ErrorOf(form, {400, made.message(), history}));
  if (ids->empty()) return reply->Answer(ErrorOf(form, {400, "it has no tokens", history}));
  const int64_t tokens = static_cast<int64_t>(ids->size());

  if (session.stage == Stage::kNew) {
    if (tokens > config_.data.max_prompt_tokens)
      return reply->Answer(
          ErrorOf(form, {400,
                         "the first request has " + std::to_string(tokens) + " tokens, and the run takes " +
                             std::to_string(config_.data.max_prompt_tokens) + " (data.max_prompt_tokens)",
                         history}));
    const auto found = groups_.find(session.group);
    if (found == groups_.end()) {
      Close(at, "its sample is not wanted any more");
      return reply->Answer(
          ErrorOf(form, {410, "the session's sample is not wanted any more; take another one"}));
    }
    Group& group = found->second;
    if (!group.known) {
      group.known = true;
      group.history = canonical;
      group.setting = setting;
      group.text = asked.text;
      group.prompt = *ids;
      group.hash = environments::ExtendHistory(0, *text, 0);
      group.row = {.tid = {session.group.first, session.group.second, SampleId::kRowSample},
                   .att = group.att,
                   .observation = *text,
                   .observation_ids = *ids,
                   .next_history = group.hash,
                   .state = group.hash,
                   .seconds = duration<double>(Clock::now() - session.begun).count()};
      say_(group.row);
    } else if (group.history != canonical || group.setting != setting || group.text != asked.text) {
      ++counts_.histories_refused;
      if (group.refused++ == 0) group.refused_since = Clock::now();
      const std::string differs = chat ? Difference(group.history, canonical) : "";
      reply->Answer(
          ErrorOf(form, Conflict("the sessions of group " + std::to_string(session.group.first) + "." +
                                     std::to_string(session.group.second) +
                                     " are answers to one prompt, and another one of them began otherwise" +
                                     (differs.empty() ? "" : ": " + differs) +
                                     "; let what a session begins with follow from its row alone",
                                 history)));
      return;
    }
    group.refused = 0;
    session.stage = Stage::kFirst;
    session.setting = setting;
    session.history = group.history;
    session.text = group.text;
    session.ids = group.prompt;
    session.prompt_tokens = tokens;
    session.hash = group.hash;
    session.asked = std::move(asked);
    session.reply = std::move(reply);
    return Bind(session.group);
  }
  // Where the policy did not close its turn itself, that is done for it.
  const bool ended =
      !session.action.ids.empty() && std::ranges::find(ends_, session.action.ids.back()) != ends_.end();
  if (!ended) ids->insert(ids->begin(), ends_.front());
  const int64_t generated = static_cast<int64_t>(session.ids.size()) - session.prompt_tokens;
  if (generated + static_cast<int64_t>(ids->size()) >= config_.rollout.max_new_tokens)
    return reply->Answer(
        ErrorOf(form, {400,
                       "there is no room for an answer: the episode has " + std::to_string(generated) +
                           " tokens behind its prompt, this request adds " + std::to_string(ids->size()) +
                           ", and the run takes " + std::to_string(config_.rollout.max_new_tokens) +
                           " (rollout.max_new_tokens); send its reward",
                       history}));
  session.ids.insert(session.ids.end(), ids->begin(), ids->end());
  session.history = canonical;
  session.text = asked.text;
  session.asked = std::move(asked);
  session.reply = std::move(reply);
  session.stage = Stage::kDrawn;
  SayOf(session, {.observation = *std::move(text), .observation_ids = *std::move(ids)});
}

void AgentEpisodes::Bind(const GroupKey& key) {
  const auto found = groups_.find(key);
  if (found == groups_.end()) return;
  std::vector<AgentTurn>& waiting = found->second.waiting;
  for (auto& [id, session] : sessions_) {
    if (waiting.empty()) return;
    if (session.group != key || session.stage != Stage::kFirst) continue;
    AgentTurn turn = std::move(waiting.front());
    waiting.erase(waiting.begin());
    session.tid = turn.tid;
    session.att = turn.att;
    by_sample_[turn.tid] = id;
    Deliver(session, std::move(turn));
  }
}

void AgentEpisodes::Deliver(Session& session, AgentTurn turn) {
  session.turn = turn.turn;
  session.action = std::move(turn.action);
  session.before_action = session.ids.size();
  session.ids.insert(session.ids.end(), session.action.ids.begin(), session.action.ids.end());
  session.stage = Stage::kIdle;
  session.touched = Clock::now();
  ++counts_.turns;
  Remember(session);
  Answer(session, std::exchange(session.reply, nullptr));
}

void AgentEpisodes::Answer(Session& session, std::shared_ptr<HttpReply> reply) {
  if (reply == nullptr) return;
  AskedTurn asked = session.asked;
  asked.turn.prompts = {
      {session.ids.begin(), session.ids.begin() + static_cast<std::ptrdiff_t>(session.before_action)}};
  asked.turn.samples = 1;
  const bool ended =
      !session.action.ids.empty() && std::ranges::find(ends_, session.action.ids.back()) != ends_.end();
  const std::string name = session.id.substr(0, 16) + "-" + std::to_string(session.turn);
  Conversation conversation(AnswerWriter::Make(*model_, asked, name, NowUnix()), asked.style.form,
                            asked.style.stream, std::move(reply));
  conversation.Hear({.tokens = session.action, .end = ended ? TurnEnd::kEnd : TurnEnd::kLength});
}

void AgentEpisodes::Remember(Session& session) {
  ChoiceReader reader(*model_, session.asked);
  const ChoicePart part = reader.Read({.tokens = session.action, .end = TurnEnd::kEnd});
  std::string text;
  Json calls = Json::array();
  for (const text::ToolPiece& piece : part.pieces) {
    text += piece.text;
    if (!piece.call) continue;
    auto arguments = ReadObject(piece.call->arguments, "");
    calls.push_back({{"type", "function"},
                     {"function",
                      {{"name", piece.call->name},
                       {"arguments", arguments.ok() ? *std::move(arguments) : Json::object()}}}});
  }
  if (session.asked.style.form == AnswerForm::kCompletion) {
    session.text += text;
    return;
  }
  Json message = {{"role", "assistant"}, {"content", text}};
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  session.history.push_back(Canonical(Json::array({std::move(message)}))[0]);
}

HttpResponse AgentEpisodes::Reward(const std::string& id, double reward, bool solved) {
  const MutexLock lock(mu_);
  const auto at = sessions_.find(id);
  if (at == sessions_.end()) return ToResponse({404, "there is no such session any more"});
  Session& session = at->second;
  session.touched = Clock::now();
  if (session.stage != Stage::kIdle || session.reading)
    return ToResponse(Conflict(session.stage == Stage::kNew
                                   ? "nothing was asked of the model in this session, so there is nothing to "
                                     "reward"
                                   : "a request of this session is being answered; its reward comes after"));
  SayOf(session, {.reward = reward,
                  .done = true,
                  .rewards = {{"solved", solved ? 1.0 : 0.0}, {config_.environment()->name, reward}}});
  ++counts_.rewarded;
  const Json answer = {{"id", id}, {"reward", reward}, {"turns", session.turn}};
  const SampleId tid = *session.tid;
  Close(at, "it has its reward");
  SampleOver(tid);
  return JsonResponse(answer);
}

StatusOr<std::string> AgentEpisodes::DigestOf(const std::string& id) const {
  const MutexLock lock(mu_);
  const auto at = sessions_.find(id);
  if (at != sessions_.end()) return at->second.digest;
  const auto ended = ended_.find(id);
  return NotFound("there is no session " + id.substr(0, 64) + " here" +
                  (ended == ended_.end() ? ": its worker was started anew, or it was long ago"
                                         : " any more: " + ended->second) +
                  "; take another one (POST /sessions)");
}

AgentCounts AgentEpisodes::Counts() const {
  const MutexLock lock(mu_);
  AgentCounts counts = counts_;
  counts.open = static_cast<int64_t>(sessions_.size());
  for (const auto& [key, group] : groups_) counts.waiting += std::max<int64_t>(0, Free(group));
  return counts;
}

}  // namespace tidepool::workers
