// As multiplexed, but how many train follows from what steps took with other numbers (ChooseElastic,
// scheduler/placement.h).
#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {
namespace {

constexpr double kDwellSwitches = 10;  // T_min = 10 x EWMA(T_sw)
constexpr int64_t kParts = 8;          // of the slots: one goes on at first, and a trial is one away
// A trial: its first cycle has the change in it and says nothing. Cycles differ by a tenth from one to the
// next, so the fewer are known the larger the difference that ends it: an eighth after two, kGain after all.
constexpr size_t kGlance = 2, kLook = 8;
constexpr double kGain = 0.02, kClear = 0.25;  // kClear / n after n
constexpr size_t kPatience = 12;               // cycles between two trials, at least
constexpr double kDire = 0.2;       // of a cycle, if more slots may save so much: there is no patience
constexpr double kForming = 0.02;   // of the time, at most, to form groups for trials
constexpr double kSameLoad = 1.25;  // cycles that differ by more are of another load

using CycleSpan = std::span<const Cycle>;

double Mean(CycleSpan cycles, double Cycle::*what) {
  double sum = 0;
  for (const Cycle& c : cycles) sum += c.*what;
  return cycles.empty() ? 0 : sum / static_cast<double>(cycles.size());
}

// Batches differ in length, and what a step takes goes with it.
double SecondsPerToken(CycleSpan cycles) {
  return Mean(cycles, &Cycle::seconds) / std::max(Mean(cycles, &Cycle::tokens), 1e-9);
}

struct Visit {  // cycles one after the other on as many slots
  int64_t slots = 0;
  CycleSpan cycles;
};

std::vector<Visit> Visits(CycleSpan cycles) {
  std::vector<Visit> visits;
  for (size_t i = 0; i < cycles.size();) {
    size_t end = i + 1;
    while (end < cycles.size() && cycles[end].slots == cycles[i].slots) ++end;
    visits.push_back({cycles[i].slots, cycles.subspan(i, end - i)});
    i = end;
  }
  return visits;
}

// The newest of a number that was stayed with.
CycleSpan Settled(const Visit& v) {
  const CycleSpan s = v.cycles.size() > 1 ? v.cycles.subspan(1) : v.cycles;
  return s.last(std::min(s.size(), kPatience));
}

enum class Verdict : uint8_t { kOpen, kBetter, kWorse };

CycleSpan Judged(CycleSpan trial) { return trial.subspan(1, std::min(trial.size() - 1, kLook)); }

Verdict Judge(CycleSpan trial, double base) {
  const CycleSpan seen = Judged(trial);
  for (size_t n = kGlance; n <= seen.size(); ++n) {
    const double ratio = SecondsPerToken(seen.first(n)) / base, clear = kClear / static_cast<double>(n);
    if (ratio < 1 - (n < kLook ? clear : kGain)) return Verdict::kBetter;
    if (ratio > 1 + clear || n == kLook) return Verdict::kWorse;
  }
  return Verdict::kOpen;
}

// What the cycles so far say.
struct Experience {
  Visit best;
  int64_t before = 0;            // the number that it was better than, right before it; 0: there is none
  std::optional<int64_t> trial;  // is being tried
  struct Worse {
    int64_t slots = 0;
    double best_s = 0;  // of a cycle with the number that was better
  };
  std::vector<Worse> worse;
};

Experience Learn(CycleSpan cycles) {
  std::span<const Visit> visits;
  const std::vector<Visit> all = Visits(cycles);
  visits = all;
  // What is kept may begin in the middle of a trial, which would pass for what was stayed with.
  while (visits.size() > 1 && visits.front().cycles.size() <= kPatience &&
         std::ranges::any_of(visits, [](const Visit& v) { return v.cycles.size() > kPatience; }))
    visits = visits.subspan(1);
  Experience e;
  for (const Visit& v : visits) {
    e.trial.reset();
    if (e.best.slots == 0 || v.slots == e.best.slots) {
      e.best = v;
      e.before = 0;
      continue;
    }
    switch (Judge(v.cycles, SecondsPerToken(Settled(e.best)))) {
      case Verdict::kOpen:
        e.trial = v.slots;
        break;
      case Verdict::kBetter:
        // Of then: it may be the number that goes on to this day.
        e.worse.push_back({e.best.slots, Mean(Judged(v.cycles), &Cycle::seconds)});
        e.before = e.best.slots;
        e.best = v;
        break;
      case Verdict::kWorse:
        e.worse.push_back({v.slots, Mean(Settled(e.best), &Cycle::seconds)});
        break;
    }
  }
  return e;
}

// `numbers`: that may train, ascending. requires one of them
int64_t Next(const Experience& e, std::span<const int64_t> numbers, int64_t part, double group_s) {
  const auto at_most = [&](int64_t m) {
    const auto above = std::ranges::upper_bound(numbers, m);
    return above == numbers.begin() ? numbers.front() : *(above - 1);
  };
  if (e.trial) return at_most(*e.trial);
  const int64_t m = at_most(e.best.slots);
  if (m != e.best.slots) return m;
  const CycleSpan settled = Settled(e.best);
  const double cycle_s = Mean(settled, &Cycle::seconds);
  const auto known_worse = [&](int64_t from, int64_t to) {
    return std::ranges::any_of(e.worse, [&](const Experience::Worse& w) {
      const double load = w.best_s > 0 ? cycle_s / w.best_s : 0;
      return from <= w.slots && w.slots <= to && load < kSameLoad && load * kSameLoad > 1;
    });
  };
  const auto above = std::ranges::lower_bound(numbers, m + part);
  const int64_t up = above == numbers.end() ? numbers.back() : *above, down = at_most(m - part);
  // More slots can save no more than the step's own seconds that they share.
  const double saved =
      Mean(settled, &Cycle::train_s) * (1 - static_cast<double>(m) / static_cast<double>(up));
  const bool may_up = up > m && !known_worse(m + 1, up) && saved > kGain * cycle_s;
  const bool may_down = down < m && !known_worse(down, m - 1);
  if (e.before > 0) {  // on in the direction that was right
    if (m > e.before && may_up) return up;
    if (m < e.before && may_down) return down;
  }
  const double patience = may_up && saved > kDire * cycle_s
                              ? static_cast<double>(kGlance)
                              : std::max(static_cast<double>(kPatience), 2 * group_s / (kForming * cycle_s));
  if (static_cast<double>(e.best.cycles.size()) <= patience) return m;
  return may_up ? up : may_down ? down : m;
}

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
      // A choice that is being carried out is not reconsidered.
      if (now > 0) return Stay(pool, Role::kRollout, "shrink");
      int64_t m = ChooseElastic(pool, l, f);
      if (m == 0) break;
      // Slots that were taken a moment ago are left alone: fewer train, or the step waits for them, whichever
      // is over sooner.
      const std::vector<SlotId> order = ElasticOrder(pool, dwell);
      std::vector<double> taken;
      for (const SlotView& s : pool.slots) {
        if (s.live && !s.avoid) taken.push_back(s.taken_s);
      }
      std::sort(taken.rbegin(), taken.rend());
      const int64_t rested = std::ranges::count_if(taken, [&](double s) { return s >= dwell; });
      if (rested < m) {
        const auto last = static_cast<size_t>(std::min<int64_t>(m, static_cast<int64_t>(taken.size())) - 1);
        const int64_t fewer = ChooseElastic(pool, l, f, std::max<int64_t>(1, rested));
        const double work_s =
            f.cycles.empty() ? 0 : f.cycles.back().train_s * static_cast<double>(f.cycles.back().slots);
        const double longer = work_s / static_cast<double>(fewer) - work_s / static_cast<double>(m);
        if (rested > 0 && dwell - taken[last] < longer + f.group_s)
          return Everywhere(pool, Role::kRollout, "rest");
        m = fewer;
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

int64_t ChooseElastic(const PoolView& pool, const LedgerView& l, const Forecast& f, int64_t limit) {
  const auto n = static_cast<int64_t>(ElasticOrder(pool, 0).size());
  const int64_t groups = std::max<int64_t>(l.batch_groups, 1);
  const int64_t most = std::min(limit, pool.actor_slots > 1 ? pool.actor_slots : n);
  std::vector<int64_t> numbers;
  for (int64_t m = 1; m <= std::min(n - pool.rollout_floor, most); ++m) {
    if (ValidDp(m, groups, pool.uneven_dp)) numbers.push_back(m);
  }
  if (numbers.empty()) return n > pool.rollout_floor ? 1 : 0;  // the least that trains at all
  if (!f.beside) return numbers.back();
  // Of other slots than are there now nothing is known.
  const int64_t live = std::ranges::count_if(pool.slots, &SlotView::live);
  const auto others =
      std::find_if(f.cycles.rbegin(), f.cycles.rend(), [&](const Cycle& c) { return c.live != live; });
  const CycleSpan cycles = f.cycles.last(static_cast<size_t>(others - f.cycles.rbegin()));
  const int64_t part = std::max<int64_t>(1, n / kParts);
  if (cycles.empty()) {
    const auto above = std::ranges::upper_bound(numbers, n - (n + kParts - 1) / kParts);
    return above == numbers.begin() ? numbers.front() : *(above - 1);
  }
  return Next(Learn(cycles), numbers, part, f.group_s);
}

TP_PLUGIN(Policy, elastic) {
  return {.summary = "as multiplexed, with as many training slots as have proved best",
          .placement = PlacementKind::kElastic,
          .decide = Elastic,
          .forecasts = true};
}

}  // namespace tidepool::scheduler
