#include "workers/cli/answer_statistics.h"

#include <algorithm>
#include <limits>

namespace tidepool::workers {
namespace {

MeanInterval NormalInterval(const std::vector<double>& values) {
  RunningMean all;
  for (const double v : values) all.Add(v);
  return IntervalOfMean(all.mean(), all.deviation(), static_cast<int64_t>(values.size()));
}

// Of one share a question. Where all are 0 or 1, they are draws of a share.
MeanInterval ShareOverQuestions(const std::vector<double>& values) {
  if (values.empty()) return {0, 0, 1};
  const MeanInterval of = NormalInterval(values);
  const auto n = static_cast<int64_t>(values.size());
  if (std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; }) || n == 1)
    return ShareInterval(of.mean, n);
  return {of.mean, std::max(0.0, of.low), std::min(1.0, of.high)};
}

}  // namespace

MeanInterval Accuracy(const std::vector<QuestionScore>& questions) {
  std::vector<double> values;
  for (const QuestionScore& q : questions) {
    if (q.answers > 0) values.push_back(static_cast<double>(q.right) / static_cast<double>(q.answers));
  }
  return ShareOverQuestions(values);
}

MeanInterval PassAtK(const std::vector<QuestionScore>& questions, int64_t k) {
  std::vector<double> values;
  for (const QuestionScore& q : questions) {
    if (q.answers < k) continue;
    double none = q.answers - q.right < k ? 0 : 1;
    for (int64_t i = 0; i < k && none > 0; ++i)
      none *= static_cast<double>(q.answers - q.right - i) / static_cast<double>(q.answers - i);
    values.push_back(1 - none);
  }
  return ShareOverQuestions(values);
}

MeanInterval MeanReward(const std::vector<QuestionScore>& questions) {
  std::vector<double> values;
  for (const QuestionScore& q : questions) {
    if (q.answers > 0) values.push_back(q.sum / static_cast<double>(q.answers));
  }
  // Every reward was 0 or 1: the mean is a share.
  const bool share = std::ranges::all_of(
      questions, [](const QuestionScore& q) { return q.sum == static_cast<double>(q.right); });
  MeanInterval of = share ? ShareOverQuestions(values) : NormalInterval(values);
  if (values.size() < 2) of.low = of.high = std::numeric_limits<double>::quiet_NaN();
  return of;
}

}  // namespace tidepool::workers
