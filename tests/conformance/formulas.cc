#include "tests/conformance/formulas.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <utility>

#include "core/algorithms/distillation.h"
#include "core/algorithms/statistics.h"
#include "core/base/check.h"

namespace tidepool::algorithms {

ImportanceResult ImportanceWeights(const ImportanceOptions& o, std::span<const double> train,
                                   std::span<const double> rollout, const Cells& cells) {
  ImportanceResult out;
  out.weights = GapLogWeights(o.level, LogRatio(train, rollout, cells), cells);
  std::vector<double>& w = out.weights;
  for (size_t t = 0; t < w.size(); ++t) w[t] = cells.mask[t] != 0 ? std::exp(Clamp(w[t], o.log_clamp)) : 0;

  const bool by_row = o.level == GapLevel::kSequence;
  std::vector<double> seen;  // the population of max, min and the fractions
  std::vector<double> clamped(w.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    for (int64_t t = cells.begin[static_cast<size_t>(i)]; t < cells.begin[static_cast<size_t>(i) + 1]; ++t) {
      if (!cells.valid(t)) continue;
      const auto c = static_cast<size_t>(t);
      if (!by_row || t == cells.LastValid(i)) seen.push_back(w[c]);
      clamped[c] = o.high.has_value() ? Bounded(w[c], 1 / *o.high, *o.high) : w[c];
    }
  }
  if (!seen.empty()) {
    const auto n = static_cast<double>(seen.size());
    out.mean = TokenMean(w, cells);
    out.max = *std::ranges::max_element(seen);
    out.min = *std::ranges::min_element(seen);
    if (o.high.has_value()) {
      for (const double v : seen) {
        out.frac_high += v > *o.high ? 1 / n : 0;
        out.frac_low += v < 1 / *o.high ? 1 / n : 0;
      }
    }
    const double centre = TokenMean(clamped, cells);
    for (double& v : clamped) v = (v / centre) * (v / centre);
    out.ess = 1 / TokenMean(clamped, cells);
  }

  if (o.truncate) {
    for (size_t t = 0; t < w.size(); ++t) w[t] = cells.mask[t] != 0 ? Bounded(w[t], o.low, o.high) : 0;
  }
  if (o.normalize_mean && !seen.empty()) {
    double mean = TokenMean(w, cells);
    if (o.level != GapLevel::kToken) {
      const std::vector<double> rows = RowMeans(w, cells);
      mean = std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(cells.Sequences());
    }
    if (mean != 0) {
      for (double& v : w) v /= mean;
    }
  }
  return out;
}

GapMetrics MeasureGap(std::span<const double> train, std::span<const double> rollout, const Cells& cells) {
  const std::vector<double> l = LogRatio(train, rollout, cells);
  std::vector<double> k3(l.size()), chi2(l.size());
  for (size_t t = 0; t < l.size(); ++t) {
    k3[t] = std::expm1(l[t]) - l[t];
    chi2[t] = std::exp(2 * Clamp(l[t], 20));
  }
  GapMetrics m;
  if (cells.Tokens() == 0) return m;
  m.kl = -TokenMean(l, cells);
  m.k3_kl = TokenMean(k3, cells);
  m.chi2_token = TokenMean(chi2, cells) - 1;
  const std::vector<double> a = RowMeans(Masked(train, cells), cells),
                            b = RowMeans(Masked(rollout, cells), cells), sums = RowSums(l, cells);
  const auto rows = static_cast<double>(cells.Sequences());
  double chi2_rows = 0;
  for (int64_t i = 0; i < cells.rows(); ++i) {
    if (cells.LastValid(i) < 0) continue;
    const auto c = static_cast<size_t>(i);
    chi2_rows += std::exp(2 * Clamp(sums[c], 20)) / rows;
    m.training_ppl += std::exp(-a[c]) / rows;
    m.rollout_ppl += std::exp(-b[c]) / rows;
    m.log_ppl_diff += (b[c] - a[c]) / rows;
    m.log_ppl_abs_diff += std::fabs(b[c] - a[c]) / rows;
    m.ppl_ratio += std::exp(b[c] - a[c]) / rows;
  }
  m.chi2_seq = chi2_rows - 1;
  return m;
}

VTraceResult VTrace(std::span<const double> rewards, std::span<const double> values,
                    std::span<const double> discounts, std::span<const double> log_rhos,
                    std::span<const double> bootstrap, const VTraceOptions& o) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const size_t n = rewards.size(), batch = bootstrap.size();
  TP_CHECK(values.size() == n && discounts.size() == n && log_rhos.size() == n &&
           (batch == 0 || n % batch == 0));
  VTraceResult out{std::vector<double>(n), std::vector<double>(n)};
  for (size_t i = n; i-- > 0;) {
    const bool last = i + batch >= n;
    const double next_value = last ? bootstrap[i % batch] : values[i + batch];
    const double next_v = last ? next_value : out.vs[i + batch];
    const double w = std::exp(log_rhos[i]), d = discounts[i];
    const double delta = std::min(w, o.rho_bar.value_or(kNone)) * (rewards[i] + d * next_value - values[i]);
    out.vs[i] = values[i] + delta;
    // At the end of the rows, and after a terminal state, an infinite weight must not meet the 0.
    if (!last && d != 0)
      out.vs[i] += d * o.lambda * std::min(w, o.c_bar.value_or(kNone)) * (next_v - next_value);
    out.pg_advantages[i] = std::min(w, o.pg_rho_bar.value_or(kNone)) * (rewards[i] + d * next_v - values[i]);
  }
  return out;
}

