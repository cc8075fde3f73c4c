#include "scheduler/evaluation.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/statistics.h"

namespace tidepool::scheduler {

void Evaluation::Plan(const Job& job) { waiting_.push_back(job); }

bool Evaluation::Planned(StepNumber step) const {
  return (active_ && active_->step == step) ||
         std::any_of(waiting_.begin(), waiting_.end(), [&](const Job& j) { return j.step == step; });
}

std::set<StepNumber> Evaluation::Steps() const {
  std::set<StepNumber> steps;
  if (active_) steps.insert(active_->step);
  for (const Job& job : waiting_) steps.insert(job.step);
  return steps;
}

std::optional<Evaluation::Job> Evaluation::Begin(Lsn now) {
  if (active_ || waiting_.empty()) return std::nullopt;
  active_ = waiting_.front();
  waiting_.pop_front();
  constexpr int64_t kAttempts = int64_t{1} << 30;
  attempt_ = std::max(newest_attempt_ + 1, static_cast<int32_t>(now.value % kAttempts));
  newest_attempt_ = attempt_;
  asked_again_.clear();
  answers_.clear();
  lost_ = 0;
  why_lost_.clear();
  left_.clear();
  for (int64_t q = 0; q < questions_; ++q) left_.insert(Tid(q));
  return active_;
}

SampleId Evaluation::Tid(int64_t question) const {
  return {question, static_cast<int32_t>(active_->step.value), SampleId::kEvalSample};
}

int32_t Evaluation::attempt(const SampleId& tid) const {
  const auto again = asked_again_.find(tid);
  return attempt_ + (again == asked_again_.end() ? 0 : again->second);
}

void Evaluation::AskAgain(const SampleId& tid) {
  ++asked_again_[tid];
  newest_attempt_ = std::max(newest_attempt_, attempt(tid));
}

void Evaluation::Graded(const SampleId& tid, double reward,
                        std::vector<std::pair<std::string, double>> rewards) {
  if (left_.erase(tid) > 0) answers_[tid.ordinal] = {reward, std::move(rewards)};
}

void Evaluation::Lost(const SampleId& tid, const std::string& why) {
  if (left_.erase(tid) == 0) return;
  ++lost_;
  why_lost_ = why;
}

record::EvalResult Evaluation::Take() {
  TP_CHECK(Finished()) << "evaluation";
  record::EvalResult r{.step = active_->step, .v = active_->v, .lost = lost_, .why_lost = why_lost_};
  RunningMean total;
  std::map<std::string, RunningMean> named;
  for (const auto& [question, answer] : answers_) {
    const double verdict = answer.rewards.empty() ? answer.reward : answer.rewards.front().second;
    r.correct += verdict > 0.5 ? 1 : 0;
    if (verdict != 0 && verdict != 1) r.graded = 1;
    total.Add(answer.reward);
    for (const auto& [name, value] : answer.rewards) named[name].Add(value);
  }
  r.total = static_cast<int64_t>(answers_.size());
  r.mean = total.mean();
  r.deviation = total.deviation();
  for (const auto& [name, of] : named) r.rewards.push_back({name, of.mean(), of.deviation()});
  active_.reset();
  return r;
}

void Evaluation::Cancel() {
  active_.reset();
  waiting_.clear();
  left_.clear();
}

}  // namespace tidepool::scheduler
