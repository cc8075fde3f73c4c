#include "workers/cli/grading_session.h"

#include <chrono>
#include <utility>

#include "workers/cli/driven_worker.h"

namespace tidepool::workers {

struct GradingSession::Impl {
  RewardConfig reward;
  std::unique_ptr<DrivenWorker> worker;
  bool welcomed = false;
  std::vector<up::Graded> graded;  // that were not asked for yet

  // Takes what has come; waits for something for a moment.
  Status Listen(std::chrono::milliseconds patience) {
    TP_RETURN_IF_ERROR(worker->Listen(patience));
    for (FromWorkerBody& body : std::exchange(worker->come, {})) {
      if (std::holds_alternative<up::Offer>(body))
        welcomed = worker->Welcome({});
      else if (auto* verdict = std::get_if<up::Graded>(&body))
        graded.push_back(std::move(*verdict));
    }
    return OkStatus();
  }
};

GradingSession::GradingSession() : impl_(std::make_unique<Impl>()) {}
GradingSession::~GradingSession() = default;

StatusOr<std::unique_ptr<GradingSession>> GradingSession::Start(const GradingOptions& options) {
  std::unique_ptr<GradingSession> session(new GradingSession());
  DrivenWorker::Options worker{.kind = DrivenWorker::Kind::kReward,
                               .argv = {options.self_path, "reward-worker"},
                               .job = options.job,
                               .stop = options.stop};
  if (options.job.reward.by_model()) worker.argv = {options.worker_path, "reward"};
  worker.job.observe.trace = false;
  worker.job.observe.metrics_bind.clear();
  session->impl_->reward = options.job.reward;
  TP_ASSIGN_OR_RETURN(session->impl_->worker, DrivenWorker::Start(std::move(worker)));
  return session;
}

Status GradingSession::Renew() { return impl_->Listen(std::chrono::milliseconds(0)); }

StatusOr<std::vector<up::Graded>> GradingSession::Grade(std::vector<tasks::RewardInput> inputs) {
  using Clock = std::chrono::steady_clock;
  const RewardConfig& reward = impl_->reward;
  double silence_s = 30 + (reward.by_model() ? reward.load_timeout_s : 0);
  for (const RewardFunction& f : reward.functions) silence_s += f.timeout_s;
  const auto silence = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(silence_s));
  constexpr size_t kWindow = 1024;  // as many as lie in the worker
  std::vector<up::Graded> out(inputs.size());
  size_t next = 0, done = 0;
  for (auto until = Clock::now() + silence; done < inputs.size();) {
    for (; impl_->welcomed && next < inputs.size() && next - done < kWindow; ++next) {
      down::Grade grade;
      grade.tid = {static_cast<int64_t>(next), 0, 0};
      grade.input = std::move(inputs[next]);
      impl_->worker->Send(std::move(grade));
    }
    TP_RETURN_IF_ERROR(impl_->Listen(std::chrono::milliseconds(50)));
    for (up::Graded& verdict : std::exchange(impl_->graded, {})) {
      until = Clock::now() + silence;
      const auto at = static_cast<size_t>(verdict.tid.ordinal);
      if (at >= out.size()) continue;
      out[at] = std::move(verdict);
      ++done;
    }
    if (Clock::now() > until)
      return DeadlineExceeded("the reward worker does not answer: " + impl_->worker->Log());
  }
  return out;
}

}  // namespace tidepool::workers
