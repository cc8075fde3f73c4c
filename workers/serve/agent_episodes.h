#pragma once
// Sessions of agent programs, as episodes of a run (rollout.endpoint): the program's requests are what an
// environment says, the model's answers are the actions.
//
// A sample waits here until a program takes it. The samples of a group have one prompt, so the first request
// of the first session of a group is that of all of them: the others' actions are drawn meanwhile, and their
// sessions have to begin with the same messages. From then on a session's request has to begin with all that
// was said in it before; what is appended alone is tokenised, once. Another history is refused (409), never
// tokenised again.
//
// A session ends with its reward, or when nobody touches it for environment.step_timeout_s, or after
// environment.episode_timeout_s: then its sample is lost to infrastructure, never a reward of 0. One in which
// nothing was asked for a minute goes back to wait. Knows nothing of paths and sockets. Thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/tasks/data_source.h"
#include "workers/net/http_server.h"
#include "workers/net/messages.h"
#include "workers/serve/api_error.h"
#include "workers/serve/openai_request.h"
#include "workers/serve/served_model.h"
#include "workers/side/agent_sessions.h"

namespace tidepool::workers {

struct AgentCounts {
  int64_t open = 0, waiting = 0;  // sessions; samples that no program has taken
  int64_t taken = 0, rewarded = 0, expired = 0, lost = 0, histories_refused = 0, none_left = 0, turns = 0;
};

class AgentEpisodes {
 public:
  using Clock = std::chrono::steady_clock;
  using Say = std::function<void(up::EnvStepped)>;
  // data: the tasks that sessions are given, or null. ends: tokens that end a turn; not empty.
  AgentEpisodes(const JobConfig& config, std::unique_ptr<const ServedModel> model, std::vector<int32_t> ends,
                std::unique_ptr<const tasks::DataSource> data, Say say);

  [[nodiscard]] const ServedModel& model() const { return *model_; }

  // --- the run's side
  void Play(AgentTurn turn);
  void End(const SampleId& tid, int32_t att);
  void Tick(Clock::time_point now);

  // --- the programs' side; each answers through its reply, at once or later
  void Take(const std::string& url, std::shared_ptr<HttpReply> reply);  // POST /sessions
  void Touch(const std::string& session);                               // its program is there
  void Ask(const std::string& session, AskedTurn asked, std::shared_ptr<HttpReply> reply);
  // `reward` finite.
  [[nodiscard]] HttpResponse Reward(const std::string& session, double reward, bool solved);
  // Of its key. kNotFound: there is no such session, and what became of it.
  [[nodiscard]] StatusOr<std::string> DigestOf(const std::string& session) const;
  [[nodiscard]] AgentCounts Counts() const;

 private:
  using Json = nlohmann::ordered_json;
  using GroupKey = std::pair<int64_t, int32_t>;  // ordinal, issue
  enum class Stage {
    kNew,    // nothing was asked yet
    kFirst,  // the first request waits for a sample's first action
    kIdle,   // the program has its answer, and the run waits for what it does
    kDrawn,  // the run draws the next action
  };
  struct Session {
    std::string id, digest;
    GroupKey group;
    Stage stage = Stage::kNew;
    std::optional<SampleId> tid;  // from its first action on
    int32_t att = 0;
    int64_t turn = 0;          // actions so far
    Json history, setting;     // what was said, canonical; tools and variables of the template
    std::string text;          // of completions: what was said
    std::vector<int32_t> ids;  // prompt, actions and observations
    int64_t prompt_tokens = 0;
    uint64_t hash = 0;                 // environments::ExtendHistory of all observations
    AskedTurn asked;                   // last
    std::shared_ptr<HttpReply> reply;  // that waits
    TokenRecord action;                // last
    size_t before_action = 0;          // tokens of `ids` before it
    up::EnvStepped said;               // last, where `turn` was answered
    bool reading = false;              // a request of it is being tokenised
    Clock::time_point begun, touched;
  };
  struct Group {
    bool asked = false;  // the run waits for its prompt
    int32_t att = 0;
    bool known = false;  // it has a prompt
    Json history, setting;
    std::string text;
    std::vector<int32_t> prompt;
    up::EnvStepped row;  // as it was said
    uint64_t hash = 0;
    int64_t open = 0;                // sessions, each for one of its samples
    std::set<int32_t> over;          // samples that are done with
    std::vector<AgentTurn> waiting;  // first actions that no session has
    int64_t refused = 0;             // first requests, for another prompt, since one had this one
    Clock::time_point refused_since;
    std::string given_up;  // why no session is given any more of its samples
  };
  struct Taker {
    int64_t number = 0;
    std::string url;
    std::shared_ptr<HttpReply> reply;
    Clock::time_point until;
  };
  using Sessions = std::map<std::string, Session>;

