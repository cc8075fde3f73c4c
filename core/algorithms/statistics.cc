#include "core/algorithms/statistics.h"

#include <algorithm>
#include <cmath>

namespace tidepool::algorithms {
namespace {

struct Moments {
  int64_t n = 0;
  double mean = 0, divisor = 1;
};
Moments MomentsOf(std::span<const double> x, std::span<const uint8_t> mask, const WhitenOptions& o) {
  std::vector<double> valid;
  for (size_t i = 0; i < x.size(); ++i) {
    if (mask[i] != 0) valid.push_back(x[i]);
  }
  Moments m{.n = static_cast<int64_t>(valid.size()), .mean = Mean(valid)};
  const double s = Deviation(valid, o.ddof);
  switch (o.eps_mode) {
    case EpsMode::kAddVar:
      m.divisor = std::sqrt(s * s + o.eps);
      break;
    case EpsMode::kClampVar:
      m.divisor = std::sqrt(std::max(s * s, o.eps));
      break;
    case EpsMode::kAddStd:
      m.divisor = s + o.eps;
      break;
  }
  if (m.divisor == 0) m.divisor = 1;
  return m;
}

}  // namespace

double Mean(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return x.empty() ? 0 : sum / static_cast<double>(x.size());
}

bool AllEqual(std::span<const double> x) {
  if (x.empty()) return true;
  double low = x[0], high = x[0];
  for (const double v : x) {
    if (!std::isfinite(v)) return false;
    low = std::min(low, v);
    high = std::max(high, v);
  }
  return high - low <= 1e-8 * std::max(std::fabs(high), std::fabs(low));
}

double Deviation(std::span<const double> x, int64_t ddof) {
  const auto n = static_cast<int64_t>(x.size());
  if (n <= ddof || n == 0 || AllEqual(x)) return 0;
  const double mean = Mean(x);
  double squares = 0;
  for (const double v : x) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(n - ddof));
}

std::vector<std::vector<size_t>> GroupRows(std::span<const int64_t> ids) {
  std::map<int64_t, size_t> place;
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto [it, added] = place.try_emplace(ids[i], groups.size());
    if (added) groups.emplace_back();
    groups[it->second].push_back(i);
  }
  return groups;
}

void Whiten(std::span<double> x, std::span<const uint8_t> mask, const WhitenOptions& o) {
  const Moments m = MomentsOf(x, mask, o);
  if (m.n < 2) return;
  for (size_t i = 0; i < x.size(); ++i) {
    if (mask[i] != 0) x[i] = (x[i] - m.mean) / m.divisor + (o.shift_mean ? 0 : m.mean);
  }
}

void WhitenAll(std::span<double> x, std::span<const uint8_t> mask, const WhitenOptions& o) {
  const Moments m = MomentsOf(x, mask, o);
  if (m.n < 2) return;
  for (double& v : x) v = (v - m.mean) / m.divisor + (o.shift_mean ? 0 : m.mean);
}

}  // namespace tidepool::algorithms
