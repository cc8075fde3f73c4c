#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// When the policy was asked: TrainerNeed (scheduler/placement.h) in words.
std::string PointOf(TrainerNeed need) {
  switch (need) {
    case TrainerNeed::kState:
      return "where the trainer's state is to be made or restored";
    case TrainerNeed::kStep:
      return "where a step runs";
    case TrainerNeed::kBatch:
      return "where a batch is ready";
    case TrainerNeed::kNothing:
      return "where the trainer waits for samples";
    case TrainerNeed::kPublish:
      return "where the newest weights are not published";
    case TrainerNeed::kDone:
      return "where all steps are done";
  }
  return "";
}

// What the trainer waits for and no slot of a plan does: it leads nowhere. Empty: somebody does it.
std::string NobodyToWork(const LedgerView& ledger, const Plan& plan) {
  const bool trains = ledger.need == TrainerNeed::kState || ledger.need == TrainerNeed::kBatch;
  const bool generates = ledger.need == TrainerNeed::kNothing && ledger.generates;
  if (!trains && !generates) return "";
  const Role wanted = trains ? Role::kActor : Role::kRollout;
  if (plan.roles.empty() ||
      std::ranges::any_of(plan.roles, [&](const SlotRoles::Item& item) { return item.second == wanted; }))
    return "";
  return std::string("gives no slot the role ") + Name(wanted) + " ('" + plan.why + "')";
}

// So many slots, from the first, may train that those that are there leave scheduler.rollout_floor to
// generate, and can share the groups of a step.
int64_t WithinFloor(const PoolView& view, int64_t groups) {
  std::vector<const SlotView*> train;
  int64_t others = 0;
  for (const SlotView& s : view.slots) {
    if (!s.live) continue;
    if (s.id.value < view.actor_slots)
      train.push_back(&s);
    else
      others += s.slots;
  }
  const auto slots_of_first = [&](size_t n) {
    int64_t slots = 0;
    for (size_t i = 0; i < n; ++i) slots += train[i]->slots;
    return slots;
  };
  const int64_t all = slots_of_first(train.size());
  const int64_t most = std::max<int64_t>(1, all + others - view.rollout_floor);
  if (most >= all) return view.actor_slots;
  size_t first = train.size();  // one can always
  while (first > 1 &&
         (slots_of_first(first) > most || !ValidDp(slots_of_first(first), groups, view.uneven_dp)))
    --first;
  return train[first - 1]->id.value + 1;
}

}  // namespace

Slots::Slots(Machines& all)
    : Machine(all),
      terms_{.slots = {},
             .actor_slots = options_.fleet.actor_slots,
             .rollout_floor = options_.fleet.rollout_floor,
             .uneven_dp = options_.fleet.uneven_dp,
             .tensor = options_.fleet.tensor},
      pool_({.need_bytes_rollout = options_.device_bytes_need_rollout,
             .need_bytes_actor = options_.device_bytes_need_actor,
             .offload_bytes = options_.device_bytes_offload},
            state_, out_, waits_) {}

void Slots::Begin() {
  for (const std::vector<SlotId>& gang : facts_.layout.gangs) pool_.Add(gang);
}

// Also where a crash came between the FENCE of a worker and the loss of its slot.
void Slots::LoseAbandoned() {
  for (const auto& [id, slot] : IdMap(pool_.slots())) {
    if (slot.phase != SlotPhase::kHeld && slot.phase != SlotPhase::kGranting) continue;
    const auto missing = std::ranges::find_if(slot.gang.members(), [&](const Gang::Member& m) {
      const Worker* w = fleet_.workers.Find(m.worker.worker);
      return w == nullptr || !w->reattaches();
    });
    if (missing != slot.gang.members().end()) pool_.Lost(missing->slot, "controller restarted", now_);
  }
}

void Slots::Lost(WorkerId worker, const std::string& why) {
  for (const SlotId slot : fleet_.workers.at(worker).slots()) pool_.Lost(slot, why, now_);
}

void Slots::Attach(const WorkerRef& ref) {
  for (const SlotId slot : fleet_.workers.at(ref.worker).slots()) pool_.Attach(slot, ref);
}

void Slots::Reattach(const WorkerRef& ref) {
  for (const SlotId slot : fleet_.workers.at(ref.worker).slots()) {
    if (pool_.slot(pool_.GangOf(slot)).phase == SlotPhase::kFree) {
      pool_.Attach(slot, ref);
    } else {
      pool_.Reattached(slot, now_);
    }
  }
}

bool Slots::Eligible(SlotId slot, Role role) const { return facts_.placement.eligible(terms_, slot, role); }

bool Slots::Eligible(std::span<const SlotId> slots, Role role) const {
  return std::ranges::any_of(slots, [&](SlotId slot) { return Eligible(pool_.GangOf(slot), role); });
}

