#include "core/algorithms/importance.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace tidepool::algorithms {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool Within(double x, std::optional<double> low, std::optional<double> high) {
  return !std::isnan(x) && (!low.has_value() || x >= *low) && (!high.has_value() || x <= *high);
}

// The largest over the row's valid cells, on each of them.
std::vector<double> RowMaxima(std::span<const double> x, const Cells& cells) {
  std::vector<double> maxima(static_cast<size_t>(cells.rows()), 0.0);
  for (size_t i = 0; i < maxima.size(); ++i) {
    double largest = -kInf;
    for (const size_t t : cells.Valid(i)) largest = std::max(largest, x[t]);
    maxima[i] = largest;
  }
  return maxima;
}

std::vector<std::string_view> SplitCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t comma = text.find(',');
    std::string_view part = text.substr(0, comma);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.push_back(part);
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::optional<double> ParseNumber(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || std::isnan(value)) return std::nullopt;
  return value;
}

}  // namespace

double Clamp(double x, std::optional<double> c) {
  return c.has_value() ? std::clamp(x, -std::fabs(*c), std::fabs(*c)) : x;
}

double Bounded(double x, std::optional<double> low, std::optional<double> high) {
  if (low.has_value() && x < *low) x = *low;
  if (high.has_value() && x > *high) x = *high;
  return x;
}

std::vector<double> LogRatio(std::span<const double> train, std::span<const double> rollout,
                             const Cells& cells) {
  std::vector<double> l = Masked(train, cells);
  for (size_t t = 0; t < l.size(); ++t) {
    if (cells.mask[t] != 0) l[t] -= rollout[t];
  }
  return l;
}

std::vector<CellRun> ValidRuns(const Cells& cells) {
  std::vector<CellRun> runs;
  for (int64_t i = 0; i < cells.rows(); ++i) {
    bool inside = false;
    for (int64_t t = cells.begin[static_cast<size_t>(i)]; t < cells.begin[static_cast<size_t>(i) + 1]; ++t) {
      if (cells.valid(t) && !inside) runs.push_back({t, t, i});
      inside = cells.valid(t);
      if (inside) runs.back().to = t + 1;
    }
  }
  return runs;
}

std::vector<double> GapLogWeights(GapLevel level, std::span<const double> log_ratio, const Cells& cells) {
  switch (level) {
    case GapLevel::kToken:
      return Masked(log_ratio, cells);
    case GapLevel::kGeometric:
      return Spread(RowMeans(log_ratio, cells), cells);
    case GapLevel::kSequence:
      return Spread(RowSums(log_ratio, cells), cells);
    case GapLevel::kSegment:
      break;
  }
  std::vector<double> out(cells.mask.size(), 0.0);
  for (const CellRun& run : ValidRuns(cells)) {
    const auto first = static_cast<size_t>(run.from), n = static_cast<size_t>(run.to - run.from);
    double sum = 0;
    for (size_t k = 0; k < n; ++k) sum += log_ratio[first + k];
    for (size_t k = 0; k < n; ++k) out[first + k] = sum / static_cast<double>(n);
  }
  return out;
}

namespace {

struct NamedOver {
  std::string_view name;
  GapOver over;
};
constexpr NamedOver kRatios[] = {{"token_ratio", GapOver::kToken},
                                 {"segment_ratio", GapOver::kSegment},
                                 {"geometric_ratio", GapOver::kRowMean},
                                 {"sequence_ratio", GapOver::kRowSum}};
constexpr NamedOver kOvers[] = {{"token_", GapOver::kToken},
                                {"seq_sum_", GapOver::kRowSum},
                                {"seq_mean_", GapOver::kRowMean},
                                {"seq_max_", GapOver::kRowMax}};
constexpr NamedOver kRows[] = {
    {"mean", GapOver::kRowMean}, {"sum", GapOver::kRowSum}, {"max", GapOver::kRowMax}};

// v over what belongs together, on each valid cell of it.
std::vector<double> Gathered(GapOver over, std::vector<double> v, const Cells& cells) {
  switch (over) {
    case GapOver::kToken:
      break;
    case GapOver::kSegment:
      return GapLogWeights(GapLevel::kSegment, v, cells);
    case GapOver::kRowMean:
      return Spread(RowMeans(v, cells), cells);
    case GapOver::kRowSum:
      return Spread(RowSums(v, cells), cells);
    case GapOver::kRowMax:
      return Spread(RowMaxima(v, cells), cells);
  }
  return v;
}

}  // namespace

