#include "workers/side/reward_worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <utility>

#include "core/base/call_watch.h"
#include "core/base/real_file_system.h"
#include "core/tasks/reward.h"
#include "workers/data/stored_responses.h"
#include "workers/net/bounded_text.h"
#include "workers/net/mailbox.h"
#include "workers/net/worker_log.h"
#include "workers/net/worker_trace.h"
#include "workers/side/reward_server.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

struct Graders::Impl {
  struct Function {
    RewardFunction config;
    tasks::Reward builtin;                  // or
    std::unique_ptr<PatientServer> server;  // or
    std::unique_ptr<ModelReward> model;
    PluginCall call;  // of a builtin; on: each time anew
  };
  CallWatch watch;  // of what is called in this process; models use it
  std::vector<Function> functions;
  int64_t batch = 1;

  Verdicts Ask(const Function& f, RewardInputs inputs, const std::stop_token& stop, int64_t& retries) {
    if (f.server != nullptr) return f.server->Ask(inputs, stop, retries);
    if (f.model != nullptr) return f.model->Ask(inputs, stop);
    Verdicts verdicts;
    for (const tasks::RewardInput* input : inputs) {
      PluginCall named = f.call;
      named.on = tasks::NameOf(*input);
      const CallWatch::Call call(watch, std::move(named));
      verdicts.push_back(f.builtin(*input));
    }
    return verdicts;
  }
};

Graders::Graders() : impl_(std::make_unique<Impl>()) {}
Graders::~Graders() = default;

StatusOr<std::unique_ptr<Graders>> Graders::Create(const JobConfig& job, const OpenModelReward& open_model) {
  const RewardConfig& config = job.reward;
  std::unique_ptr<Graders> graders(new Graders());
  graders->impl_->batch = config.batch;
  for (const RewardFunction& f : config.functions) {
    Impl::Function function;
    function.config = f;
    if (f.by_model()) {
      if (!open_model) {
        return FailedPrecondition(f.name +
                                  " grades by a model, which this program does not compute; a reward "
                                  "worker of such a job is `tidepool-worker reward`");
      }
      function.model = open_model(f, job, graders->impl_->watch);
    } else if (f.endpoint.empty()) {
      TP_ASSIGN_OR_RETURN(function.builtin, tasks::MakeReward(f.name));
      function.call = tasks::RewardCall(f.name, f.timeout_s);
    } else {
      TP_ASSIGN_OR_RETURN(function.server, PatientServer::Create(f, config.batch > 1));
    }
    graders->impl_->functions.push_back(std::move(function));
  }
  return graders;
}

int64_t Graders::most() const {
  const bool all = std::ranges::all_of(impl_->functions, [](const Impl::Function& f) {
    return f.server == nullptr || f.server->takes_batches();
  });
  return all ? impl_->batch : 1;
}

void Graders::CloseModels() {
  for (Impl::Function& f : impl_->functions) f.model.reset();
}

CallWatch& Graders::watch() const { return impl_->watch; }

std::optional<std::pair<std::string, std::string>> Graders::failure() const {
  for (const Impl::Function& f : impl_->functions) {
    if (f.model == nullptr) continue;
    if (auto why = f.model->failure())
      return std::pair("reward " + f.config.name + " (" + f.config.path + ")", *std::move(why));
  }
  return std::nullopt;
}

std::vector<up::Unreachable> Graders::waits_for() const {
  std::vector<up::Unreachable> away;
  for (size_t i = 0; i < impl_->functions.size(); ++i) {
    const PatientServer* server = impl_->functions[i].server.get();
    std::string cause = server == nullptr ? "" : server->outage();
    if (!cause.empty()) away.push_back({static_cast<int64_t>(i), std::move(cause)});
  }
  return away;
}