bool Slots::Whole(const Pool::Slot& s) const {
  return std::ranges::all_of(s.gang.members(),
                             [&](const Gang::Member& m) { return fleet_.IsLive(m.worker); });
}

bool Slots::IsLive(const Pool::Slot& s) const {
  return s.phase != SlotPhase::kQuarantined && s.phase != SlotPhase::kLost && Whole(s);
}

SlotView Slots::ViewSlot(SlotId id, const Pool::Slot& s) const {
  SlotView v{.id = id, .slots = static_cast<int64_t>(s.gang.members().size())};
  v.role = s.t.valid() ? s.next : s.owed != Role::kNone ? s.owed : s.role;
  v.live = IsLive(s);
  v.avoid = now_ < s.avoid_until;
  if (all_.steps.open()) {
    const auto& members = all_.steps.open()->members;  // by slot
    const auto m = std::ranges::lower_bound(members, id, {}, &command::GroupMember::slot);
    v.trains = m != members.end() && m->slot == id && m->worker == s.holder();
  }
  v.has_state = std::ranges::all_of(s.gang.members(), [&](const Gang::Member& m) {
    return all_.trainer.Has({m.worker, m.slot});
  });
  if (s.taken.since_start.count() > 0) v.taken_s = Seconds(now_ - s.taken);
  return v;
}

// Where slots may lack (cluster.min_slots), or one is gone for good, the ones that train in turns may be all
// there are.
bool Slots::MayTrainOnFewer() const {
  return (options_.fleet.min_slots > 0 || all_.workers.DeviceRetired()) &&
         options_.fleet.placement == PlacementKind::kMultiplexed && !OneSize();
}

PoolView Slots::ViewPool() const {
  PoolView view = terms_;
  view.slots.reserve(pool_.slots().size());
  for (const auto& [id, s] : pool_.slots()) view.slots.push_back(ViewSlot(id, s));
  if (MayTrainOnFewer()) view.actor_slots = WithinFloor(view, state_.ledger().rules().groups_per_step);
  return view;
}

LedgerView Slots::ViewLedger(TrainerNeed need) const {
  const Ledger& ledger = state_.ledger();
  LedgerView l;
  l.generates = facts_.needs_rollout;
  l.evaluation = all_.evaluations.current().Pending();
  l.stopping = all_.life.stopping();
  l.groups_per_step = ledger.rules().groups_per_step;
  l.group_size = ledger.rules().group_size;
  l.ready_groups = ledger.CountGroups(GroupPhase::kQueued);
  l.need = need;
  l.batch_groups = need == TrainerNeed::kBatch ? static_cast<int64_t>(all_.batches.chosen().size()) : 0;
  return l;
}

// While something is under way, its end may change what the policy is shown. Where nobody is waited for,
// nothing ever will: the same views give the same plan. Some more are asked for all the same, as forecasts
// and slots to avoid depend on time.
void Slots::EndIfLeadsNowhere(const LedgerView& ledger) {
  constexpr int64_t kMost = 100;
  const bool refused = !plan_refused_.empty();
  const std::string nobody = refused ? "" : NobodyToWork(ledger, plan_.plan());
  const bool idle = (refused || !nobody.empty()) && now_ >= pool_.avoid_until() &&
                    all_.rollouts.requests().in_flight() == 0 && waits_.empty() &&
                    all_.samples.Describe().empty() &&
                    std::ranges::all_of(fleet_.workers, [](const auto& item) {
                      const Life life = item.second.vitals().life;
                      return life == Life::kHealthy || life == Life::kStale || life == Life::kRetired;
                    });
  idle_plans_ = idle ? idle_plans_ + 1 : 0;
  if (idle_plans_ < kMost) return;
  all_.life.Fail(refused ? "plan_refused" : "plan_idle", "policy",
                 "the plan of policy " + facts_.placement.name + " (" + facts_.placement.file + ") " +
                     PointOf(ledger.need) + " " + (refused ? "was refused" : nobody) + " " +
                     std::to_string(kMost) + " times in a row, and nothing else is under way" +
                     (refused ? ": " + plan_refused_ : "") +
                     "; correct its decide() (docs/adding_a_policy.md), or leave scheduler.policy out");
}

Forecast Slots::MakeForecast(const LedgerView& ledger) const {
  Forecast f;
  f.switch_s = pool_.switch_s();
  if (!facts_.placement.forecasts || ledger.need != TrainerNeed::kBatch) return f;
  const LedgerRules& rules = state_.ledger().rules();
  f.group_s = cycles_.group_s();
  f.cycles = cycles_.all();
  f.beside = rules.capacity() > rules.groups_per_step;
  return f;
}

