#include "workers/environment_worker.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "core/config/load.h"
#include "core/environments/episode.h"
#include "core/observe/log.h"
#include "core/policy/spec.h"
#include "workers/auth.h"
#include "workers/build_info.h"
#include "workers/link.h"
#include "workers/mailbox.h"
#include "workers/resolved_config.h"
#include "workers/vector_service.h"
#include "workers/worker_trace.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

class EnvironmentWorker {
 public:
  int Run(const EnvironmentWorkerOptions& options) {
    const auto token = ReadTokenFile(options.token_file);
    if (!token.ok()) return Failed("attach", token.status());
    LinkOptions link;
    link.address = options.address;
    link.token = *token;
    link.control_file = options.control_file;
    link.hello.build = BuildInfo();
    link.hello.run_id = options.run_id;
    link.hello.place = options.place;
    link.hello.kind = scheduler::WorkerKind::kEnvironment;
    link.hello.pid = getpid();
    if (options.vector) {
      // A token of its own: callers learn it from the controller, and it ends with this process.
      const auto secret = JobTokens::Random();
      if (!secret.ok()) return Failed("attach", secret.status());
      auto server = VectorServer::Start({.token = secret->Token(CallerRole::kDevice)});
      if (!server.ok()) return Failed("attach", server.status());
      vector_ = std::move(*server);
      link.hello.environment_address = vector_->address();
      link.hello.environment_token = secret->Token(CallerRole::kDevice);
    }
    auto connected = Link::Connect(link, [this](LinkEvent e) { inbox_.Put(std::move(e)); });
    if (!connected.ok()) return Failed("attach", connected.status());
    link_ = std::move(*connected);
    while (exit_code_ < 0) {
      for (LinkEvent& event : inbox_.TakeAll(UntilNext())) Take(event);
      Answer();
      Beat();
    }
    if (trace_) (void)trace_->Flush();  // the end: a trace that cannot be written is only shorter
    return exit_code_;
  }

 private:
  static int Failed(const char* what, const Status& status) {
    observe::Log(observe::LogLevel::kError, what, {{"why", status.message()}});
    return 2;
  }

  void Take(LinkEvent& event) {
    if (auto* closed = std::get_if<LinkClosed>(&event)) {
      observe::Log(observe::LogLevel::kWarn, "controller_lost", {{"why", closed->why}});
      exit_code_ = 3;
      return;
    }
    ToWorker& message = std::get<ToWorker>(event);
    if (auto* welcome = std::get_if<down::Welcome>(&message.body)) {
      Begin(message.inc, *welcome);
    } else if (auto* step = std::get_if<down::EnvStep>(&message.body)) {
      if (host_ != nullptr && message.inc == inc_) Play(*step);
    } else if (std::holds_alternative<down::Shutdown>(message.body)) {
      exit_code_ = 0;
    }
  }

  void Begin(Incarnation inc, const down::Welcome& welcome) {
    if (inc_.valid() && inc_ == inc) return;  // attached again
    inc_ = inc;
    auto config = ParseResolved(welcome.config_yaml);
    if (!config.ok()) {
      exit_code_ = Failed("config", config.status());
      return;
    }
    config_ = std::move(*config);
    link_->SetReattach(config_.cluster.reattach_grace_s, [] { return std::vector<up::Held>{}; });
    if (vector_ != nullptr) {
      if (const Status serving = vector_->Serve(policy::EnvironmentOfJob(config_)); !serving.ok()) exit_code_ = Failed("environment", serving);
      return;
    }
    auto source = environments::EpisodeSource::Create(config_);
    if (!source.ok()) {
      exit_code_ = Failed("environment", source.status());
      return;
    }
    host_ = std::make_unique<environments::EpisodeHost>(std::move(*source));
    if (config_.observe.trace) trace_ = OpenWorkerTrace(welcome, inc_, "environment", {{0, config_.environment.name}});
  }