std::vector<double> TdLambda(std::span<const double> rewards, std::span<const double> values,
                             std::span<const double> discounts, std::span<const double> bootstrap,
                             double lambda) {
  const size_t n = rewards.size(), batch = bootstrap.size();
  TP_CHECK(values.size() == n && discounts.size() == n && (batch == 0 || n % batch == 0));
  std::vector<double> y(n);
  for (size_t i = n; i-- > 0;) {
    const bool last = i + batch >= n;
    const double next_value = last ? bootstrap[i % batch] : values[i + batch];
    const double next_y = last ? next_value : y[i + batch];
    y[i] = rewards[i] + discounts[i] * ((1 - lambda) * next_value + lambda * next_y);
  }
  return y;
}

std::vector<double> TurnReturns(std::span<const double> token_rewards, double gamma, const Cells& cells) {
  std::vector<double> returns(cells.mask.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    double value = 0;
    bool inside = false;
    for (int64_t t = cells.begin[static_cast<size_t>(i) + 1] - 1; t >= cells.begin[static_cast<size_t>(i)];
         --t) {
      const auto c = static_cast<size_t>(t);
      if (cells.valid(t) && !inside) value = token_rewards[c] + gamma * value;
      inside = cells.valid(t);
      if (inside) returns[c] = value;
    }
  }
  return returns;
}

double LinearProximal(double behave, double logp, double share) {
  return std::log((1 - share) * std::exp(behave) + share * std::exp(logp) + 1e-10);
}

int64_t RolloutCapacity(int64_t max_staleness, int64_t batch_size, int64_t max_concurrent, int64_t version,
                        int64_t accepted, int64_t running) {
  return std::min(max_concurrent - running, (max_staleness + version + 1) * batch_size - accepted - running);
}

EpisodeAge AgeOfEpisode(int64_t train_version, int64_t start_version, int64_t end_version,
                        std::optional<double> max_off_policy) {
  EpisodeAge age;
  age.total = std::max<int64_t>(0, train_version - start_version);
  age.in_flight = std::min(age.total, std::max<int64_t>(0, end_version - start_version));
  age.in_queue = age.total - age.in_flight;
  age.fresh =
      !max_off_policy.has_value() || static_cast<double>(train_version - start_version) <= *max_off_policy;
  return age;
}

TokenDistribution LogProbAndEntropy(std::span<const double> logits, int64_t label, double temperature) {
  TP_CHECK(label >= 0 && label < static_cast<int64_t>(logits.size()));
  const std::vector<double> lp = LogSoftmax(logits, temperature);
  TokenDistribution out;
  out.logp = lp[static_cast<size_t>(label)];
  for (size_t v = 0; v < lp.size(); ++v) {
    const double p = std::exp(lp[v]);
    out.entropy -= p == 0 ? 0 : p * lp[v];
    out.grad_logits.push_back(((static_cast<int64_t>(v) == label ? 1 : 0) - p) / temperature);
  }
  return out;
}

bool KeepGroup(std::span<const double> rewards, double threshold, int64_t ddof) {
  return Deviation(rewards, ddof) > threshold;
}

double PassAtK(int64_t n, int64_t correct, int64_t k) {
  if (n - correct < k) return 1;
  double miss = 1;  // product of (1 - k/j), j = n - c + 1 .. n
  for (int64_t j = n - correct + 1; j <= n; ++j) miss *= 1 - static_cast<double>(k) / static_cast<double>(j);
  return 1 - miss;
}

