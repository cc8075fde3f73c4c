#include "workers/reward_worker.h"

#include <grpcpp/grpcpp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "core/config/load.h"
#include "core/observe/log.h"
#include "core/tasks/reward.h"
#include "proto/reward.grpc.pb.h"
#include "workers/auth.h"
#include "workers/build_info.h"
#include "workers/link.h"
#include "workers/mailbox.h"
#include "workers/worker_trace.h"
#include "workers/resolved_config.h"
#include "workers/wire.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

// Gradings in flight: enough to hide the latency of a remote grader, few enough for a small one.
constexpr int kThreads = 4;

}  // namespace

struct Graders::Impl {
  struct Function {
    RewardFunction config;
    std::unique_ptr<tasks::Reward> builtin;
    std::shared_ptr<grpc::Channel> channel;
  };
  std::vector<Function> functions;

  static tasks::Verdict Ask(const Function& f, const down::Grade& request) {
    if (f.builtin != nullptr) {
      tasks::RewardInput input;
      input.prompt = request.prompt;
      input.answer = request.answer;
      input.fields = {request.fields.begin(), request.fields.end()};
      input.text = request.text;
      input.response_tokens = request.response_tokens;
      input.ended = request.ended;
      input.max_new_tokens = request.max_new_tokens;
      return f.builtin->Score(input);
    }
    v1::ScoreRequest wire;
    ToScoreRequest(request, &wire);
    v1::ScoreReply reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(static_cast<int64_t>(f.config.timeout_s * 1000)));
    const grpc::Status status = v1::Reward::NewStub(f.channel)->Score(&context, wire, &reply);
    using Outcome = tasks::Verdict::Outcome;
    if (!status.ok()) {
      return {Outcome::kInfra, 0, f.config.name + " at " + f.config.endpoint + ": " + std::string(StatusCodeName(static_cast<StatusCode>(status.error_code()))) + " " + status.error_message()};
    }
    if (reply.outcome() != v1::ScoreReply::OK) return {Outcome::kData, 0, f.config.name + ": " + reply.detail()};
    if (!std::isfinite(reply.score())) return {Outcome::kData, 0, f.config.name + " gave a score that is not finite"};
    return {Outcome::kOk, reply.score(), reply.detail()};
  }
};

Graders::Graders() : impl_(std::make_unique<Impl>()) {}
Graders::~Graders() = default;

StatusOr<std::unique_ptr<Graders>> Graders::Create(const RewardConfig& config) {
  std::unique_ptr<Graders> graders(new Graders());
  for (const RewardFunction& f : config.functions) {
    Impl::Function function;
    function.config = f;
    if (f.endpoint.empty()) {
      TP_ASSIGN_OR_RETURN(function.builtin, tasks::MakeReward(f.name));
    } else {
      grpc::ChannelArguments args;
      args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
      function.channel = grpc::CreateCustomChannel(f.endpoint, grpc::InsecureChannelCredentials(), args);
    }
    graders->impl_->functions.push_back(std::move(function));
  }
  return graders;
}

