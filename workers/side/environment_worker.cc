#include "workers/side/environment_worker.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <utility>

#include "core/base/running_call.h"
#include "core/environments/episode.h"
#include "core/policy/spec.h"
#include "workers/net/auth.h"
#include "workers/net/worker_trace.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

class EnvironmentWorker : public SideWorker {
 public:
  explicit EnvironmentWorker(bool vector) : hosts_vector_(vector) {}

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
    RunningCall::TellCrashes();
    config_ = config;
    if (vector_ != nullptr) return vector_->Serve(policy::EnvironmentOfJob(config_));
    TP_ASSIGN_OR_RETURN(auto source, environments::EpisodeSource::Create(config_));
    host_ = std::make_unique<environments::EpisodeHost>(std::move(source));
    if (config_.observe.trace)
      trace_ =
          OpenWorkerTrace(welcome, welcome.inc, LogName(config, welcome), {{0, config_.environment()->name}});
    return OkStatus();
  }

  void Take(ToWorkerBody& command) override {
    const auto* step = std::get_if<down::EnvStep>(&command);
    if (step != nullptr && host_ != nullptr) Play(*step);
  }

  void Answer() override {
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

  [[nodiscard]] std::chrono::milliseconds UntilNext() const override {
    using std::chrono::milliseconds;
    if (due_.empty()) return milliseconds(50);
    const auto left = std::chrono::duration_cast<milliseconds>(due_.begin()->first - Clock::now());
    return std::clamp(left, milliseconds(1), milliseconds(50));
  }

  void Describe(up::Heartbeat& beat) override {
    beat.op = "play";
    beat.op_seq = vector_ != nullptr ? vector_->steps() : answered_;
  }

 private:
  // The game is computed now; what came of it is said when the turn's time has passed.
  void Play(const down::EnvStep& step) {
    const auto begin = Clock::now();
    const TimePoint trace_begin = TraceNow();
    up::EnvStepped out = PlayTurn(*host_, config_.environment()->name, step);
    // A finished episode that is played again for its reward has had its turns.
    double takes = step.turn >= 0 ? environments::TurnLatency(config_.environment()->latency, config_.seed,
                                                              step.tid, step.turn)
                                  : 0;
    if (!config_.cluster.pace.empty()) takes *= config_.cluster.pace_scale;  // modelled time, as the slots'
    if (takes > step.timeout_s) {
      takes = step.timeout_s;
      out.outcome = GradeOutcome::kInfra;
      out.timed_out = true;
      out.why = "turn " + std::to_string(step.turn) + " did not end within " +
                std::to_string(step.timeout_s) + " s";
    }
    const auto due =
        begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(takes));
    due_.emplace(due, Waiting{begin, trace_begin, std::move(out)});
  }

  struct Waiting {
    Clock::time_point begin;
    TimePoint trace_begin;
    up::EnvStepped reply;
  };
  const bool hosts_vector_;
  JobConfig config_;
  std::unique_ptr<environments::EpisodeHost> host_;
  std::unique_ptr<VectorServer> vector_;  // in place of host_
  std::multimap<Clock::time_point, Waiting> due_;
  int64_t answered_ = 0;
};

}  // namespace

up::EnvStepped PlayTurn(environments::EpisodeHost& host, const std::string& environment,
                        const down::EnvStep& step) {
  up::EnvStepped out;
  out.tid = step.tid;
  out.att = step.att;
  out.turn = step.turn;
  const int64_t replayed = host.replayed();
  const auto played = host.Play(step.tid, step.att, step.actions);
  out.replayed = host.replayed() - replayed;
  if (played.ok()) {
    out.observation = played->observation;
    out.reward = played->reward;
    out.done = played->done;
    out.rewards = {{"solved", played->solved ? 1.0 : 0.0}, {environment, played->reward}};
    out.history = played->history;
    out.state = played->state;
  } else {
    out.outcome = GradeOutcome::kData;
    out.why = played.status().message();
  }
  return out;
}

int RunEnvironmentWorker(const EnvironmentWorkerOptions& options) {
  EnvironmentWorker worker(options.vector);
  return worker.Run(options, scheduler::WorkerKind::kEnvironment);
}

}  // namespace tidepool::workers