std::optional<std::vector<SlotId>> Slots::DecidePlan(const LedgerView& ledger, bool by_slot) {
  const Forecast forecast = MakeForecast(ledger);
  std::vector<SlotId> changed = pool_.TakeChanged();
  // Slots to avoid are so for a time, which is no change of theirs.
  by_slot = by_slot && facts_.placement.by_slot && !MayTrainOnFewer() &&
            std::min(now_, plan_made_) >= pool_.avoid_until();
  if (by_slot) {
    PoolView view = terms_;
    for (const SlotId id : changed) view.slots.push_back(ViewSlot(id, pool_.slot(id)));
    by_slot = plan_.Update(facts_.placement, view, ledger, forecast, now_);
  }
  if (!by_slot) plan_.Decide(facts_.placement, ViewPool(), ledger, forecast, now_);
  plan_made_ = now_;
  if (plan_.refused().ok()) {
    plan_refused_.clear();
  } else {
    if (plan_refused_ != plan_.refused().message()) {
      plan_refused_ = plan_.refused().message();
      out_.Warn("plan_refused",
                "the plan of policy " + facts_.placement.name + " (" + facts_.placement.file + ") " +
                    PointOf(ledger.need) + " is not carried out: " + plan_refused_,
                {{"placement", facts_.placement.name}});
    }
  }
  if (!by_slot || !plan_refused_.empty()) EndIfLeadsNowhere(ledger);
  if (plan_.all_new() || takes_held_back_) return std::nullopt;
  return changed;
}

// Until then nobody is given a role. Beside cluster.min_slots it takes somebody who may train, and somebody
// who may generate where that is needed.
bool Slots::MayBegin() const {
  const int64_t least = all_.workers.min_slots();
  if (begun_ || least == 0) return true;
  bool trains = false, generates = !facts_.needs_rollout;
  for (const auto& [id, s] : pool_.slots()) {
    if (!Whole(s)) continue;
    trains = trains || Eligible(id, Role::kActor);
    generates = generates || Eligible(id, Role::kRollout);
  }
  return trains && generates && WholeSlots() >= least;
}

int64_t Slots::LiveSlots() const {
  return std::ranges::count_if(pool_.slots(), [&](const auto& item) { return IsLive(item.second); });
}

int64_t Slots::WholeSlots() const {
  int64_t n = 0;
  for (const auto& [id, s] : pool_.slots()) n += Whole(s) ? static_cast<int64_t>(s.gang.members().size()) : 0;
  return n;
}

void Slots::NoteBegin() {
  begun_ = true;
  const int64_t there = WholeSlots(), all = static_cast<int64_t>(fleet_.devices.size());
  if (all_.workers.min_slots() == 0 || there >= all) return;
  out_.Note("begins_short",
            "begins with " + std::to_string(there) + " of " + std::to_string(all) +
                " slots (cluster.min_slots: " + std::to_string(all_.workers.min_slots()) +
                "); the others join when they come",
            {{"slots", std::to_string(there)}});
}

void Slots::Advance(bool again) {
  if (all_.life.over()) return;
  // Whoever is replaced may have parts of further gangs.
  for (auto fenced = pool_.TakeFenced(); !fenced.empty(); fenced = pool_.TakeFenced()) {
    for (const WorkerRef& ref : fenced) all_.workers.Replace(ref, "another part of its gang is gone");
    if (all_.life.over()) return;
  }
  if (!MayBegin()) return;
  // A plan is made in every tick, for what depends on time, and when something it depends on has changed. If
  // only slots changed, only those are planned again.
  const LedgerView ledger = ViewLedger(all_.steps.DecideNeed());
  if (ledger.evaluation) cycles_.Disturbed();
  if (ledger.need == TrainerNeed::kBatch) cycles_.BatchReady(now_, LiveSlots());
  const auto key = std::make_tuple(pool_.plan_generation(), ledger.need, ledger.evaluation, ledger.stopping,
                                   ledger.batch_groups);
  if (!again && planned_ == key) return;
  bool by_slot = !again && planned_;
  if (by_slot) {
    std::get<0>(*planned_) = std::get<0>(key);
    by_slot = planned_ == key;
  }
  planned_ = key;
  const auto changed = DecidePlan(ledger, by_slot);
  if (all_.life.over()) return;
  FollowPlan(changed);
  if (!begun_ && !pool_.transitions().empty()) NoteBegin();
}

