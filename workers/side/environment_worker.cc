#include "workers/side/environment_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <variant>

#include "core/base/call_watch.h"
#include "core/base/file_system.h"
#include "core/base/real_file_system.h"
#include "core/base/thread_annotations.h"
#include "core/environments/episode.h"
#include "core/policy/spec.h"
#include "workers/data/fragment_judge.h"
#include "workers/data/stored_samples.h"
#include "workers/net/auth.h"
#include "workers/net/bounded_text.h"
#include "workers/net/mailbox.h"
#include "workers/net/worker_log.h"
#include "workers/net/worker_trace.h"
#include "workers/side/agent_sessions.h"
#include "workers/side/environment_services.h"
#include "workers/side/logged_turns.h"
#include "workers/side/served_vectors.h"
#include "workers/side/turn_queue.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

// Threads that wait for a service, each for a turn.
constexpr int64_t kMostPlayers = 64;

class EnvironmentWorker : public SideWorker {
 public:
  explicit EnvironmentWorker(const EnvironmentWorkerOptions& options)
      : hosts_vector_(options.vector), open_agents_(options.open_agents) {}

 protected:
  Status BeforeAttach(up::Hello& hello) override {
    if (!hosts_vector_) return OkStatus();
    // A token of its own: callers learn it from the controller, and it ends with this process.
    TP_ASSIGN_OR_RETURN(const auto secret, JobTokens::Random());
    TP_ASSIGN_OR_RETURN(vector_, VectorServer::Start({.token = secret.Token(CallerRole::kDevice)}));
    hello.environment_address = vector_->address();
    hello.environment_token = secret.Token(CallerRole::kDevice);
    return OkStatus();
  }

  Status Anew(const JobConfig& config, const down::Welcome& welcome) override {
    config_ = config;
    if (vector_ != nullptr) {
      judge_.reset();
      samples_.reset();
      auto opened = OpenWithin("read of the run's folder", [welcome] {
        return StatusOr<std::unique_ptr<StoredSamples>>(
            StoredSamples::Open(std::make_shared<RealFileSystem>(), welcome));
      });
      if (opened.ok()) samples_ = *std::move(opened);
      if (samples_ == nullptr) LogUnseen(opened.status());
      if (samples_ != nullptr) {
        TP_ASSIGN_OR_RETURN(FragmentJudge judge, FragmentJudge::Create(config_));
        judge_ = std::make_unique<FragmentJudge>(std::move(judge));
        StartCaller([this](const std::stop_token& stop) { Judge(stop); });
      }
      return ServeVectors();
    }
    const EnvironmentConfig& e = *config_.environment();
    if (e.is_endpoint()) return AwaitAgents(welcome);
    if (e.is_service())
      services_ =
          EnvironmentServices::Start(e, {.tools = static_cast<text::ToolFormat>(welcome.tool_format)});
    TP_ASSIGN_OR_RETURN(auto source, environments::EpisodeSource::Create(config_, services_));
    label_ = source.label();
    host_ = services_ == nullptr ? std::make_unique<environments::EpisodeHost>(std::move(source))
                                 : std::make_unique<environments::EpisodeHost>(
                                       std::move(source), static_cast<size_t>(e.instances),
                                       std::chrono::duration<double>(e.episode_timeout_s));
    TP_RETURN_IF_ERROR(OpenLogs(welcome));
    if (config_.observe.trace) trace_ = OpenWorkerTrace(config, welcome, {{0, config_.environment()->name}});
    // A game of this process is computed, one at a time; those of a service are waited for.
    const int64_t players = services_ == nullptr ? 1 : std::min(e.instances, kMostPlayers);
    for (int64_t i = 0; i < players; ++i) StartCaller([this](const std::stop_token& stop) { Work(stop); });
    return OkStatus();
  }

