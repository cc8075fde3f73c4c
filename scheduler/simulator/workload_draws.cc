#include "scheduler/simulator/workload_draws.h"

#include <algorithm>
#include <cmath>

#include "core/base/hash.h"
#include "core/base/rng.h"

namespace tidepool::scheduler {

WorkloadDraws::WorkloadDraws(uint64_t seed, const LengthShape& lengths, const TurnShape& turns,
                             const std::map<SampleId, int64_t>& recorded, int64_t max_new_tokens,
                             int64_t max_turn_tokens)
    : seed_(seed),
      lengths_(lengths),
      turns_(turns),
      recorded_(recorded),
      max_new_tokens_(max_new_tokens),
      max_turn_tokens_(max_turn_tokens) {
  const SampleId* last = nullptr;
  for (const auto& [tid, n] : recorded_) {
    if (last == nullptr || last->ordinal != tid.ordinal || last->issue != tid.issue) groups_.emplace_back();
    groups_.back().push_back(n);
    last = &tid;
  }
  if (groups_.empty()) Calibrate();
}

double WorkloadDraws::Unit(uint64_t key, uint32_t a, uint32_t b) const {
  return std::min(0.999999, std::max(1e-7, static_cast<double>(SampleUniform(seed_, key, a, b))));
}

double WorkloadDraws::Normal(uint64_t key, uint32_t a) const {
  return std::sqrt(-2 * std::log(Unit(key, a, 11))) * std::cos(6.283185307179586 * Unit(key, a, 12));
}

double WorkloadDraws::Jitter(uint64_t key, uint32_t n, double sigma) const {
  return std::exp(sigma * Normal(Mix64(key), n) - sigma * sigma / 2);
}

double WorkloadDraws::RawLength(const SampleId& tid, double m) const {
  const uint64_t group = Mix64(static_cast<uint64_t>(tid.ordinal) * 977 + static_cast<uint64_t>(tid.issue));
  const LengthShape& l = lengths_;
  return std::exp(m + l.sigma_between * Normal(group, 1) + l.sigma_within * Normal(SampleUid(tid), 2));
}

int64_t WorkloadDraws::Length(const SampleId& tid) const {
  if (!groups_.empty()) {
    const auto it = recorded_.find(tid);
    if (it != recorded_.end()) return std::max<int64_t>(1, it->second);
    const std::vector<int64_t>& like = groups_[SampleUid({tid.ordinal, tid.issue, 0}) % groups_.size()];
    return std::max<int64_t>(1, like[static_cast<size_t>(tid.sample) % like.size()]);
  }
  double m = mu_;
  if (lengths_.growth_groups > 0) {
    const double grown = static_cast<double>(tid.ordinal) / static_cast<double>(lengths_.growth_groups);
    m += std::log(lengths_.growth) * std::min(1.0, grown);
  }
  return std::clamp<int64_t>(std::llround(RawLength(tid, m)), 1, max_new_tokens_);
}

// The mean after cutting at the limit is the one that was asked for, of those at first.
void WorkloadDraws::Calibrate() {
  const auto most = static_cast<double>(max_new_tokens_);
  double low = -5, high = 20;
  for (int i = 0; i < 40; ++i) {
    const double m = (low + high) / 2;
    double sum = 0;
    for (int64_t k = 0; k < 2000; ++k)
      sum += std::min(most, RawLength({k / 4, 0, static_cast<int32_t>(k % 4)}, m));
    (sum / 2000 < lengths_.mean_tokens ? low : high) = m;
  }
  mu_ = (low + high) / 2;
}

int64_t WorkloadDraws::Turns(const SampleId& tid) const {
  if (max_turn_tokens_ > 0) {
    const int64_t turn = max_turn_tokens_ + turns_.observation_tokens;
    return std::clamp<int64_t>((Length(tid) + turn - 1) / turn, 1, turns_.max_turns);
  }
  if (turns_.mean_turns <= 1) return 1;
  const double s = turns_.sigma_turns;
  const double x = turns_.mean_turns * std::exp(s * Normal(SampleUid(tid), 3) - s * s / 2);
  return std::clamp<int64_t>(std::llround(x), 1, turns_.max_turns);
}

double WorkloadDraws::EnvironmentSeconds(const SampleId& tid, int64_t at) const {
  const auto k = static_cast<uint32_t>(100 + at);
  double s = std::max(0.0, turns_.step_s_mean + turns_.step_s_sd * Normal(SampleUid(tid), k));
  if (turns_.slow_chance > 0 && Unit(SampleUid(tid), k, 13) < turns_.slow_chance)
    s -= turns_.slow_s * std::log(Unit(SampleUid(tid), k, 14));
  return s;
}

double WorkloadDraws::TurnSeconds(const SampleId& tid, int64_t turn) const {
  const TurnShape& t = turns_;
  const double more =
      t.straggler_share > 0 && Unit(SampleUid(tid), 15, 16) < t.straggler_share ? t.straggler_s : 0;
  if (t.latency_median_s <= 0) return more + EnvironmentSeconds(tid, turn);
  return more +
         std::min(t.latency_max_s,
                  t.latency_median_s *
                      std::exp(t.latency_tail * Normal(SampleUid(tid), static_cast<uint32_t>(100 + turn))));
}

int64_t WorkloadDraws::Said(const SampleId& tid) const {
  return max_turn_tokens_ > 0 ? max_turn_tokens_
                              : std::max<int64_t>(1, Length(tid) / Turns(tid) - turns_.observation_tokens);
}

int64_t WorkloadDraws::TurnTokens(const SampleId& tid) const {
  const int64_t turns = Turns(tid);
  return turns <= 1 ? INT64_MAX / 4 : std::max<int64_t>(1, Length(tid) / turns);
}

}  // namespace tidepool::scheduler
