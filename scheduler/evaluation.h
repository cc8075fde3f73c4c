#pragma once
// Greedy answers to held-out questions at one version, through the ordinary dispatcher and graders: what they
// are worth.
// One evaluation is active at a time; later ones wait, each for its own version. Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
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
  [[nodiscard]] std::set<StepNumber> Steps() const;  // of the active one and of all that wait
  // The next one may begin: none is active. `now`: where the journal stands. It rises from one life of the
  // controller to the next, whose workers may still have requests of the last one.
  std::optional<Job> Begin(Lsn now);
  [[nodiscard]] SampleId Tid(int64_t question) const;
  // The first attempt of the active one's samples: an evaluation that is begun again must not meet its old
  // tokens. And the attempt at one of them: its tokens were lost, maybe, and it was asked again.
  [[nodiscard]] int32_t attempt() const { return attempt_; }
  [[nodiscard]] int32_t attempt(const SampleId& tid) const;
  void AskAgain(const SampleId& tid);
  // `reward` is the weighted sum of `rewards`, the named ones; a task without names has only the sum.
  void Graded(const SampleId& tid, double reward, std::vector<std::pair<std::string, double>> rewards);
  // Its answer cannot be graded: the question is left out of the total.
  void Lost(const SampleId& tid, const std::string& why);
  [[nodiscard]] bool Finished() const { return active_ && left_.empty(); }
  // In the order of the questions, so that the same rewards make the same bits. An answer is correct if its
  // first reward, the task's own verdict, is above 0.5. Requires Finished().
  record::EvalResult Take();
  void Cancel();  // the active one and all that wait

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
  int32_t attempt_ = -1, newest_attempt_ = -1;
  std::map<SampleId, int32_t> asked_again_;  // how often, of the active one
  struct Answer {
    double reward = 0;
    std::vector<std::pair<std::string, double>> rewards;
  };
  std::map<int64_t, Answer> answers_;  // of the active one, by question
  int64_t lost_ = 0;
  std::string why_lost_;
};

}  // namespace tidepool::scheduler