  void Take(ToWorkerBody& command) override {
    auto* step = std::get_if<down::EnvStep>(&command);
    if (step != nullptr && host_ != nullptr) turns_.Put(std::move(*step));
    auto* end = std::get_if<down::EndEpisode>(&command);
    if (end != nullptr && host_ != nullptr) EndEpisode(end->tid, end->att);
    if (step != nullptr && agents_ != nullptr) agent_work_.Put(Asked{std::move(*step), Clock::now()});
    if (end != nullptr && agents_ != nullptr) agent_work_.Put(*end);
    auto* grade = std::get_if<down::Grade>(&command);
    if (grade != nullptr && judge_ != nullptr) grades_.Put(std::move(*grade));
  }
  [[nodiscard]] bool SeesRun() const override { return judge_ != nullptr; }

  // Due while the player is in a game that takes its time.
  void Answer() override {
    SayDue();
    if (agents_ != nullptr) agents_->Tick();
  }
  [[nodiscard]] std::optional<PluginFailure> Failed() override {
    const std::string why = services_ == nullptr ? "" : services_->failed();
    return why.empty() ? std::nullopt : std::optional(PluginFailure{.what = label_, .why = why});
  }
  CallWatch* Watch() override { return vector_ != nullptr ? &vector_->watch() : &watch_; }

  void Describe(up::Heartbeat& beat) override {
    beat.op = "play";
    beat.op_seq = vector_ != nullptr ? vector_->steps() : answered_.load();
  }

  void End() override {
    StopCallers();
    agents_.reset();
    asked_.clear();
    host_.reset();
    if (services_ != nullptr && vector_ != nullptr) vector_->Serve(VectorServer::MakeHost());  // nobody new
    services_.reset();
    // waits: Await ends the process for an exchange that does not come back
    if (vector_ != nullptr && ending()) Await(std::async(std::launch::async, [this] { vector_->Stop(); }));
    turns_.Clear();  // of an incarnation that is over
    (void)agent_work_.TakeAll(std::chrono::milliseconds(0));
    (void)grades_.TakeAll(std::chrono::milliseconds(0));
    const MutexLock lock(mu_);
    due_.clear();
  }

 private:
  Status ServeVectors() {
    const EnvironmentConfig& e = *config_.environment();
    const environments::VectorOptions environment = policy::EnvironmentOfJob(config_);
    if (!e.is_service()) return vector_->Serve(environment, e.step_timeout_s);
    TP_ASSIGN_OR_RETURN(const environments::VectorSpec spec,
                        environments::FindVectorEnvironment(environment));
    label_ = environments::LabelOf(spec);
    services_ = EnvironmentServices::Start(e, {.vector = true});
    vector_->Serve(
        [job = config_, services = services_, kept = std::make_shared<KeptInstances>(PartsToKeep(config_))] {
          return std::make_unique<ServedHost>(job, services, kept);
        });
    return OkStatus();
  }

  struct Asked {
    down::EnvStep step;
    Clock::time_point at;
  };
  // A turn for a program outside, what it made of one, or the end of an episode.
  using AgentWork = std::variant<Asked, up::EnvStepped, down::EndEpisode>;

  Status OpenLogs(const down::Welcome& welcome) {
    auto logged = OpenWithin("read of the model's folder", [config = config_, welcome] {
      return LoggedTurns::Open(std::make_shared<RealFileSystem>(), config, welcome);
    });
    if (logged.status().code() == StatusCode::kFailedPrecondition) return logged.status();
    // Null: the controller asks, is told that nothing can be read here, and sends the words.
    const MutexLock lock(logged_mu_);
    logged_ = logged.ok() ? *std::move(logged) : nullptr;
    if (logged_ == nullptr) LogUnseen(logged.status());
    return OkStatus();
  }

  // --- episodes of programs outside: one thread reads and writes their tokens, and none waits for them

