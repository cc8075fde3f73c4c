#include "workers/cli/answer_statistics.h"

#include <algorithm>
#include <cmath>

namespace tidepool::workers {
namespace {

constexpr double kZ = 1.959964;

ShareWithInterval Wilson(double share, double n) {
  const double centre = (share + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {share, std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

// Mean and interval of one value a question. Where all are 0 or 1, they are draws of a share.
ShareWithInterval OverQuestions(const std::vector<double>& values) {
  if (values.empty()) return {0, 0, 1};
  const auto n = static_cast<double>(values.size());
  double mean = 0, square = 0;
  for (const double v : values) mean += v / n;
  if (std::all_of(values.begin(), values.end(), [](double v) { return v == 0 || v == 1; }) ||
      values.size() == 1)
    return Wilson(mean, n);
  for (const double v : values) square += (v - mean) * (v - mean) / (n - 1);
  const double half = kZ * std::sqrt(square / n);
  return {mean, std::max(0.0, mean - half), std::min(1.0, mean + half)};
}

}  // namespace

ShareWithInterval Accuracy(const std::vector<QuestionScore>& questions) {
  std::vector<double> values;
  for (const QuestionScore& q : questions) {
    if (q.answers > 0) values.push_back(q.sum / static_cast<double>(q.answers));
  }
  return OverQuestions(values);
}

ShareWithInterval PassAtK(const std::vector<QuestionScore>& questions, int64_t k) {
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
