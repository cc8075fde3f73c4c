#include "workers/side/reward_worker.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "core/tasks/reward.h"
#include "proto/reward.grpc.pb.h"
#include "workers/net/bounded_text.h"
#include "workers/net/mailbox.h"
#include "workers/net/worker_trace.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

// Gradings in flight: enough to hide the latency of a remote grader, few enough for a small one.
constexpr int kThreads = 4;

}  // namespace

struct Graders::Impl {
  struct Function {
    RewardFunction config;
    tasks::Reward builtin;  // or
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
      return f.builtin(input);
    }
    v1::ScoreRequest wire;
    wire.set_prompt(request.prompt);
    wire.set_answer(request.answer);
    for (const auto& [name, value] : request.fields) (*wire.mutable_fields())[name] = value;
    wire.set_text(request.text);
    wire.set_response_tokens(request.response_tokens);
    wire.set_max_new_tokens(request.max_new_tokens);
    wire.set_ended(request.ended);
    wire.set_sample(ToString(request.tid));
    v1::ScoreReply reply;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(static_cast<int64_t>(f.config.timeout_s * 1000)));
    const grpc::Status status = v1::Reward::NewStub(f.channel)->Score(&context, wire, &reply);
    using Outcome = tasks::Verdict::Outcome;
    if (!status.ok()) {
      return {Outcome::kInfra, 0,
              f.config.name + " at " + f.config.endpoint + ": " +
                  std::string(StatusCodeName(static_cast<StatusCode>(status.error_code()))) + " " +
                  Bounded(status.error_message())};
    }
    if (reply.outcome() != v1::ScoreReply::OK)
      return {Outcome::kData, 0, f.config.name + ": " + Bounded(reply.detail())};
    if (!std::isfinite(reply.score()))
      return {Outcome::kData, 0, f.config.name + " gave a score that is not finite"};
    return {Outcome::kOk, reply.score(), Bounded(reply.detail())};
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
      out.outcome =
          verdict.outcome == tasks::Verdict::Outcome::kData ? GradeOutcome::kData : GradeOutcome::kInfra;
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

namespace {

class RewardWorker : public SideWorker {
 protected:
  Status Anew(const JobConfig& config, const down::Welcome& welcome) override {
    TP_ASSIGN_OR_RETURN(graders_, Graders::Create(config.reward));
    if (config.observe.trace) {
      std::vector<std::pair<int, std::string>> rows;
      for (int i = 0; i < kThreads; ++i) rows.emplace_back(i, "grading " + std::to_string(i));
      trace_ = OpenWorkerTrace(welcome, welcome.inc, "reward", rows);
    }
    for (int i = 0; i < kThreads; ++i)
      threads_.emplace_back([this, i](const std::stop_token& stop) { Work(i, stop); });
    return OkStatus();
  }
  void Take(ToWorkerBody& command) override {
    if (auto* grade = std::get_if<down::Grade>(&command)) work_.Put(std::move(*grade));
  }
  void Describe(up::Heartbeat& beat) override {
    beat.op = "grade";
    beat.op_seq = graded_.load();
  }
  void End() override {
    for (auto& t : threads_) t.request_stop();
    threads_.clear();
  }

 private:
  void Work(int row, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const down::Grade& grade : work_.TakeOne(std::chrono::milliseconds(100))) {
        const TimePoint begin = TraceNow();
        up::Graded verdict = graders_->Score(grade);
        if (trace_)
          trace_->Add({"grade",
                       std::string(observe::kRewardSpan),
                       row,
                       begin,
                       TraceNow() - begin,
                       {{"tid", ToString(grade.tid)}, {"reward", verdict.reward}}});
        Say(std::move(verdict));
        ++graded_;
      }
    }
  }

  Mailbox<down::Grade> work_;
  std::unique_ptr<Graders> graders_;
  std::atomic<int64_t> graded_ = 0;
  std::vector<std::jthread> threads_;  // waits: for the answers under way, each within its time-out
};

}  // namespace

int RunRewardWorker(const SideWorkerOptions& options) {
  RewardWorker worker;
  return worker.Run(options, scheduler::WorkerKind::kReward);
}

}  // namespace tidepool::workers