  Status AwaitAgents(const down::Welcome& welcome) {
    label_ = config_.environment()->name;
    TP_RETURN_IF_ERROR(OpenLogs(welcome));
    if (!open_agents_) return FailedPrecondition("rollout.endpoint: this program has no endpoint");
    TP_ASSIGN_OR_RETURN(
        agents_, open_agents_({.config = config_,
                               .run_dir = welcome.run_dir,
                               .model_dir = welcome.model_dir,
                               .say = [this](up::EnvStepped said) { agent_work_.Put(std::move(said)); }}));
    StartCaller([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (AgentWork& work : agent_work_.Take(std::chrono::milliseconds(50), 1)) {
          if (auto* asked = std::get_if<Asked>(&work)) GiveToAgent(std::move(*asked));
          if (auto* said = std::get_if<up::EnvStepped>(&work)) SayOfAgent(std::move(*said));
          if (const auto* end = std::get_if<down::EndEpisode>(&work)) EndOfAgent(end->tid, end->att);
        }
      }
    });
    return OkStatus();
  }

  void GiveToAgent(Asked asked) {
    down::EnvStep& step = asked.step;
    TokenRecord action = std::move(step.action);
    LoggedTurns::Said said;
    if (step.said.valid()) {
      const MutexLock lock(logged_mu_);
      auto read = logged_ == nullptr ? FailedPrecondition("the run's folder is not seen here")
                                     : logged_->Read(step, asked.at);
      if (!read.ok()) return Say(Unheard(step, read.status()));
      said = *std::move(read);
      action = std::move(said.action);
    }
    AgentTurn turn{.tid = step.tid, .att = step.att, .turn = step.turn, .action = std::move(action)};
    const SampleId tid = step.tid;
    if (tid.sample != SampleId::kRowSample) asked_[tid] = {std::move(step), std::move(said)};
    agents_->Play(std::move(turn));
  }

  void SayOfAgent(up::EnvStepped out) {
    const auto asked = asked_.find(out.tid);
    if (asked != asked_.end() && asked->second.first.att == out.att && asked->second.first.turn == out.turn) {
      const auto [step, said] = std::move(asked->second);
      asked_.erase(asked);
      const MutexLock lock(logged_mu_);
      if (step.said.valid() && out.outcome == GradeOutcome::kOk && !out.done && logged_ != nullptr) {
        if (const Status written = logged_->Write(step, said, out); !written.ok())
          out = Unheard(step, Unavailable(written.message()));
      }
      if (logged_ != nullptr && (out.done || out.outcome != GradeOutcome::kOk)) logged_->Forget(out.tid);
    }
    ++answered_;
    Say(std::move(out));
  }

  void EndOfAgent(const SampleId& tid, int32_t att) {
    const auto asked = asked_.find(tid);
    if (asked != asked_.end() && asked->second.first.att == att) asked_.erase(asked);
    agents_->End(tid, att);
    const MutexLock lock(logged_mu_);
    if (logged_ != nullptr) logged_->Forget(tid);
  }

  // The policy's words are not to be had here.
  static up::EnvStepped Unheard(const down::EnvStep& step, const Status& why) {
    up::EnvStepped reply{.tid = step.tid, .att = step.att, .turn = step.turn};
    reply.unread = why.code() != StatusCode::kInvalidArgument;
    reply.outcome = reply.unread ? GradeOutcome::kInfra : GradeOutcome::kData;
    reply.why = "the policy's words: " + why.message();
    return reply;
  }
  // Threads of their own: the loop says that the worker lives while a game takes its time.
  void Work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (auto turn = turns_.Take(UntilTheNextIsDue())) Play(*std::move(turn), stop);
      if (!stop.stop_requested()) SayDue();
    }
  }

  // What a fragment is worth, when it is over; its steps were played here or by another host.
  void Judge(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const down::Grade& grade : grades_.Take(std::chrono::milliseconds(50), 1)) {
        const auto begin = Clock::now();
        const auto read = samples_->Read(grade);
        up::Graded verdict =
            read.ok() ? judge_->Grade(grade.tid, grade.att, *read) : Unread(grade, read.status());
        verdict.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
        Say(std::move(verdict));
      }
    }
  }

  void SayDue() {
    const MutexLock lock(mu_);
    const auto now = Clock::now();
    while (!due_.empty() && due_.begin()->first <= now) {
      Waiting w = std::move(due_.begin()->second);
      due_.erase(due_.begin());
      w.reply.seconds = std::chrono::duration<double>(now - w.begin).count();
      if (trace_) {
        trace_->Add({w.reply.turn == 0 ? "reset" : "turn",
                     std::string(observe::kEnvironmentSpan),
                     0,
                     w.trace_begin,
                     TraceNow() - w.trace_begin,
                     {{"tid", ToString(w.reply.tid)}, {"turn", w.reply.turn}, {"reward", w.reply.reward}}});
      }
      ++answered_;
      Say(std::move(w.reply));
    }
  }

  [[nodiscard]] std::chrono::milliseconds UntilTheNextIsDue() {
    using std::chrono::milliseconds;
    const MutexLock lock(mu_);
    if (due_.empty()) return milliseconds(50);
    const auto left = std::chrono::duration_cast<milliseconds>(due_.begin()->first - Clock::now());
    return std::clamp(left, milliseconds(1), milliseconds(50));
  }

  [[nodiscard]] PluginCall CallOf(const down::EnvStep& step) const {
    const std::string key = step.turn == 0 ? "environment.reset_timeout_s" : "environment.step_timeout_s";
    std::string on = "turn " + std::to_string(step.actions.size()) + " of sample " + ToString(step.tid);
    if (!step.actions.empty())
      on += ", action " + nlohmann::json(step.actions.back().substr(0, 100))
                              .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    return {.what = label_, .on = std::move(on), .limit_s = step.timeout_s, .key = key};
  }

  // What is held of an attempt that nobody plays any more.
  void EndEpisode(const SampleId& tid, int32_t att) {
    turns_.End(tid, att);
    Forget(tid, att);
  }
  void Forget(const SampleId& tid, int32_t att) {
    host_->Forget(tid, att);
    const MutexLock lock(logged_mu_);
    if (logged_ != nullptr) logged_->Forget(tid);
  }

  // Actions and observation may lie in token logs.
  up::EnvStepped Played(TurnQueue::Turn& turn, const std::stop_token& stop) {
    down::EnvStep& step = turn.step;
    StatusOr<LoggedTurns::Said> said = LoggedTurns::Said{};
    if (step.said.valid()) {
      const MutexLock lock(logged_mu_);
      said = logged_ == nullptr ? FailedPrecondition("the run's folder is not seen here")
                                : logged_->Read(step, turn.at);
    }
    if (!said.ok()) return Unheard(step, said.status());
    up::EnvStepped out;
    {
      // What a service does not answer is given up at its time; a game of this process cannot be.
      std::optional<CallWatch::Call> call;
      if (services_ == nullptr) call.emplace(watch_, CallOf(step));
      out = PlayTurn(*host_, config_.environment()->name, step, stop);
    }
    const MutexLock lock(logged_mu_);
    if (logged_ != nullptr && out.done) logged_->Forget(step.tid);
    if (step.said.valid() && out.outcome == GradeOutcome::kOk && !out.done && step.turn > 0) {
      // Its words go to the controller then, which asks for them.
      if (const Status written = logged_->Write(step, *said, out); !written.ok())
        return Unheard(step, Unavailable(written.message()));
    }
    return out;
  }

  // The game is computed now; what came of it is said when the turn's time has passed.
  void Play(TurnQueue::Turn turn, const std::stop_token& stop) {
    const auto begin = Clock::now();
    const TimePoint trace_begin = TraceNow();
    down::EnvStep& step = turn.step;
    up::EnvStepped out{.tid = step.tid, .att = step.att, .turn = step.turn};
    if (turn.wanted) {
      // What has waited has only the rest of its time: the controller counts from when it was given.
      const auto limit = std::chrono::duration<double>(step.timeout_s);
      const std::chrono::duration<double> waited = begin - turn.at;
      if (turn.had_no_room()) step.timeout_s -= std::min(waited, limit / 2).count();
      out = Played(turn, stop);
      step.timeout_s = limit.count();
      if (out.no_room && waited < limit / 2) return turns_.NoRoom(std::move(turn));
    } else {
      out.outcome = GradeOutcome::kInfra;
      out.why = "nobody plays the episode any more";
    }
    if (!turns_.Done(turn, out.done || out.outcome != GradeOutcome::kOk)) Forget(step.tid, step.att);
    // Of a service that will never play again this worker's end is the answer: it tells whose fault it is.
    if (out.outcome == GradeOutcome::kInfra && services_ != nullptr && !services_->failed().empty()) return;
    // A finished episode that is played again for its reward has had its turns.
    double takes = step.turn >= 0 ? environments::TurnLatency(config_.environment()->latency, config_.seed,
                                                              step.tid, step.turn)
                                  : 0;
    if (!config_.cluster.pace.empty()) takes *= config_.cluster.pace_scale;  // modelled time, as the slots'
    if (out.unread) takes = 0;                                               // it was not played
    if (takes > step.timeout_s) {
      takes = step.timeout_s;
      out.outcome = GradeOutcome::kInfra;
      out.timed_out = true;
      out.why = "turn " + std::to_string(step.turn) + " did not end within " +
                std::to_string(step.timeout_s) + " s";
    }
    const auto due =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(takes));
    const MutexLock lock(mu_);
    due_.emplace(due, Waiting{begin, trace_begin, std::move(out)});
  }

  struct Waiting {
    Clock::time_point begin;
    TimePoint trace_begin;
    up::EnvStepped reply;
  };
  const bool hosts_vector_;
  const OpenAgentSessions open_agents_;
  JobConfig config_;
  std::shared_ptr<EnvironmentServices> services_;  // that host_ plays in; null: in this process
  std::unique_ptr<environments::EpisodeHost> host_;
  std::unique_ptr<AgentSessions> agents_;  // in place of host_
  Mailbox<AgentWork> agent_work_;
  // Turns that programs outside have, of the thread that gives them.
  std::map<SampleId, std::pair<down::EnvStep, LoggedTurns::Said>> asked_;
  Mutex logged_mu_;
  std::unique_ptr<LoggedTurns> logged_ TP_GUARDED_BY(logged_mu_);  // null: the run's folder is not seen here
  std::unique_ptr<VectorServer> vector_;                           // in place of host_
  // Of vector_; null: the run's folder is not seen here, and the controller judges.
  std::unique_ptr<StoredSamples> samples_;
  std::unique_ptr<FragmentJudge> judge_;
  Mailbox<down::Grade> grades_;
  std::string label_;
  TurnQueue turns_;
  CallWatch watch_;
  Mutex mu_;
  std::multimap<Clock::time_point, Waiting> due_ TP_GUARDED_BY(mu_);
  std::atomic<int64_t> answered_ = 0;
};

}  // namespace

