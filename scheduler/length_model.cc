#include "scheduler/length_model.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {
namespace {

constexpr size_t kWindow = 64, kEnough = 8;
constexpr double kCorrelated = 0.75, kCertain = 0.97, kHysteresis = 0.05, kGrowth = 1.25;

}  // namespace

int LengthModel::Bin(int64_t tokens) {
  const int bin =
      static_cast<int>(std::log(static_cast<double>(std::max<int64_t>(tokens, 1))) / std::log(kGrowth));
  return std::clamp(bin, 0, kBins - 1);
}

// So that a sample's bin is looked for only when it leaves the one it is in.
const std::array<int64_t, LengthModel::kBins>& LengthModel::Ends() {
  static const std::array<int64_t, kBins> ends = [] {
    std::array<int64_t, kBins> e{};
    double edge = 1;
    for (int64_t& end : e) end = static_cast<int64_t>(std::ceil(edge *= kGrowth));
    e.back() = INT64_MAX;
    return e;
  }();
  return ends;
}

int LengthModel::Running(int bin, int64_t tokens) {
  if (tokens <= 0 || (bin >= 0 && tokens < Ends()[static_cast<size_t>(bin)])) return bin;
  const int to = Bin(tokens);
  if (bin >= 0) --censored_[static_cast<size_t>(bin)];
  ++censored_[static_cast<size_t>(to)];
  return to;
}

void LengthModel::Finished(int64_t tokens, int bin) {
  if (bin >= 0) --censored_[static_cast<size_t>(bin)];
  const auto ended = static_cast<size_t>(Bin(tokens));
  ++ended_[ended];
  length_[ended] += static_cast<double>(tokens);
  ++finished_;
}

bool LengthModel::GroupFinished(const std::vector<int64_t>& lengths) {
  if (lengths.size() < 2) return false;
  GroupStats g;
  g.n = static_cast<int64_t>(lengths.size());
  for (const int64_t x : lengths) g.mean += std::log(static_cast<double>(std::max<int64_t>(x, 1)));
  g.mean /= static_cast<double>(g.n);
  for (const int64_t x : lengths) {
    const double d = std::log(static_cast<double>(std::max<int64_t>(x, 1))) - g.mean;
    g.within += d * d;
  }
  groups_.push_back(g);
  if (groups_.size() > kWindow) groups_.pop_front();
  if (groups_.size() < kEnough) return false;
  double mean = 0, within = 0, n = 0, degrees = 0;
  for (const GroupStats& x : groups_) {
    mean += x.mean;
    within += x.within;
    degrees += static_cast<double>(x.n - 1);
    n += static_cast<double>(x.n);
  }
  const auto k = static_cast<double>(groups_.size());
  mean /= k;
  within = degrees > 0 ? within / degrees : 0;
  double between = 0;
  for (const GroupStats& x : groups_) between += (x.mean - mean) * (x.mean - mean);
  between = std::max(0.0, between / (k - 1) - within / (n / k));  // a group's mean carries noise of its own
  icc_ = between + within > 0 ? between / (between + within) : 1;
  const SiblingMode before = mode_;
  switch (mode_) {
    case SiblingMode::kContext:
      if (icc_ < kCorrelated - kHysteresis)
        mode_ = SiblingMode::kIgnore;
      else if (icc_ > kCertain)
        mode_ = SiblingMode::kNoProbe;
      break;
    case SiblingMode::kIgnore:
      if (icc_ >= kCorrelated) mode_ = SiblingMode::kContext;
      break;
    case SiblingMode::kNoProbe:
      if (icc_ < kCertain - kHysteresis) mode_ = SiblingMode::kContext;
      break;
  }
  return mode_ != before;
}

double LengthModel::ResidualLife(int64_t x, double prior) const {
  // Survival from x on, bin by bin; at risk: who got at least to the bin.
  double at_risk = 0;
  const int from = Bin(x);
  for (int b = kBins - 1; b >= from; --b)
    at_risk += ended_[static_cast<size_t>(b)] + censored_[static_cast<size_t>(b)];
  if (at_risk <= 0) return prior;
  double alive = 1, expected = 0, seen = 0;
  for (int b = from; b < kBins && at_risk > 0; ++b) {
    const auto i = static_cast<size_t>(b);
    if (ended_[i] > 0) {
      const double share = ended_[i] / at_risk;
      const double length = length_[i] / ended_[i];
      expected += alive * share * std::max(1.0, length - static_cast<double>(x));
      seen += alive * share;
      alive *= 1 - share;
    }
    at_risk -= ended_[i] + censored_[i];
  }
  return seen <= 0 ? prior : expected / seen;
}

}  // namespace tidepool::scheduler
