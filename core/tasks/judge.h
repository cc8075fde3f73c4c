#pragma once
// A judge: a language model that is asked to grade. Here is what it is asked, and how its answer is read; who
// answers is elsewhere. Immutable; any thread.

#include <memory>
#include <string>
#include <string_view>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/tasks/pattern.h"
#include "core/tasks/reward.h"

namespace tidepool::tasks {

class Judge {
 public:
  // Of prompt, score_pattern, score_min and score_max. kInvalidArgument: one of them is wrong; the message
  // begins with its name.
  static StatusOr<Judge> Create(const RewardFunction& function);

  // The prompt with the sample's texts in their places. Each place is filled once: what a response says of
  // {answer} stays as it is.
  [[nodiscard]] std::string Ask(const RewardInput& input) const;
  // 0 to 1: where the number in the answer stands between score_min and score_max, which may be the smaller.
  // kData where there is none, or one outside: the same judge would say the same again.
  // `cut`: at max_new_tokens, so a number at its end may go on.
  [[nodiscard]] Verdict Read(std::string_view answer, bool cut = false) const;

 private:
  Judge() = default;
  std::string prompt_, without_answer_;  // what rows without an answer are asked by
  std::shared_ptr<const Pattern> pattern_;
  double min_ = 0, max_ = 1;
};

}  // namespace tidepool::tasks
