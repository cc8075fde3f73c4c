#include "scheduler/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tidepool::scheduler {
namespace {

constexpr double kDwellSwitches = 10;  // T_min = 10 x EWMA(T_sw)
constexpr double kSame = 1.1;     // cycles closer than forecasts are exact (docs/simulation.md, calibration)
constexpr double kStay = 10;      // steps that a newcomer to the training slots is expected to stay
constexpr double kKvShare = 0.8;  // of the cache, for the tail that goes on

Plan Everywhere(const PoolView& pool, Role role, std::string why) {
  Plan plan{.roles = {}, .why = std::move(why)};
  plan.roles.reserve(pool.slots.size());
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = role;
  }
  return plan;
}

// As it is; a slot that holds nothing gets `fresh`.
Plan Stay(const PoolView& pool, Role fresh, std::string why) {
  Plan plan{.roles = {}, .why = std::move(why)};
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = s.role == Role::kNone ? fresh : s.role;
  }
  return plan;
}

Plan Colocated(const PoolView& pool, const LedgerView& l, const Forecast&, TimePoint) {
  switch (l.need) {
    case TrainerNeed::kState:
    case TrainerNeed::kStep:
    case TrainerNeed::kPublish:
      return Everywhere(pool, Role::kActor, "all train");
    case TrainerNeed::kDone:
      return l.evaluation && !l.stopping ? Everywhere(pool, Role::kRollout, "all evaluate")
                                         : Stay(pool, Role::kActor, "the end");
    case TrainerNeed::kBatch:
      return l.evaluation ? Everywhere(pool, Role::kRollout, "all evaluate")
                          : Everywhere(pool, Role::kActor, "all train");
    case TrainerNeed::kNothing:
      break;
  }
  if (l.evaluation || l.generates) return Everywhere(pool, Role::kRollout, "all generate");
  return Everywhere(pool, Role::kActor, "all train");
}

Plan Split(const PoolView& pool, const LedgerView&, const Forecast&, TimePoint) {
  Plan plan{.roles = {}, .why = "split"};
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = s.id.value < pool.actor_slots ? Role::kActor : Role::kRollout;
  }
  return plan;
}

// The first `m` of `order` train, the rest generates.
Plan Shrink(const PoolView& pool, const std::vector<SlotId>& order, int64_t m, std::string why) {
  Plan plan = Everywhere(pool, Role::kRollout, std::move(why));
  for (size_t i = 0; i < order.size() && static_cast<int64_t>(i) < m; ++i)
    plan.roles[order[i]] = Role::kActor;
  return plan;
}

