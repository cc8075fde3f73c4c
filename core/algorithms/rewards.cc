#include "core/algorithms/rewards.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/algorithms/statistics.h"
#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

// Rows of the scope that each row belongs to.
std::vector<std::vector<size_t>> RowsOf(Scope scope, size_t n, std::span<const int64_t> group) {
  if (scope == Scope::kGroup) return GroupRows(group);
  std::vector<size_t> all(n);
  std::iota(all.begin(), all.end(), size_t{0});
  return {all};
}

}  // namespace

double OverlongPenalty(double tokens, double limit, double buffer, double factor) {
  if (tokens <= limit - buffer) return 0;
  if (tokens >= limit || buffer <= 0) return -factor;
  return factor * (limit - buffer - tokens) / buffer;
}

double TruncatedReward(double reward, bool truncated, double coef) {
  if (!truncated) return reward;
  return coef < 0 ? coef : coef * reward;
}

double RepetitionPenalty(std::span<const int64_t> ids, int64_t n, double max_penalty) {
  const auto size = static_cast<int64_t>(ids.size());
  if (n < 1 || size < n) return 0;
  const int64_t total = size - n + 1;
  // Start places ordered by their n-grams; equal neighbours are repeats.
  std::vector<int64_t> starts(static_cast<size_t>(total));
  std::iota(starts.begin(), starts.end(), int64_t{0});
  const auto gram = [&](int64_t s) { return ids.subspan(static_cast<size_t>(s), static_cast<size_t>(n)); };
  std::ranges::sort(
      starts, [&](int64_t a, int64_t b) { return std::ranges::lexicographical_compare(gram(a), gram(b)); });
  int64_t unique = 1;
  for (size_t k = 1; k < starts.size(); ++k)
    unique += std::ranges::equal(gram(starts[k - 1]), gram(starts[k])) ? 0 : 1;
  return max_penalty * (1 - static_cast<double>(unique) / static_cast<double>(total));
}

std::vector<double> NormaliseRewards(std::span<const double> rewards, std::span<const int64_t> group,
                                     const NormaliseOptions& o) {
  const size_t n = rewards.size();
  TP_CHECK(group.size() == n || (o.mean != Scope::kGroup && o.deviation != Scope::kGroup));
  std::vector<double> centred(rewards.begin(), rewards.end());
  if (o.mean != Scope::kNone) {
    for (const std::vector<size_t>& rows : RowsOf(o.mean, n, group)) {
      double sum = 0;
      std::vector<double> r;
      for (const size_t i : rows) {
        sum += rewards[i];
        r.push_back(rewards[i]);
      }
      const auto m = static_cast<double>(rows.size());
      const bool equal = AllEqual(r) && rows.size() > 1;
      for (const size_t i : rows) {
        const double mean = !o.leave_one_out ? sum / m : rows.size() > 1 ? (sum - rewards[i]) / (m - 1) : 0;
        centred[i] = equal ? 0 : rewards[i] - mean;
      }
    }
  }
  if (o.deviation == Scope::kNone) return centred;
  std::vector<double> out(n);
  for (const std::vector<size_t>& rows : RowsOf(o.deviation, n, group)) {
    double squares = 0;
    for (const size_t i : rows) squares += centred[i] * centred[i];
    const auto m = static_cast<int64_t>(rows.size());
    const double s = (m > o.ddof ? std::sqrt(squares / static_cast<double>(m - o.ddof)) : 0) + o.eps;
    for (const size_t i : rows) out[i] = centred[i] == 0 ? 0 : centred[i] / s;
  }
  return out;
}

double ScaleReward(double reward, double bias, double scale, double bound) {
  return std::clamp((reward + bias) * scale, -bound, bound);
}

void RunningMoments::Add(double x) {
  ++count_;
  const double before = x - mean_;
  mean_ += before / static_cast<double>(count_);
  squares_ += before * (x - mean_);
}
double RunningMoments::Deviation() const {
  return count_ < 2 ? 0 : std::sqrt(squares_ / static_cast<double>(count_ - 1));
}

}  // namespace tidepool::algorithms
