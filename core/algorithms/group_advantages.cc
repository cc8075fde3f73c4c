#include "core/algorithms/group_advantages.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

// Rows of each group that have a verdict.
std::vector<std::vector<size_t>> Scored(std::span<const double> rewards, std::span<const int64_t> group) {
  TP_CHECK(rewards.size() == group.size()) << rewards.size() << " rewards, " << group.size() << " group ids";
  std::vector<std::vector<size_t>> groups = GroupRows(group);
  for (std::vector<size_t>& rows : groups)
    std::erase_if(rows, [&](size_t i) { return std::isnan(rewards[i]); });
  return groups;
}

std::vector<double> Pick(std::span<const double> x, std::span<const size_t> rows) {
  std::vector<double> out;
  out.reserve(rows.size());
  for (const size_t i : rows) out.push_back(x[i]);
  return out;
}

std::vector<double> Others(std::span<const double> x, size_t but) {
  std::vector<double> out;
  for (size_t j = 0; j < x.size(); ++j) {
    if (j != but) out.push_back(x[j]);
  }
  return out;
}

// A_i = r_i - baseline(values of the group, their rows); groups of one by `singleton`.
using Baseline = std::function<double(std::span<const double> values, std::span<const size_t> rows)>;
std::vector<double> Centred(std::span<const double> rewards, std::span<const int64_t> group,
                            Singleton singleton, const Baseline& baseline) {
  std::vector<double> a(rewards.size(), 0.0);
  for (const std::vector<size_t>& rows : Scored(rewards, group)) {
    const std::vector<double> r = Pick(rewards, rows);
    if (r.size() == 1) {
      if (singleton == Singleton::kRaw) a[rows[0]] = r[0];
      continue;
    }
    if (AllEqual(r)) continue;
    const double b = baseline(r, rows);
    for (const size_t i : rows) a[i] = rewards[i] - b;
  }
  return a;
}

double MeanBaseline(std::span<const double> r, std::span<const size_t>) { return Mean(r); }

}  // namespace

std::vector<double> GrpoAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                   const GrpoOptions& o) {
  std::vector<double> a(rewards.size(), 0.0);
  const std::vector<std::vector<size_t>> groups = Scored(rewards, group);
  double batch_std = 0;
  if (o.scale == AdvantageScale::kBatchStd) {
    std::vector<double> all(rewards.begin(), rewards.end());
    std::erase_if(all, [](double r) { return std::isnan(r); });
    batch_std = Deviation(all, o.ddof);
  }
  for (const std::vector<size_t>& rows : groups) {
    const std::vector<double> r = Pick(rewards, rows);
    const bool single = r.size() == 1;
    if (r.empty() || (single && o.singleton == Singleton::kZero) || (!single && AllEqual(r))) continue;
    const double group_mean = single ? 0 : Mean(r);
    const double group_std = single ? 1 : Deviation(r, o.ddof);
    for (size_t k = 0; k < rows.size(); ++k) {
      double b = group_mean, s = group_std;
      if (!single && o.leave_one_out) b = Mean(Others(r, k));
      if (!single && o.std_of_others) s = Deviation(Others(r, k), o.ddof);
      if (!single && o.scale == AdvantageScale::kBatchStd) s = batch_std;
      const bool divide = o.scale != AdvantageScale::kNone && !(o.skip_zero_std && s == 0);
      a[rows[k]] = divide ? (r[k] - b) / (s + o.eps) : r[k] - b;
    }
  }
  return a;
}

std::vector<double> RlooAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                   Singleton singleton) {
  std::vector<double> a = Centred(rewards, group, singleton, MeanBaseline);
  for (const std::vector<size_t>& rows : Scored(rewards, group)) {
    const auto n = static_cast<double>(rows.size());
    if (n < 2) continue;
    for (const size_t i : rows) a[i] *= n / (n - 1);
  }
  return a;
}

std::vector<double> OpoAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                  const Cells& cells, Singleton singleton) {
  return Centred(rewards, group, singleton, [&](std::span<const double> r, std::span<const size_t> rows) {
    double weighted = 0, tokens = 0;
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto n = static_cast<double>(cells.Tokens(static_cast<int64_t>(rows[k])));
      weighted += n * r[k];
      tokens += n;
    }
    return tokens > 0 ? weighted / tokens : 0;
  });
}

