#pragma once
// What the answers to a set of questions say: shares with their 95 % intervals. Questions are the independent
// draws; several answers to one are not. Pure functions.

#include <cstdint>
#include <vector>

#include "core/base/statistics.h"

namespace tidepool::workers {

struct QuestionScore {
  int64_t answers = 0;  // that were scored
  int64_t right = 0;    // of them, with full score
  double sum = 0;       // of scores, each 0 to 1
};

// Mean score of the questions' means. With one answer a question Wilson's interval, right for shares near 0
// and 1 and for few questions; with more, mean +- 1.96 standard errors over questions, cut to [0, 1].
MeanInterval Accuracy(const std::vector<QuestionScore>& questions);

// Chance that one of k answers is right (arXiv:2107.03374, the estimator 1 - C(n-c, k) / C(n, k) of each
// question, n answers, c right), over questions with n >= k.
MeanInterval PassAtK(const std::vector<QuestionScore>& questions, int64_t k);

}  // namespace tidepool::workers