std::vector<up::Graded> Graders::Score(std::span<const down::Grade> requests,
                                       const std::stop_token& stop) const {
  const auto start = Clock::now();
  std::vector<up::Graded> graded(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    graded[i].tid = requests[i].tid;
    graded[i].att = requests[i].att;
  }
  int64_t retries = 0;
  const auto ask = [&](const Impl::Function& f, std::span<const size_t> of) {
    std::vector<const tasks::RewardInput*> inputs;
    for (const size_t i : of) inputs.push_back(&requests[i].input);
    const Verdicts verdicts = impl_->Ask(f, inputs, stop, retries);
    for (size_t k = 0; k < of.size(); ++k) {
      const tasks::Verdict& verdict = verdicts[k];
      up::Graded& out = graded[of[k]];
      if (verdict.outcome != tasks::Verdict::Outcome::kOk) {
        const bool data = verdict.outcome == tasks::Verdict::Outcome::kData;
        out.outcome = data ? GradeOutcome::kData : GradeOutcome::kInfra;
        out.reward = 0;
        out.rewards.clear();
        out.details.clear();
        out.why = Clean(verdict.detail);
        continue;
      }
      out.rewards.emplace_back(f.config.name, verdict.score);
      if (!verdict.detail.empty()) out.details.emplace(f.config.name, Clean(verdict.detail));
      out.reward += f.config.weight * verdict.score;
    }
  };
  for (const Impl::Function& f : impl_->functions) {
    std::vector<size_t> fresh, again;  // that no function before this one has failed
    for (size_t i = 0; i < requests.size(); ++i) {
      if (graded[i].outcome == GradeOutcome::kOk) (requests[i].attempt == 0 ? fresh : again).push_back(i);
    }
    if (!fresh.empty()) ask(f, fresh);
    for (const size_t i : again) ask(f, {&i, 1});
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  // Of the call, once: sums over samples are sums over calls.
  for (up::Graded& out : graded) out.seconds = seconds / static_cast<double>(graded.size());
  if (!graded.empty()) graded.front().retries = retries;
  return graded;
}

namespace {

class RewardWorker : public SideWorker {
 public:
  explicit RewardWorker(OpenModelReward open_model) : open_model_(std::move(open_model)) {}

 protected:
  Status Anew(const JobConfig& config, const down::Welcome& welcome) override {
    TP_ASSIGN_OR_RETURN(graders_, Graders::Create(config, open_model_));
    responses_.reset();
    // Without a tokenizer here the controller sends the text.
    auto opened = OpenWithin("read of the model's folder", [welcome] {
      return StoredResponses::Open(std::make_shared<RealFileSystem>(), welcome);
    });
    if (opened.status().code() == StatusCode::kFailedPrecondition) return opened.status();
    if (opened.ok()) responses_ = *std::move(opened);
    if (responses_ == nullptr) LogUnseen(opened.status());
    if (config.observe.trace) {
      std::vector<std::pair<int, std::string>> rows;
      for (int i = 0; i < config.reward.concurrency; ++i)
        rows.emplace_back(i, "grading " + std::to_string(i));
      trace_ = OpenWorkerTrace(config, welcome, rows);
    }
    for (int i = 0; i < config.reward.concurrency; ++i)
      StartCaller([this, i](const std::stop_token& stop) { Work(i, stop); });
    return OkStatus();
  }
  void Take(ToWorkerBody& command) override {
    if (auto* grade = std::get_if<down::Grade>(&command)) work_.Put(std::move(*grade));
  }
  [[nodiscard]] bool SeesRun() const override { return responses_ != nullptr; }
  CallWatch* Watch() override { return graders_ == nullptr ? nullptr : &graders_->watch(); }
  std::optional<PluginFailure> Failed() override {
    const auto failed = graders_ == nullptr ? std::nullopt : graders_->failure();
    if (!failed) return std::nullopt;
    return PluginFailure{failed->first, failed->first + ": " + failed->second};
  }
  void Describe(up::Heartbeat& beat) override {
    beat.op = "grade";
    if (graders_ != nullptr) beat.waits_for = graders_->waits_for();
    beat.op_seq = graded_.load();
  }
  // A second life would else begin beside the models of the first.
  void End() override {
    StopCallers();
    if (graders_ == nullptr) return;
    // waits: for one step of each model, which the watch limits
    Await(std::async(std::launch::async, [this] { graders_->CloseModels(); }));
    graders_.reset();
  }

 private:
  void Work(int row, const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      auto taken = work_.Take(std::chrono::milliseconds(100), static_cast<size_t>(graders_->most()));
      if (taken.empty()) continue;
      const TimePoint begin = TraceNow();
      std::vector<up::Graded> verdicts;
      std::erase_if(taken, [&](down::Grade& grade) {
        const Status read = Fill(grade);
        if (!read.ok()) verdicts.push_back(Unread(grade, read));
        return !read.ok();
      });
      for (up::Graded& verdict : graders_->Score(taken, stop)) verdicts.push_back(std::move(verdict));
      if (stop.stop_requested()) return;  // what was cut short is no verdict
      for (up::Graded& verdict : verdicts) {
        if (trace_)
          trace_->Add({"grade",
                       std::string(observe::kRewardSpan),
                       row,
                       begin,
                       TraceNow() - begin,
                       {{"tid", ToString(verdict.tid)}, {"reward", verdict.reward}}});
        Say(std::move(verdict));
        ++graded_;
      }
    }
  }

  Status Fill(down::Grade& grade) const {
    if (grade.payload.payload_file < 0 && !grade.logged.valid()) return OkStatus();
    if (responses_ == nullptr) return Unavailable("this grader does not see the run's folder");
    return responses_->Fill(grade);
  }

  const OpenModelReward open_model_;
  std::unique_ptr<StoredResponses> responses_;  // null: they come with what is to be graded
  Mailbox<down::Grade> work_;
  std::unique_ptr<Graders> graders_;
  std::atomic<int64_t> graded_ = 0;
};

}  // namespace

int RunRewardWorker(const RewardWorkerOptions& options) {
  RewardWorker worker(options.open_model);
  return worker.Run(options, scheduler::WorkerKind::kReward);
}

}  // namespace tidepool::workers
