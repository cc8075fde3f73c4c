#include "workers/cli/answer_statistics.h"

#include <algorithm>

namespace tidepool::workers {
namespace {

// Mean and interval of one value a question. Where all are 0 or 1, they are draws of a share.
MeanInterval OverQuestions(const std::vector<double>& values) {
  if (values.empty()) return {0, 0, 1};
  RunningMean all;
  for (const double v : values) all.Add(v);
  const auto n = static_cast<int64_t>(values.size());
  if (std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; }) || n == 1)
    return ShareInterval(all.mean(), n);
  const MeanInterval of = IntervalOfMean(all.mean(), all.deviation(), n);
  return {of.mean, std::max(0.0, of.low), std::min(1.0, of.high)};
}

}  // namespace

MeanInterval Accuracy(const std::vector<QuestionScore>& questions) {
  std::vector<double> values;
  for (const QuestionScore& q : questions) {
    if (q.answers > 0) values.push_back(q.sum / static_cast<double>(q.answers));
  }
  return OverQuestions(values);
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
  return OverQuestions(values);
}

}  // namespace tidepool::workers