  // The game is computed now; what came of it is said when the turn's time has passed.
  void Play(const down::EnvStep& step) {
    const auto begin = Clock::now();
    const TimePoint trace_begin = TraceNow();
    up::EnvStepped out;
    out.tid = step.tid;
    out.att = step.att;
    out.turn = step.turn;
    const int64_t replayed = host_->replayed();
    const auto played = host_->Play(step.tid, step.att, step.actions);
    out.replayed = host_->replayed() - replayed;
    if (played.ok()) {
      out.observation = played->observation;
      out.reward = played->reward;
      out.done = played->done;
      out.rewards = {{"solved", played->solved ? 1.0 : 0.0}, {config_.environment.name, played->reward}};
      out.history = played->history;
      out.state = played->state;
    } else {
      out.outcome = GradeOutcome::kData;
      out.why = played.status().message();
    }
    // A finished episode that is played again for its reward has had its turns.
    double takes = step.turn >= 0 ? environments::TurnLatency(config_.environment.latency, config_.seed, step.tid, step.turn) : 0;
    if (!config_.cluster.pace.empty()) takes *= config_.cluster.pace_scale;  // modelled time, as the slots'
    if (takes > step.timeout_s) {
      takes = step.timeout_s;
      out.outcome = GradeOutcome::kInfra;
      out.timed_out = true;
      out.why = "turn " + std::to_string(step.turn) + " did not end within " + std::to_string(step.timeout_s) + " s";
    }
    const auto due = begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(takes));
    due_.emplace(due, Waiting{begin, trace_begin, std::move(out)});
  }

  void Answer() {
    const auto now = Clock::now();
    while (!due_.empty() && due_.begin()->first <= now) {
      Waiting w = std::move(due_.begin()->second);
      due_.erase(due_.begin());
      w.reply.seconds = std::chrono::duration<double>(now - w.begin).count();
      if (trace_) {
        trace_->Add({w.reply.turn == 0 ? "reset" : "turn", std::string(observe::kEnvironmentSpan), 0, w.trace_begin, TraceNow() - w.trace_begin,
                     {{"tid", ToString(w.reply.tid)}, {"turn", w.reply.turn}, {"reward", w.reply.reward}}});
      }
      ++answered_;
      link_->Send(std::move(w.reply));
    }
  }

  [[nodiscard]] std::chrono::milliseconds UntilNext() const {
    using std::chrono::milliseconds;
    if (due_.empty()) return milliseconds(50);
    const auto left = std::chrono::duration_cast<milliseconds>(due_.begin()->first - Clock::now());
    return std::clamp(left, milliseconds(1), milliseconds(50));
  }

  void Beat() {
    const auto now = Clock::now();
    if (now < next_beat_) return;
    next_beat_ = now + std::chrono::milliseconds(static_cast<int64_t>(config_.cluster.heartbeat_s * 1000));
    up::Heartbeat beat;
    beat.op = "play";
    beat.op_seq = vector_ != nullptr ? vector_->steps() : answered_;
    beat.waiting = static_cast<int64_t>(due_.size());
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    beat.rss_bytes = usage.ru_maxrss * 1024;
    link_->Send(std::move(beat));
    if (trace_) (void)trace_->Flush();
  }

  struct Waiting {
    Clock::time_point begin;
    TimePoint trace_begin;
    up::EnvStepped reply;
  };
  JobConfig config_;
  Mailbox<LinkEvent> inbox_;
  std::unique_ptr<Link> link_;
  std::unique_ptr<environments::EpisodeHost> host_;
  std::unique_ptr<VectorServer> vector_;  // in place of host_
  std::unique_ptr<observe::TraceWriter> trace_;
  std::multimap<Clock::time_point, Waiting> due_;
  Clock::time_point next_beat_ = Clock::now();
  Incarnation inc_;
  int64_t answered_ = 0;
  int exit_code_ = -1;
};

}  // namespace

int RunEnvironmentWorker(const EnvironmentWorkerOptions& options) {
  EnvironmentWorker worker;
  return worker.Run(options);
}

}  // namespace tidepool::workers
