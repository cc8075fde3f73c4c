#include "scheduler/placement.h"

#include <algorithm>
#include <utility>

#include "core/base/names.h"
#include "scheduler/policies/policy_plugin.h"

namespace tidepool::scheduler {

Plan Everywhere(const PoolView& pool, Role role, std::string why) {
  Plan plan{.roles = {}, .why = std::move(why)};
  plan.roles.reserve(pool.slots.size());
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = role;
  }
  return plan;
}

Plan Stay(const PoolView& pool, Role fresh, std::string why) {
  Plan plan{.roles = {}, .why = std::move(why)};
  for (const SlotView& s : pool.slots) {
    if (s.live) plan.roles[s.id] = s.role == Role::kNone ? fresh : s.role;
  }
  return plan;
}

Plan Shrink(const PoolView& pool, const std::vector<SlotId>& order, int64_t m, std::string why) {
  Plan plan = Everywhere(pool, Role::kRollout, std::move(why));
  for (size_t i = 0; i < order.size() && static_cast<int64_t>(i) < m; ++i)
    plan.roles[order[i]] = Role::kActor;
  return plan;
}

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
  if (!plan.failed.empty()) return InvalidArgument(plan.failed);
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
    totals.Count(role, s.slots);
  }
  if (it != plan.roles.end())
    return InvalidArgument("slot " + std::to_string(it->first.value) + " is planned, but does not exist");
  return OkStatus();
}

Status CheckTotals(const PlanTotals& totals, const PoolView& pool, const LedgerView& ledger, bool floor) {
  const auto [rollout, actor] = totals;
  // While a step runs its slots stay, also where those that were to generate meanwhile have just been lost:
  // with the plan refused the one of before would take some of them.
  const bool leaves = ledger.need != TrainerNeed::kStep;
  if (floor && leaves && ledger.generates && rollout + actor > pool.rollout_floor &&
      rollout < pool.rollout_floor) {
    return InvalidArgument("only " + std::to_string(rollout) +
                           " slots would generate, scheduler.rollout_floor is " +
                           std::to_string(pool.rollout_floor));
  }
  // A short batch may leave a member without rows; it joins every collective all the same.
  const bool whole = ledger.batch_groups >= ledger.groups_per_step;
  if (ledger.need == TrainerNeed::kBatch && whole && actor > 0 &&
      !ValidDp(actor / pool.tensor, std::max<int64_t>(ledger.batch_groups, 1), pool.uneven_dp)) {
    return InvalidArgument(std::to_string(actor) + " slots cannot share " +
                           std::to_string(ledger.batch_groups) + " groups" +
                           (pool.uneven_dp ? "" : " evenly (scheduler.uneven_dp is false)"));
  }
  return OkStatus();
}

namespace {

const Plugin<PolicyPlugin>* FindPolicy(std::string_view name) {
  const auto all = PolicyPlugins();
  const auto at = std::ranges::find_if(all, [&](const auto& plugin) { return name == plugin.name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace

// core/base/plugin_check.h.
std::string FaultOf(const PolicyPlugin& plugin) { return plugin.decide == nullptr ? "has no .decide" : ""; }

Status CheckPolicy(PlacementKind placement, const std::string& policy) {
  if (policy.empty()) return OkStatus();
  const Plugin<PolicyPlugin>* found = FindPolicy(policy);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const auto& plugin : PolicyPlugins()) names.emplace_back(plugin.name);
    return InvalidArgument("scheduler.policy: no policy is named '" + policy + "'; " +
                           DidYouMean(policy, names));
  }
  if (const PlacementKind own = found->make().placement; own != placement) {
    std::string others;
    for (const auto& plugin : PolicyPlugins()) {
      if (plugin.make().placement == placement)
        others += (others.empty() ? "" : ", ") + std::string(plugin.name);
    }
    return InvalidArgument("scheduler.policy: " + policy + " decides within placement " + Name(own) +
                           " alone; found scheduler.placement: " + Name(placement) +
                           "; write scheduler.placement: " + Name(own) + ", or a policy of " +
                           Name(placement) + " (" + others + ")");
  }
  return OkStatus();
}

Placement PlacementOf(PlacementKind placement, const std::string& policy) {
  const Plugin<PolicyPlugin>* found = FindPolicy(policy.empty() ? Name(placement) : policy);
  TP_CHECK(found != nullptr) << "no policy " << policy << "; CheckPolicy comes first";
  const PolicyPlugin plugin = found->make();
  Placement p{.name = found->name,
              .summary = plugin.summary,
              .file = found->file,
              .decide = plugin.decide,
              .keeps_floor = placement != PlacementKind::kColocated,
              .forecasts = plugin.forecasts,
              .by_slot = plugin.by_slot,
              .eligible = {}};
  p.eligible = [placement](const PoolView& pool, SlotId slot, Role role) {
    const bool trains = slot.value < pool.actor_slots;
    if (placement == PlacementKind::kSplit) return (role == Role::kActor) == trains;
    return placement != PlacementKind::kMultiplexed || role != Role::kActor || trains;
  };
  return p;
}

}  // namespace tidepool::scheduler
