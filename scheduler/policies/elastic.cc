// As multiplexed, but how many train is chosen each time from forecasts (ChooseElastic,
// scheduler/placement.h).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

constexpr double kDwellSwitches = 10;  // T_min = 10 x EWMA(T_sw)
constexpr double kSame = 1.1;     // cycles closer than forecasts are exact (docs/simulation.md, calibration)
constexpr double kStay = 10;      // steps that a newcomer to the training slots is expected to stay
constexpr double kKvShare = 0.8;  // of the cache, for the tail that goes on

// Cheapest slots first: those that train or hold the state now, then the lowest.
std::vector<SlotId> ElasticOrder(const PoolView& pool, double dwell_s) {
  std::vector<std::pair<int, SlotId>> ranked;
  for (const SlotView& s : pool.slots) {
    if (!s.live || (s.avoid && s.role != Role::kActor)) continue;
    const int rank = s.role == Role::kActor                ? 0
                     : s.has_state && s.taken_s >= dwell_s ? 1
                     : s.role == Role::kNone               ? 2
                     : s.taken_s < dwell_s                 ? 4
                                                           : 3;
    ranked.emplace_back(rank, s.id);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<SlotId> order;
  for (const auto& [rank, id] : ranked) order.push_back(id);
  return order;
}

Plan Elastic(const PoolView& pool, const LedgerView& l, const Forecast& f, TimePoint) {
  const double dwell = kDwellSwitches * f.switch_s;
  switch (l.need) {
    case TrainerNeed::kState:
      return Shrink(pool, ElasticOrder(pool, dwell), 1, "state");
    case TrainerNeed::kStep:
      return Stay(pool, Role::kRollout, "a step runs");
    case TrainerNeed::kBatch: {
      if (l.evaluation) break;
      const int64_t now = std::count_if(pool.slots.begin(), pool.slots.end(),
                                        [](const SlotView& s) { return s.live && s.role == Role::kActor; });
      // A choice that is being carried out is not reconsidered: forecasts move with every event.
      if (now > 0) return Stay(pool, Role::kRollout, "shrink");
      const ElasticChoice choice = ChooseElastic(pool, l, f);
      if (choice.slots == 0) break;
      // Slots that were taken a moment ago are left alone: fewer train, or the step waits for them, whichever
      // is over sooner.
      const std::vector<SlotId> order = ElasticOrder(pool, dwell);
      std::vector<double> taken;
      for (const SlotView& s : pool.slots) {
        if (s.live && !s.avoid) taken.push_back(s.taken_s);
      }
      std::sort(taken.rbegin(), taken.rend());
      const int64_t rested = std::ranges::count_if(taken, [&](double s) { return s >= dwell; });
      int64_t m = choice.slots;
      if (rested < m) {
        const auto last = static_cast<size_t>(std::min<int64_t>(m, static_cast<int64_t>(taken.size())) - 1);
        const ElasticChoice at_once = ChooseElastic(pool, l, f, std::max<int64_t>(1, rested));
        if (rested > 0 && dwell - taken[last] + choice.cycle_s < at_once.cycle_s)
          return Everywhere(pool, Role::kRollout, "rest");
        m = at_once.slots;
      }
      Plan plan =
          Shrink(pool, order, m, "shrink " + std::to_string(m) + " of " + std::to_string(pool.slots.size()));
      plan.dwell_s = rested > 0 ? dwell : 0;
      return plan;
    }
    case TrainerNeed::kDone:
      if (l.evaluation && !l.stopping) break;
      return Stay(pool, Role::kRollout, "the end");
    case TrainerNeed::kPublish:
    case TrainerNeed::kNothing:
      break;
  }
  return Everywhere(pool, Role::kRollout, "expand");
}

}  // namespace

ElasticChoice ChooseElastic(const PoolView& pool, const LedgerView& l, const Forecast& f, int64_t limit) {
  const std::vector<SlotId> order = ElasticOrder(pool, 0);
  const auto n = static_cast<int64_t>(order.size());
  const auto nd = static_cast<double>(n);
  const int64_t groups = std::max<int64_t>(l.batch_groups, 1);
  int64_t keep = pool.rollout_floor;
  if (f.kv_tokens_per_slot > 0) {
    keep = std::max(keep, static_cast<int64_t>(std::ceil(
                              f.tail_kv_tokens / (kKvShare * static_cast<double>(f.kv_tokens_per_slot)))));
  }
  int64_t with_state = 0;
  for (const SlotView& s : pool.slots) with_state += s.live && s.has_state ? 1 : 0;
  const double token_after = SecondsPerToken(f, f.beside.samples + f.after.samples, nd);
  std::vector<ElasticChoice> choices;
  double least = std::numeric_limits<double>::infinity();
  const int64_t most = std::min(limit, pool.actor_slots > 1 ? pool.actor_slots : n);
  for (int64_t m = 1; m <= std::min(n, most); ++m) {
    if (!ValidDp(m, groups, pool.uneven_dp)) continue;
    if (n - m < keep && m > 1) break;
    if (n - m < pool.rollout_floor) break;
    const double train = f.train_fixed_s + f.train_work_s / static_cast<double>(m);
    const double sw = 2 * f.switch_s + (m > with_state ? f.state_copy_s / kStay : 0);
    const double token_beside =
        SecondsPerToken(f, std::max(f.tail_samples, f.beside.samples), nd - static_cast<double>(m));
    const double passed =
        token_beside > 0 ? (sw + train) / token_beside : 0;  // tokens of each sample meanwhile
    const double left = std::max(0.0, f.beside.longest - passed);
    const double tokens = std::max(0.0, f.beside.tokens - passed * f.beside.samples) + f.after.tokens;
    const double samples = f.beside.samples + f.after.samples;
    double refill = token_after * std::max(left, f.after.longest);
    if (samples > 0) refill = std::max(refill, token_after * tokens / samples);
    choices.push_back({m, sw + train + refill});
    least = std::min(least, choices.back().cycle_s);
  }
  ElasticChoice best;
  for (const ElasticChoice& c : choices) {
    if (c.cycle_s <= kSame * least) best = c;
  }
  if (best.slots == 0 && n > 0 && n - 1 >= pool.rollout_floor) best = {1, 0};  // the least that trains at all
  return best;
}

TP_PLUGIN(Policy, elastic) {
  return {.summary = "as multiplexed, with as many training slots as forecasts say is best",
          .placement = PlacementKind::kElastic,
          .decide = Elastic,
          .forecasts = true};
}

}  // namespace tidepool::scheduler
