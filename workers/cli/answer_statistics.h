#pragma once
// What the answers to a set of questions say: means and shares with their 95 % intervals. Questions are the
// independent draws; several answers to one are not. Pure functions.

#include <cstdint>
#include <vector>

#include "core/base/statistics.h"

namespace tidepool::workers {

struct QuestionScore {
  int64_t answers = 0;  // that were scored
  int64_t right = 0;    // of them, whose first reward is 1
  double sum = 0;       // of one reward, or of all together
};

// Share of right answers, over the questions' shares. With one answer a question Wilson's interval, right for
// shares near 0 and 1 and for few questions; with more, mean +- 1.96 standard errors over questions, cut to
// [0, 1]. Means something only where the first reward is always 0 or 1.
MeanInterval Accuracy(const std::vector<QuestionScore>& questions);

// Chance that one of k answers is right (arXiv:2107.03374, the unbiased estimator 1 - C(n-c, k) / C(n, k) of
// each question, n answers, c right), over questions with n >= k; its interval as Accuracy's.
MeanInterval PassAtK(const std::vector<QuestionScore>& questions, int64_t k);

// Mean of the reward, over the questions' means, +- 1.96 standard errors: as a run's evaluations have it
// (core/observe/held_out.h); where every reward was 0 or 1, its interval is Accuracy's. One question has no
// interval: low and high are not a number.
MeanInterval MeanReward(const std::vector<QuestionScore>& questions);

}  // namespace tidepool::workers