StatusOr<std::vector<RejectRule>> ParseRejectRules(std::string_view criterion, std::string_view threshold,
                                                   std::optional<double> low, std::optional<double> high) {
  const std::vector<std::string_view> names = SplitCommas(criterion), bounds = SplitCommas(threshold);
  std::vector<RejectRule> rules;
  for (size_t k = 0; k < names.size(); ++k) {
    const std::string name(names[k]);
    RejectRule rule;
    if (const auto* ratio = std::ranges::find(kRatios, name, &NamedOver::name); ratio != std::end(kRatios)) {
      rules.push_back({.over = ratio->over, .low = low, .high = high});
      continue;
    }
    const auto* over =
        std::ranges::find_if(kOvers, [&](const NamedOver& o) { return name.starts_with(o.name); });
    const auto measure =
        over == std::end(kOvers) ? std::nullopt : FromWord<GapMeasure>(name.substr(over->name.size()));
    if (!measure || *measure == GapMeasure::kRatio ||
        (over->over == GapOver::kRowMax && *measure == GapMeasure::kK1))
      return Unimplemented("no rejection criterion is named '" + name + "'");
    rule.over = over->over;
    rule.measure = *measure;
    if (bounds.size() != 1 && bounds.size() != names.size()) {
      return InvalidArgument("threshold has " + std::to_string(bounds.size()) + " entries for " +
                             std::to_string(names.size()) + " criteria; give one for each, or one for all");
    }
    const std::string_view bound = bounds.size() == 1 ? bounds[0] : bounds[k];
    const size_t bar = bound.find('_');
    const auto first = ParseNumber(bound.substr(0, bar));
    const auto second = bar == std::string_view::npos ? first : ParseNumber(bound.substr(bar + 1));
    const bool k1 = rule.measure == GapMeasure::kK1;
    if (!first || !second || (!k1 && bar != std::string_view::npos) ||
        (k1 && (*first <= 0 || *second <= 0))) {
      return InvalidArgument("threshold '" + std::string(bound) + "' of " + name + " is not " +
                             (k1 ? "\"a_b\" or one number, above 0" : "a number"));
    }
    if (k1) {
      rule.high = std::log(*second);
      rule.low = bar == std::string_view::npos ? -*rule.high : std::log(*first);
    } else {
      rule.high = *first;
    }
    rules.push_back(rule);
  }
  return rules;
}

RejectResult Reject(std::span<const RejectRule> rules, std::optional<double> log_clamp,
                    std::span<const double> train, std::span<const double> rollout, const Cells& cells) {
  const std::vector<double> l = LogRatio(train, rollout, cells);
  RejectResult out;
  out.mask.assign(cells.mask.size(), 0);
  for (size_t t = 0; t < out.mask.size(); ++t) out.mask[t] = cells.mask[t] != 0 ? 1 : 0;
  for (const RejectRule& rule : rules) {
    std::vector<double> v = l;
    if (rule.measure != GapMeasure::kRatio) {
      for (double& x : v) {
        const double c = Clamp(x, log_clamp);
        x = rule.measure == GapMeasure::kK1   ? -c
            : rule.measure == GapMeasure::kK2 ? c * c / 2
                                              : std::expm1(c) - c;
      }
    }
    v = Gathered(rule.over, std::move(v), cells);
    for (size_t t = 0; t < v.size(); ++t) {
      if (cells.mask[t] == 0) continue;
      const double measured = rule.measure == GapMeasure::kRatio ? std::exp(v[t]) : v[t];
      if (!Within(measured, rule.low, rule.high)) out.mask[t] = 0;
    }
  }
  int64_t lost = 0, rows_lost = 0;
  for (int64_t i = 0; i < cells.rows(); ++i) {
    int64_t mine = 0;
    for (int64_t t = cells.begin[static_cast<size_t>(i)]; t < cells.begin[static_cast<size_t>(i) + 1]; ++t) {
      mine += cells.valid(t) && out.mask[static_cast<size_t>(t)] == 0 ? 1 : 0;
    }
    lost += mine;
    rows_lost += mine > 0 ? 1 : 0;
  }
  out.masked_frac = static_cast<double>(lost) / static_cast<double>(std::max<int64_t>(1, cells.Tokens()));
  out.seq_masked_frac =
      static_cast<double>(rows_lost) / static_cast<double>(std::max<int64_t>(1, cells.Sequences()));
  return out;
}