Plan Multiplexed(const PoolView& pool, const LedgerView& l, const Forecast&, TimePoint) {
  std::vector<SlotId> set;
  bool avoided = false;
  for (const SlotView& s : pool.slots) {
    if (!s.live || s.id.value >= pool.actor_slots) continue;
    if (s.avoid && s.role != Role::kActor) {
      avoided = true;  // the others train without it
      continue;
    }
    set.push_back(s.id);
  }
  const auto n = static_cast<int64_t>(set.size());
  switch (l.need) {
    case TrainerNeed::kState:
      return Shrink(pool, set, n, "state");
    case TrainerNeed::kStep:
      return Stay(pool, Role::kRollout, "a step runs");
    case TrainerNeed::kBatch:
      if (l.evaluation) break;
      return Shrink(pool, set, n, avoided ? "shrink without slots that failed" : "shrink");
    case TrainerNeed::kDone:
      if (l.evaluation && !l.stopping) break;
      return Stay(pool, Role::kRollout, "the end");
    case TrainerNeed::kPublish:
    case TrainerNeed::kNothing:
      break;
  }
  return Everywhere(pool, Role::kRollout, "expand");
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

Role& SlotRoles::operator[](SlotId id) {
  if (items_.empty() || items_.back().first < id) return items_.emplace_back(id, Role::kNone).second;
  const auto at = std::ranges::lower_bound(items_, id, {}, &Item::first);
  if (at->first == id) return at->second;
  return items_.emplace(at, id, Role::kNone)->second;
}

std::vector<SlotRoles::Item>::const_iterator SlotRoles::find(SlotId id) const {
  const auto at = std::ranges::lower_bound(items_, id, {}, &Item::first);
  return at != items_.end() && at->first == id ? at : items_.end();
}

size_t SlotRoles::erase(SlotId id) {
  const auto at = find(id);
  if (at == items_.end()) return 0;
  items_.erase(at);
  return 1;
}

bool ValidDp(int64_t dp, int64_t groups, bool uneven) {
  if (dp <= 0 || groups <= 0) return false;
  return uneven ? dp <= groups : groups % dp == 0;
}

Status CheckSlots(const Plan& plan, const PoolView& pool, PlanTotals& totals) {
  auto it = plan.roles.begin();  // both are sorted by slot: one walk
  for (const SlotView& s : pool.slots) {
    if (it != plan.roles.end() && it->first < s.id)
      return InvalidArgument("slot " + std::to_string(it->first.value) + " is planned, but does not exist");
    const bool planned = it != plan.roles.end() && it->first == s.id;
    const auto name = [&] { return "slot " + std::to_string(s.id.value); };
    if (s.live && !planned) return InvalidArgument(name() + " has a worker, but no role in the plan");
    if (!planned) continue;
    const Role role = (it++)->second;
    if (!s.live) continue;
    if (role != Role::kRollout && role != Role::kActor) {
      return InvalidArgument(name() + " is planned for " + Name(role) + "; a slot is for rollout or actor");
    }
    if (s.trains && role != Role::kActor)
      return InvalidArgument(name() + " trains the running step and is taken from it");
    totals.Count(role, 1);
  }
  if (it != plan.roles.end())
    return InvalidArgument("slot " + std::to_string(it->first.value) + " is planned, but does not exist");
  return OkStatus();
}

Status CheckTotals(const PlanTotals& totals, const PoolView& pool, const LedgerView& ledger, bool floor) {
  const auto [rollout, actor] = totals;
  if (floor && ledger.generates && rollout + actor > pool.rollout_floor && rollout < pool.rollout_floor) {
    return InvalidArgument("only " + std::to_string(rollout) +
                           " slots would generate, scheduler.rollout_floor is " +
                           std::to_string(pool.rollout_floor));
  }
  // A short batch may leave a member without rows; it joins every collective all the same.
  const bool whole = ledger.batch_groups >= ledger.groups_per_step;
  if (ledger.need == TrainerNeed::kBatch && whole && actor > 0 &&
      !ValidDp(actor, std::max<int64_t>(ledger.batch_groups, 1), pool.uneven_dp)) {
    return InvalidArgument(std::to_string(actor) + " slots cannot share " +
                           std::to_string(ledger.batch_groups) + " groups" +
                           (pool.uneven_dp ? "" : " evenly (scheduler.uneven_dp is false)"));
  }
  return OkStatus();
}

double SecondsPerToken(const Forecast& f, double samples, double slots) {
  if (slots <= 0 || samples <= 0) return 0;
  const double each = samples / slots;
  // t^2 - (c0 + w + c1 each) t + c1 each w = 0, the root above w.
  const double half = (f.token_fixed_s + f.token_wait_s + f.token_sample_s * each) / 2;
  return half + std::sqrt(std::max(0.0, half * half - f.token_sample_s * each * f.token_wait_s));
}

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

Placement PlacementOf(PlacementKind placement) {
  const auto any = [](const PoolView&, SlotId, Role) { return true; };
  const auto first_train = [](const PoolView& p, SlotId s, Role r) {
    return r != Role::kActor || s.value < p.actor_slots;
  };
  const auto apart = [](const PoolView& p, SlotId s, Role r) {
    return (r == Role::kActor) == (s.value < p.actor_slots);
  };
  Placement p{.name = Name(placement)};
  switch (placement) {
    case PlacementKind::kColocated:
      p.summary = "all slots switch together between generating and training";
      p.decide = Colocated, p.eligible = any;
      p.keeps_floor = false, p.by_slot = true;
      break;
    case PlacementKind::kSplit:
      p.summary = "slots 0 .. actor_slots-1 train, the others generate";
      p.decide = Split, p.eligible = apart;
      p.by_slot = true;
      break;
    case PlacementKind::kMultiplexed:
      p.summary = "all generate; slots 0 .. actor_slots-1 leave for each optimizer step and come back";
      p.decide = Multiplexed, p.eligible = first_train;
      p.by_slot = true;
      break;
    case PlacementKind::kElastic:
      p.summary = "as multiplexed, with as many training slots as forecasts say is best";
      p.decide = Elastic, p.eligible = any;
      p.forecasts = true;
      break;
  }
  return p;
}

}  // namespace tidepool::scheduler
