#pragma once
// Greedy accuracy on held-out questions at one version, through the ordinary dispatcher and graders.
// One evaluation is active at a time; later ones wait, each for its own version. Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>

#include "core/base/ids.h"
#include "scheduler/events.h"

namespace tidepool::scheduler {

class Evaluation {
 public:
  struct Job {
    StepNumber step;
    Version v;
  };

  // `questions`: held-out questions of one evaluation.
  explicit Evaluation(int64_t questions) : questions_(questions) {}

  void Plan(const Job& job);  // asked for; begins when a worker serves its version
  [[nodiscard]] bool Planned(StepNumber step) const;
  // The next one may begin: none is active. `now`: where the journal stands. It rises from one life of the
  // controller to the next, whose workers may still have requests of the last one.
  std::optional<Job> Begin(Lsn now);
  [[nodiscard]] SampleId Tid(int64_t question) const;
  // Attempt of the active one's samples: an evaluation that is begun again must not meet its old tokens.
  [[nodiscard]] int32_t attempt() const { return attempt_; }
  // An answer was graded. kData and kInfra leave the question out of the total.
  // `correct`: the first named reward (the task's own verdict), or the total without names, is > 0.5.
  void Graded(const SampleId& tid, GradeOutcome outcome, double verdict);
  [[nodiscard]] bool Finished() const { return active_ && left_.empty(); }
  struct Outcome {
    Job job;
    int64_t correct = 0, total = 0, lost = 0;
  };
  Outcome Take();  // requires Finished()
  void Cancel();   // the active one and all that wait

  [[nodiscard]] const std::optional<Job>& active() const { return active_; }
  [[nodiscard]] const std::deque<Job>& waiting() const { return waiting_; }
  [[nodiscard]] bool Pending() const { return active_.has_value() || !waiting_.empty(); }
  [[nodiscard]] bool Expects(const SampleId& tid) const { return active_ && left_.contains(tid); }
  [[nodiscard]] const std::set<SampleId>& left() const { return left_; }
  [[nodiscard]] int64_t questions() const { return questions_; }

 private:
  int64_t questions_;
  std::optional<Job> active_;
  std::deque<Job> waiting_;
  std::set<SampleId> left_;
  int32_t attempt_ = -1;
  int64_t correct_ = 0, total_ = 0, lost_ = 0;
};

}  // namespace tidepool::scheduler
