#pragma once
// How good the policy is on held-out questions: when it is asked, by which weights, and what comes of it.

#include <string>

#include "scheduler/evaluation.h"
#include "scheduler/events.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class Evaluations : public Machine {
 public:
  explicit Evaluations(Machines& all);

  void Plan();     // after a publication: one of this step, if it is due
  void Advance();  // reports the active one, begins the next
  void Cancel(const std::string& why);
  // The answer to a question was graded, or cannot be; its tokens are discarded.
  void Graded(const event::Graded& e);
  void Lost(const SampleId& tid, int32_t att, const std::string& why);
  // The tokens of an answer cannot be read: the question is asked again, or left out.
  void TokensLost(const event::TokensLost& e);

  [[nodiscard]] const Evaluation& current() const { return evaluation_; }

 private:
  void Ask(const SampleId& tid);

  Evaluation evaluation_;
};

}  // namespace tidepool::scheduler