StatusOr<BehaveOptions> ParseBehave(std::string_view level, std::string_view action, std::string_view metric,
                                    std::string_view aggregation, std::optional<double> lower,
                                    std::optional<double> upper) {
  BehaveOptions o;
  o.lower = lower;
  o.upper = upper;
  const auto measure = FromWord<GapMeasure>(metric.starts_with("kl_") ? metric.substr(3) : metric);
  if (!measure || metric.starts_with("kl_") == (*measure == GapMeasure::kRatio))
    return Unimplemented("metric is '" + std::string(metric) + "'; there are ratio, kl_k1, kl_k2 and kl_k3");
  o.metric = *measure;
  if (level == "sequence") {
    const auto* over = std::ranges::find(kRows, aggregation, &NamedOver::name);
    if (over == std::end(kRows))
      return Unimplemented("agg is '" + std::string(aggregation) + "'; there are mean, sum and max");
    o.over = over->over;
  } else if (level != "token") {
    return Unimplemented("level is '" + std::string(level) + "'; there are token and sequence");
  }
  if (action != "mask" && action != "clamp")
    return Unimplemented("action is '" + std::string(action) + "'; there are mask and clamp");
  o.clamp = action == "clamp";
  if (o.clamp && o.metric != GapMeasure::kRatio)
    return Unimplemented("action clamp is of metric ratio; " + std::string(metric) + " can only mask");
  return o;
}

BehaveResult BehaviourWeights(const BehaveOptions& o, std::span<const double> train,
                              std::span<const double> rollout, const Cells& cells) {
  const std::vector<double> l = LogRatio(train, rollout, cells);
  std::vector<double> v = l;
  for (double& x : v) {
    if (o.metric == GapMeasure::kK2) x = x * x / 2;
    if (o.metric == GapMeasure::kK3) x = std::expm1(-x) + x;
  }
  v = Gathered(o.over, std::move(v), cells);
  const bool row_weight = o.over != GapOver::kToken && o.metric == GapMeasure::kRatio;
  const std::vector<double> log_weight = row_weight ? Spread(RowMeans(l, cells), cells) : l;
  BehaveResult out;
  out.weights.assign(l.size(), 0.0);
  out.mask.assign(l.size(), 0);
  int64_t changed = 0;
  for (size_t t = 0; t < l.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double w = std::exp(log_weight[t]);
    if (o.clamp) {
      out.weights[t] = Bounded(w, o.lower.value_or(0), o.upper);
      out.mask[t] = 1;
      changed += out.weights[t] != w ? 1 : 0;
    } else if (Within(o.metric == GapMeasure::kRatio ? std::exp(v[t]) : v[t], o.lower, o.upper)) {
      out.weights[t] = w;
      out.mask[t] = 1;
    } else {
      ++changed;
    }
  }
  out.filtered_frac =
      static_cast<double>(changed) / static_cast<double>(std::max<int64_t>(1, cells.Tokens()));
  return out;
}

std::vector<uint8_t> SecondMomentMask(std::span<const double> behave, std::span<const double> proximal,
                                      double threshold, const Cells& cells) {
  std::vector<uint8_t> mask(cells.mask.size(), 0);
  std::vector<double> square(mask.size(), 0.0);
  std::vector<size_t> order;
  double sum = 0;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    mask[t] = 1;
    square[t] = (behave[t] - proximal[t]) * (behave[t] - proximal[t]);
    order.push_back(t);
  }
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t t) { return square[t]; });
  // Sums from the smallest up, so that what is left after dropping large ones has no cancellation.
  std::vector<double> rest(order.size(), 0.0);
  for (size_t k = order.size(); k-- > 0;) rest[k] = sum += square[order[k]];
  for (size_t k = 0; k + 1 < order.size(); ++k) {
    if (rest[k] / static_cast<double>(order.size() - k) < threshold) break;
    mask[order[k]] = 0;
  }
  return mask;
}

}  // namespace tidepool::algorithms