  void Give() TP_REQUIRES(mu_);  // samples to those who wait for one
  [[nodiscard]] HttpResponse Open(const GroupKey& key, Group& group, const std::string& url) TP_REQUIRES(mu_);
  void Bind(const GroupKey& key) TP_REQUIRES(mu_);  // first actions to sessions that wait for one
  void Deliver(Session& session, AgentTurn turn) TP_REQUIRES(mu_);
  void Answer(Session& session, std::shared_ptr<HttpReply> reply) TP_REQUIRES(mu_);
  // The history with the answer that was just given.
  void Remember(Session& session) TP_REQUIRES(mu_);
  void SayLost(const SampleId& tid, int32_t att, int64_t turn, const std::string& why, bool late)
      TP_REQUIRES(mu_);
  void SayOf(Session& session, up::EnvStepped what) TP_REQUIRES(mu_);
  // Nothing is said of it to the run.
  Sessions::iterator Close(Sessions::iterator at, const std::string& why) TP_REQUIRES(mu_);
  Sessions::iterator GiveUp(Sessions::iterator at, const std::string& why) TP_REQUIRES(mu_);
  void SampleOver(const SampleId& tid) TP_REQUIRES(mu_);
  // Its samples that no session has are lost.
  void GiveUpRest(const GroupKey& key) TP_REQUIRES(mu_);
  void CloseSurplus(const GroupKey& key, const std::string& why) TP_REQUIRES(mu_);
  // Its samples that a program may take, or will when they come.
  [[nodiscard]] int64_t Free(const Group& group) const;
  void ForgetGroup(const GroupKey& key, const std::string& why) TP_REQUIRES(mu_);
  [[nodiscard]] StatusOr<std::string> BehindAnswer(const AskedTurn& asked, const Json& messages, size_t known,
                                                   size_t text_known) const;
  [[nodiscard]] static bool Refused(const std::shared_ptr<HttpReply>& reply, AnswerForm form,
                                    const std::optional<ApiError>& error);

  const JobConfig config_;
  const std::unique_ptr<const ServedModel> model_;
  const std::vector<int32_t> ends_;
  const std::unique_ptr<const tasks::DataSource> data_;
  const Say say_;
  const Clock::duration idle_, longest_;
  const int64_t turns_most_;

  mutable Mutex mu_;
  std::map<GroupKey, Group> groups_ TP_GUARDED_BY(mu_);
  Sessions sessions_ TP_GUARDED_BY(mu_);
  std::map<SampleId, std::string> by_sample_ TP_GUARDED_BY(mu_);
  // Samples whose session ended while the run drew an action: att, and why.
  std::map<SampleId, std::pair<int32_t, std::string>> doomed_ TP_GUARDED_BY(mu_);
  std::map<std::string, std::string> ended_ TP_GUARDED_BY(mu_);  // sessions, and what became of them
  std::vector<std::string> ended_order_ TP_GUARDED_BY(mu_);
  std::vector<Taker> takers_ TP_GUARDED_BY(mu_);
  int64_t asked_to_take_ TP_GUARDED_BY(mu_) = 0;
  AgentCounts counts_ TP_GUARDED_BY(mu_);
  int64_t answers_ TP_GUARDED_BY(mu_) = 0;
};

}  // namespace tidepool::workers