up::Graded Graders::Score(const down::Grade& request) const {
  const auto start = Clock::now();
  up::Graded out;
  out.tid = request.tid;
  out.att = request.att;
  for (const auto& f : impl_->functions) {
    const tasks::Verdict verdict = Impl::Ask(f, request);
    if (verdict.outcome != tasks::Verdict::Outcome::kOk) {
      out.outcome = verdict.outcome == tasks::Verdict::Outcome::kData ? GradeOutcome::kData : GradeOutcome::kInfra;
      out.reward = 0;
      out.rewards.clear();
      out.why = verdict.detail;
      break;
    }
    out.rewards.emplace_back(f.config.name, verdict.score);
    out.reward += f.config.weight * verdict.score;
  }
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

int RunRewardWorker(const RewardWorkerOptions& options) {
  const auto token = ReadTokenFile(options.token_file);
  if (!token.ok()) {
    observe::Log(observe::LogLevel::kError, "attach", {{"why", token.status().message()}});
    return 2;
  }
  Mailbox<LinkEvent> inbox;
  Mailbox<down::Grade> work;
  LinkOptions link_options;
  link_options.address = options.address;
  link_options.token = *token;
  link_options.control_file = options.control_file;
  link_options.hello.build = BuildInfo();
  link_options.hello.run_id = options.run_id;
  link_options.hello.place = options.place;
  link_options.hello.kind = scheduler::WorkerKind::kReward;
  link_options.hello.pid = getpid();
  auto link = Link::Connect(link_options, [&](LinkEvent e) { inbox.Put(std::move(e)); });
  if (!link.ok()) {
    observe::Log(observe::LogLevel::kError, "attach", {{"why", link.status().message()}});
    return 2;
  }
  std::unique_ptr<Graders> graders;
  std::unique_ptr<observe::TraceWriter> trace;
  std::vector<std::jthread> threads;
  double heartbeat_s = 0.5;
  auto next_beat = Clock::now();
  int64_t graded = 0;
  std::mutex graded_mu;
  int exit_code = -1;
  Incarnation inc;
  while (exit_code < 0) {
    for (LinkEvent& event : inbox.TakeAll(std::chrono::milliseconds(50))) {
      if (auto* closed = std::get_if<LinkClosed>(&event)) {
        observe::Log(observe::LogLevel::kWarn, "controller_lost", {{"why", closed->why}});
        exit_code = 3;
        break;
      }
      ToWorker& message = std::get<ToWorker>(event);
      if (auto* welcome = std::get_if<down::Welcome>(&message.body)) {
        if (inc.valid() && inc == message.inc) continue;  // attached again
        inc = message.inc;
        auto config = ParseResolved(welcome->config_yaml);
        if (!config.ok()) {
          observe::Log(observe::LogLevel::kError, "config", {{"why", config.status().message()}});
          exit_code = 2;
          break;
        }
        heartbeat_s = config->cluster.heartbeat_s;
        (*link)->SetReattach(config->cluster.reattach_grace_s, [] { return std::vector<up::Held>{}; });
        auto made = Graders::Create(config->reward);
        if (!made.ok()) {
          observe::Log(observe::LogLevel::kError, "reward", {{"why", made.status().message()}});
          exit_code = 2;
          break;
        }
        graders = std::move(*made);
        if (config->observe.trace) {
          std::vector<std::pair<int, std::string>> rows;
          for (int i = 0; i < kThreads; ++i) rows.emplace_back(i, "grading " + std::to_string(i));
          trace = OpenWorkerTrace(*welcome, inc, "reward", rows);
        }
        for (int i = 0; i < kThreads; ++i) {
          threads.emplace_back([&, i](std::stop_token stop) {
            while (!stop.stop_requested()) {
              for (down::Grade& grade : work.TakeOne(std::chrono::milliseconds(100))) {
                const TimePoint begin = TraceNow();
                up::Graded verdict = graders->Score(grade);
                if (trace) trace->Add({"grade", std::string(observe::kRewardSpan), i, begin, TraceNow() - begin, {{"tid", ToString(grade.tid)}, {"reward", verdict.reward}}});
                (*link)->Send(std::move(verdict));
                const std::lock_guard lock(graded_mu);
                ++graded;
              }
            }
          });
        }
      } else if (auto* grade = std::get_if<down::Grade>(&message.body)) {
        if (graders != nullptr && message.inc == inc) work.Put(std::move(*grade));
      } else if (std::holds_alternative<down::Shutdown>(message.body)) {
        exit_code = 0;
        break;
      }
    }
    if (Clock::now() >= next_beat) {
      next_beat = Clock::now() + std::chrono::milliseconds(static_cast<int64_t>(heartbeat_s * 1000));
      up::Heartbeat beat;
      beat.op = "grade";
      {
        const std::lock_guard lock(graded_mu);
        beat.op_seq = graded;
      }
      struct rusage usage {};
      getrusage(RUSAGE_SELF, &usage);
      beat.rss_bytes = usage.ru_maxrss * 1024;
      (*link)->Send(std::move(beat));
      if (trace) (void)trace->Flush();
    }
  }
  for (auto& t : threads) t.request_stop();
  threads.clear();
  if (trace) (void)trace->Flush();  // the end: a trace that cannot be written is only shorter
  return exit_code;
}

}  // namespace tidepool::workers