std::vector<double> MaxRlAdvantages(std::span<const double> rewards, std::span<const int64_t> group) {
  std::vector<double> a(rewards.size(), 0.0);
  for (const std::vector<size_t>& rows : Scored(rewards, group)) {
    const std::vector<double> r = Pick(rewards, rows);
    const double mean = Mean(r);
    if (AllEqual(r) || mean <= 0) continue;
    for (const size_t i : rows) a[i] = (rewards[i] - mean) / mean;
  }
  return a;
}

std::vector<double> PassKAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                    bool divide, int64_t ddof, double eps) {
  std::vector<double> a(rewards.size(), 0.0);
  for (const std::vector<size_t>& rows : Scored(rewards, group)) {
    if (rows.size() < 2) continue;
    const std::vector<double> r = Pick(rewards, rows);
    if (AllEqual(r)) continue;
    const auto best = static_cast<size_t>(std::ranges::max_element(r) - r.begin());
    const std::vector<double> others = Others(r, best);
    const double gap = r[best] - *std::ranges::max_element(others);
    if (gap == 0) continue;
    a[rows[best]] = divide ? gap / (Deviation(r, ddof) + eps) : gap;
  }
  return a;
}

std::vector<double> GpgAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                  bool scale_by_nonzero, double f_norm, Singleton singleton) {
  std::vector<double> a = Centred(rewards, group, singleton, MeanBaseline);
  double alpha = 1;
  if (scale_by_nonzero) {
    const auto nonzero = std::ranges::count_if(rewards, [](double r) { return r != 0 && !std::isnan(r); });
    alpha = static_cast<double>(rewards.size()) / std::max(1.0, static_cast<double>(nonzero));
  }
  for (double& v : a) v = alpha * v / f_norm;
  return a;
}

std::vector<double> GdpoAdvantages(std::span<const double> components, std::span<const double> weights,
                                   std::span<const int64_t> group, int64_t ddof, double eps) {
  TP_CHECK(components.size() == weights.size() * group.size());
  std::vector<double> sums(group.size(), 0.0);
  for (size_t k = 0; k < weights.size(); ++k) {
    std::vector<double> r(group.size());
    for (size_t i = 0; i < r.size(); ++i) r[i] = components[i * weights.size() + k];
    const std::vector<double> a = GrpoAdvantages(r, group, {.ddof = ddof, .eps = eps});
    for (size_t i = 0; i < r.size(); ++i) sums[i] += weights[k] * a[i];
  }
  const double mean = Mean(sums), deviation = Deviation(sums, 1);
  const bool equal = AllEqual(sums);
  for (double& v : sums) v = equal ? 0 : (v - mean) / (deviation > 0 ? deviation : 1);
  return sums;
}

std::vector<double> ReinforcePlusPlusBaseline(std::span<const double> rewards, std::span<const int64_t> group,
                                              const Cells& cells, bool baseline, Singleton singleton,
                                              const WhitenOptions* whiten) {
  std::vector<double> a;
  if (baseline) {
    a = Centred(rewards, group, singleton, MeanBaseline);
  } else {
    a.assign(rewards.begin(), rewards.end());
    for (double& v : a) v = std::isnan(v) ? 0 : v;
  }
  std::vector<double> spread = Spread(a, cells);
  if (whiten != nullptr) Whiten(spread, cells.mask, *whiten);
  return spread;
}

std::vector<double> LengthShapedAdvantages(std::span<const double> rewards,
                                           std::span<const int64_t> out_tokens,
                                           std::span<const int64_t> total_tokens,
                                           std::span<const int64_t> turns, const LengthShape& shape) {
  const size_t n = rewards.size();
  TP_CHECK(out_tokens.size() == n && total_tokens.size() == n && turns.size() == n);
  int64_t out_max = 1, in_max = 1, turn_max = 1;
  for (size_t i = 0; i < n; ++i) {
    out_max = std::max(out_max, out_tokens[i]);
    in_max = std::max(in_max, total_tokens[i] - out_tokens[i]);
    turn_max = std::max(turn_max, turns[i]);
  }
  const double mean = Mean(rewards);
  std::vector<double> a(n);
  for (size_t i = 0; i < n; ++i) {
    const double share =
        shape.w_out * static_cast<double>(out_tokens[i]) / static_cast<double>(out_max) +
        shape.w_in * static_cast<double>(total_tokens[i] - out_tokens[i]) / static_cast<double>(in_max) +
        shape.w_turn * static_cast<double>(turns[i]) / static_cast<double>(turn_max);
    a[i] = rewards[i] - mean * share;
  }
  const double centre = Mean(a);
  const bool equal = AllEqual(a);
  for (double& v : a) v = equal ? 0 : v - centre;
  return a;
}

}  // namespace tidepool::algorithms