void Slots::FollowPlan(const std::optional<std::vector<SlotId>>& changed) {
  const Plan& wanted = plan_.plan();
  std::map<SlotId, Role> joins, takes, owed;
  const auto look = [&](SlotId id, Role want) {
    const Pool::Slot& s = pool_.slot(id);
    if (s.t.valid() || !Whole(s)) return;
    if (s.phase == SlotPhase::kReleased) {
      owed[id] = want;
    } else if (s.phase == SlotPhase::kFree) {
      joins[id] = want;
    } else if (s.phase == SlotPhase::kHeld && s.role != want && now_ >= s.avoid_until) {
      takes[id] = want;
    }
  };
  if (changed) {
    for (const SlotId id : *changed) {
      if (const auto want = wanted.roles.find(id); want != wanted.roles.end()) look(id, want->second);
    }
  } else {
    for (const auto& [id, role] : wanted.roles) {
      if (pool_.Knows(id)) look(id, role);
    }
  }
  const bool may_take = !takes.empty() && !pool_.Taking();
  takes_held_back_ = !takes.empty() && !may_take;
  // What a rolled-back transition had released already goes where it is wanted now: back, or on.
  for (const auto& [id, role] : owed) {
    if (role == pool_.slot(id).owed) {
      pool_.GrantBack(id, now_);
    } else {
      (may_take ? takes : joins)[id] = role;
    }
  }
  // What a gang has loaded it has loaded together. One that comes together anew may have other processes, and
  // its first worker may still have the weights (it outlived a controller) that another one has not.
  for (const auto& [id, role] : joins) {
    const auto& parts = pool_.slot(id).gang.members();
    if (pool_.slot(id).phase != SlotPhase::kFree || parts.size() == 1) continue;
    for (const Gang::Member& m : parts) all_.rollouts.Forget(m.slot);
  }
  if (!joins.empty()) pool_.Begin(joins, "join", 0, now_);
  if (!may_take) return;
  for (const auto& [id, role] : takes) {
    const Pool::Slot& s = pool_.slot(id);
    if (s.phase == SlotPhase::kHeld && s.role == Role::kRollout) all_.rollouts.SlotIsTaken(id);
  }
  pool_.Begin(takes, wanted.why, wanted.dwell_s, now_);
}

// Slots that hold the actor role now, by slot. Those of a gang change hands together, and each trains.
bool Slots::Confirms(Role role) const {
  return std::ranges::any_of(pool_.slots(), [&](const auto& entry) {
    const Pool::Slot& s = entry.second;
    return s.phase == SlotPhase::kGranting && s.role == role && Whole(s);
  });
}

std::vector<command::GroupMember> Slots::Members() const {
  std::vector<command::GroupMember> members;
  for (const SlotId id : pool_.Holding(Role::kActor)) {
    const Pool::Slot& s = pool_.slot(id);
    if (!Whole(s)) continue;
    for (const Gang::Member& m : s.gang.members()) members.push_back({m.worker, m.slot, s.epoch});
  }
  std::ranges::sort(members, {}, &command::GroupMember::slot);
  return members;
}

std::vector<SlotId> Slots::Trainers() const {
  std::vector<SlotId> all;
  for (const auto& [id, s] : pool_.slots()) {
    if (!Eligible(id, Role::kActor)) continue;
    for (const Gang::Member& m : s.gang.members()) all.push_back(m.slot);
  }
  std::ranges::sort(all);
  return all;
}

Shard Slots::ShardOf(SlotId slot) const {
  if (!options_.fleet.parted()) return {};
  const std::vector<SlotId> all = Trainers();
  const auto at = std::ranges::find(all, slot);
  if (at == all.end()) return {};  // it does not train
  const int64_t place = at - all.begin(), parts = options_.fleet.parts();
  Shard shard{.part = place % parts, .parts = parts};
  if (options_.fleet.zero) shard.rank = place / parts, shard.world = static_cast<int64_t>(all.size()) / parts;
  return shard;
}

void Slots::On(const event::Drained& e) {
  if (!fleet_.IsLive(e.worker) || !pool_.Drained(e, now_)) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  // All of its chunks have been reported; whatever was not goes back with the tokens that came.
  // The engine of a gang is that of its first slot; the other parts may be done before.
  if (pool_.GangOf(e.slot) == e.slot) all_.rollouts.Drained(e.slot);
}

void Slots::On(const event::Released& e) {
  if (!fleet_.IsLive(e.worker)) {
    all_.life.Refuse();
    return;
  }
  switch (pool_.Released(e, now_)) {
    case Pool::ReleaseOutcome::kRefused:
      all_.life.Refuse();
      return;
    case Pool::ReleaseOutcome::kReleased:
      all_.life.Moved();
      return;
    case Pool::ReleaseOutcome::kQuarantined:
      all_.workers.Replace(e.worker, "it kept its memory");
      return;
  }
}

void Slots::On(const event::Granted& e) {
  if (!fleet_.IsLive(e.worker) || !pool_.Granted(e, now_)) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  const SlotId gang = pool_.GangOf(e.slot);
  if (pool_.Holds(gang, Role::kRollout)) all_.rollouts.ServeAgain(gang);
}

}  // namespace tidepool::scheduler