up::EnvStepped PlayTurn(environments::EpisodeHost& host, const std::string& environment,
                        const down::EnvStep& step, const std::stop_token& stop) {
  up::EnvStepped out;
  out.tid = step.tid;
  out.att = step.att;
  out.turn = step.turn;
  const int64_t replayed = host.replayed();
  environments::PlayLimit limit{.stop = stop, .waits_for_room = false};
  if (step.timeout_s > 0)
    limit.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(step.timeout_s));
  const auto played = host.Play(step.tid, step.att, step.actions, limit);
  out.replayed = host.replayed() - replayed;
  if (played.ok()) {
    out.observation = played->observation;
    out.conversation = played->conversation;
    out.reward = played->reward;
    out.done = played->done;
    out.rewards = {{"solved", played->solved ? 1.0 : 0.0}, {environment, played->reward}};
    out.history = played->history;
    out.next_history = environments::ExtendHistory(out.history, out.observation, out.reward);
    out.state = played->state;
  } else {
    const StatusCode code = played.status().code();
    out.outcome = code == StatusCode::kDataLoss ? GradeOutcome::kData : GradeOutcome::kInfra;
    out.timed_out = code == StatusCode::kDeadlineExceeded;
    out.no_room = code == StatusCode::kResourceExhausted;
    out.why = Bounded(played.status().message());
  }
  return out;
}

int RunEnvironmentWorker(const EnvironmentWorkerOptions& options) {
  EnvironmentWorker worker(options);
  return worker.Run(options, scheduler::WorkerKind::kEnvironment);
}

}  // namespace tidepool::workers