std::optional<int64_t> MazeDistance(const std::vector<std::string>& grid) {
  using Cell = std::pair<int64_t, int64_t>;
  std::vector<std::vector<int64_t>> distance;
  std::deque<Cell> open;
  for (size_t r = 0; r < grid.size(); ++r) {
    distance.emplace_back(grid[r].size(), -1);
    for (size_t c = 0; c < grid[r].size(); ++c) {
      if (grid[r][c] != 'S' || !open.empty()) continue;
      open.emplace_back(r, c);
      distance[r][c] = 0;
    }
  }
  while (!open.empty()) {
    const auto [r, c] = open.front();
    open.pop_front();
    const int64_t here = distance[static_cast<size_t>(r)][static_cast<size_t>(c)];
    if (grid[static_cast<size_t>(r)][static_cast<size_t>(c)] == 'G') return here;
    for (const auto& [dr, dc] : std::array<Cell, 4>{{{-1, 0}, {1, 0}, {0, -1}, {0, 1}}}) {
      const int64_t nr = r + dr;
      const int64_t nc = c + dc;
      if (nr < 0 || nr >= static_cast<int64_t>(grid.size())) continue;
      const std::string& line = grid[static_cast<size_t>(nr)];
      if (nc < 0 || nc >= static_cast<int64_t>(line.size()) || line[static_cast<size_t>(nc)] == '#') continue;
      int64_t& there = distance[static_cast<size_t>(nr)][static_cast<size_t>(nc)];
      if (there >= 0) continue;
      there = here + 1;
      open.emplace_back(nr, nc);
    }
  }
  return std::nullopt;
}

}  // namespace tidepool::algorithms

namespace tidepool::environments {
namespace {

using Move = std::pair<int64_t, int64_t>;  // rows down, columns right

}  // namespace

TransitionTable CliffWalking(bool slippery) {
  constexpr std::array<Move, 4> kMoves = {{{-1, 0}, {0, 1}, {1, 0}, {0, -1}}};
  TransitionTable table;
  for (int64_t s = 0; s < 48; ++s) {
    for (int64_t a = 0; a < 4; ++a) {
      const auto go = [&](int64_t direction, double probability) {
        const auto [down, right] = kMoves[static_cast<size_t>((direction + 4) % 4)];
        const int64_t row = std::clamp<int64_t>(s / 12 + down, 0, 3),
                      column = std::clamp<int64_t>(s % 12 + right, 0, 11);
        const bool cliff = row == 3 && column >= 1 && column <= 10;
        const int64_t next = cliff ? 36 : row * 12 + column;
        table.push_back({s, a, next, cliff ? -100.0 : -1.0, next == 47, probability});
      };
      if (slippery) {
        for (int64_t d = -1; d <= 1; ++d) go(a + d, 1.0 / 3.0);
      } else {
        go(a, 1);
      }
    }
  }
  return Merged(std::move(table));
}

TransitionTable Taxi() {
  constexpr std::array<Move, 4> kStops = {{{0, 0}, {0, 4}, {4, 0}, {4, 3}}};
  constexpr std::array<Move, 6> kWallsRightOf = {{{0, 1}, {1, 1}, {3, 0}, {4, 0}, {3, 2}, {4, 2}}};
  const auto wall = [&](int64_t row, int64_t column) {
    return std::ranges::count(kWallsRightOf, Move{row, column}) > 0;
  };
  TransitionTable table;
  for (int64_t s = 0; s < 500; ++s) {
    for (int64_t a = 0; a < 6; ++a) {
      int64_t row = s / 100, column = s / 20 % 5, passenger = s / 4 % 5;
      const int64_t destination = s % 4;
      double reward = -1;
      bool done = false;
      const auto stop = std::ranges::find(kStops, Move{row, column});
      const int64_t here = stop == kStops.end() ? -1 : stop - kStops.begin();
      if (a == 0) row = std::min<int64_t>(row + 1, 4);
      if (a == 1) row = std::max<int64_t>(row - 1, 0);
      if (a == 2 && !wall(row, column)) column = std::min<int64_t>(column + 1, 4);
      if (a == 3 && !(column > 0 && wall(row, column - 1))) column = std::max<int64_t>(column - 1, 0);
      if (a == 4) {
        if (passenger < 4 && here == passenger) {
          passenger = 4;
        } else {
          reward = -10;
        }
      }
      if (a == 5) {
        if (passenger == 4 && here == destination) {
          passenger = destination;
          done = true;
          reward = 20;
        } else if (passenger == 4 && here >= 0) {
          passenger = here;
        } else {
          reward = -10;
        }
      }
      table.push_back({s, a, ((row * 5 + column) * 5 + passenger) * 4 + destination, reward, done, 1});
    }
  }
  return table;
}

}  // namespace tidepool::environments
