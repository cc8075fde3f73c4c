#include "scheduler/evaluation.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::scheduler {

void Evaluation::Plan(const Job& job) { waiting_.push_back(job); }

bool Evaluation::Planned(StepNumber step) const {
  return (active_ && active_->step == step) ||
         std::any_of(waiting_.begin(), waiting_.end(), [&](const Job& j) { return j.step == step; });
}

std::optional<Evaluation::Job> Evaluation::Begin(Lsn now) {
  if (active_ || waiting_.empty()) return std::nullopt;
  active_ = waiting_.front();
  waiting_.pop_front();
  constexpr int64_t kAttempts = int64_t{1} << 30;
  attempt_ = std::max(attempt_ + 1, static_cast<int32_t>(now.value % kAttempts));
  correct_ = total_ = lost_ = 0;
  left_.clear();
  for (int64_t q = 0; q < questions_; ++q) left_.insert(Tid(q));
  return active_;
}

SampleId Evaluation::Tid(int64_t question) const {
  return {question, static_cast<int32_t>(active_->step.value), SampleId::kEvalSample};
}

void Evaluation::Graded(const SampleId& tid, GradeOutcome outcome, double verdict) {
  if (left_.erase(tid) == 0) return;
  if (outcome != GradeOutcome::kOk) {
    ++lost_;
    return;
  }
  ++total_;
  if (verdict > 0.5) ++correct_;
}

Evaluation::Outcome Evaluation::Take() {
  TP_CHECK(Finished()) << "evaluation";
  const Outcome outcome{*active_, correct_, total_, lost_};
  active_.reset();
  return outcome;
}

void Evaluation::Cancel() {
  active_.reset();
  waiting_.clear();
  left_.clear();
}

}  // namespace tidepool::scheduler
