#include <algorithm>
#include <limits>
#include <set>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// A process that has died is seen to be gone by then, and is the one that is named.
constexpr double kEngineLostSeconds = 2;

}  // namespace

void Workers::On(const event::WorkerLost& e) {
  if (fleet_.IsLive(e.worker)) {
    if (Forgiven()) {
      Lose(e.worker, e.why, e.by_exit, e.for_good);
    } else {
      Crashed(e);
    }
    return;
  }
  // The end of a process that is already fenced, or of one that is waited for after a restart.
  const Worker* w = fleet_.workers.Find(e.worker.worker);
  if (w == nullptr || !w->reattaches() || state_.workers().at(e.worker.worker).inc != e.worker.inc) {
    all_.life.Refuse();
    return;
  }
  ReplaceAbsent(e.worker.worker, e.why);
}

// Most often a process of it died, and its end will be told next. Until then the engine gets nothing to do.
void Workers::On(const event::EngineLost& e) {
  if (!fleet_.IsLive(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  const SlotId engine = fleet_.devices.at(e.slot).gang().front();
  const Waits::Key key{WaitKind::kEngine, engine.value};
  if (waits_.Has(key)) return;  // another slot of it has said so
  all_.life.Moved();
  all_.rollouts.EngineLost(engine);
  waits_.Begin(key, {e.worker, now_, In(kEngineLostSeconds), e.why});
}

// As where a process of it died: what it was working on may be why.
void Workers::ReplaceEngine(const WorkerRef& ref, const std::string& why) {
  if (!fleet_.IsLive(ref)) return;
  const event::WorkerLost lost{ref, "the slots of its engine lost each other: " + why, /*by_exit=*/false, {}};
  if (Forgiven()) {
    Lose(lost.worker, lost.why, lost.by_exit);
  } else {
    Crashed(lost);
  }
}

// A worker died by itself. What it was working on may be why: a sample that was being worked on when a second
// worker died, and had not come further in between, is dropped before it takes all workers along.
void Workers::Crashed(const event::WorkerLost& e) {
  std::vector<SampleId> poison = all_.rollouts.Blame(e.worker.worker);
  for (const SampleId& tid : all_.samples.Blame(e.worker.worker)) poison.push_back(tid);
  const StepNumber in = all_.steps.open() ? all_.steps.open()->step : StepNumber{};
  Lose(e.worker, e.why, e.by_exit, e.for_good);  // closes it
  for (const SampleId& tid : poison) {
    if (!all_.life.over()) all_.samples.DropPoison(tid, e.why);
  }
  if (all_.life.over()) return;
  if (fleet_.workers.at(e.worker.worker).kind() == options_.side_kind()) {
    all_.samples.CountDeath(e);
  } else {
    all_.trainer.CountDeath(e, in);
  }
}

void Workers::Lose(const WorkerRef& ref, const std::string& why, bool by_exit, bool for_good) {
  all_.life.Moved();
  out_.Record(record::Fence{ref});
  // Whoever reads the fault learns who ended it.
  out_.Record(record::Fault{"worker_lost", options_.NameOf(ref.worker), ref.inc,
                            by_exit ? why : "the controller ended it: " + why, ref.worker});
  if (!by_exit) out_.Do(command::KillWorker{ref, why});
  all_.samples.WorkerLost(ref);
  for (const SlotId engine : fleet_.EnginesOf(ref.worker)) waits_.End({WaitKind::kEngine, engine.value});
  all_.rollouts.Lost(ref.worker);
  all_.slots.Lost(ref.worker, why);
  all_.trainer.Forget(ref);
  all_.steps.Lost(ref, why);
  all_.trainer.Lost(ref, why);
  AfterDeath(ref.worker, why, for_good);
}

void Workers::Replace(const WorkerRef& ref, const std::string& why) {
  if (fleet_.IsLive(ref)) {
    Lose(ref, why, /*by_exit=*/false);
  } else if (const Worker* w = fleet_.workers.Find(ref.worker); w != nullptr && w->reattaches()) {
    ReplaceAbsent(ref.worker, why);
  }
}

void Workers::AfterDeath(WorkerId worker, const std::string& why, bool for_good) {
  if (all_.life.over()) return;
  const bool joined = fleet_.workers.at(worker).live();
  const Health::Next next = health_.Died(worker, why, now_,
                                         for_good     ? Health::Death::kForGood
                                         : Forgiven() ? Health::Death::kForgiven
                                                      : Health::Death::kCounts);
  const std::string cause = (for_good ? "would end so again: " : "died three times before it joined: ") + why;
  switch (next.kind) {
    case Health::Next::kRestart:
      if (all_.life.running() || (all_.life.WantsTrainerBack() &&
                                  all_.slots.Eligible(fleet_.workers.at(worker).slots(), Role::kActor)))
        out_.Do(command::StartWorker{worker, next.delay});
      break;
    case Health::Next::kGiveUp:
      if (joined || MayLack(fleet_.workers.at(worker))) return GiveUp(worker, "it " + cause);
      all_.life.Fail("start_failed", WorkerRef{worker, {}}, "the worker " + cause);
      return;
    case Health::Next::kRetired:
      device_retired_ = device_retired_ || !fleet_.workers.at(worker).slots().empty();
      out_.Record(record::Fault{
          "retired", options_.NameOf(worker), {}, fleet_.workers.at(worker).vitals().last_why, worker});
      break;
    case Health::Next::kWait:
      break;
  }
  CheckFleet();
}

void Workers::GiveUp(WorkerId worker, const std::string& why) {
  const Worker& w = fleet_.workers.at(worker);
  device_retired_ = device_retired_ || (!w.slots().empty() && !MayLack(w));
  health_.Retire(worker, why);
  out_.Record(record::Fault{"gone", options_.NameOf(worker), {}, why, worker});
  CheckFleet();
}

// A part of the fleet that the run cannot do without is gone for good.
void Workers::CheckFleet() {
  bool rollout = false, side = false, actor = false, missing = false;
  // Slots: whose gang is whole, of these the ones that never train, and all that are there.
  int64_t whole = 0, only_generate = 0, left = 0;
  int64_t least = std::numeric_limits<int64_t>::max();  // of whole gangs that may train, the smallest
  std::set<SlotId> retired;
  std::string why, gone;  // gone: who, on which host
  for (const auto& [id, w] : fleet_.workers) {
    if (w.vitals().life == Life::kRetired) {
      retired.insert(w.slots().begin(), w.slots().end());
      why = w.vitals().last_why;
      if (!w.slots().empty())
        gone += (gone.empty() ? "" : ", ") + options_.NameOf(id) +
                (w.host().empty() ? "" : " on " + w.host()) + " (" + why + ")";
    } else if (w.kind() == options_.side_kind()) {
      side = true;
    }
  }
  for (const std::vector<SlotId>& gang : facts_.layout.gangs) {
    const bool trains = all_.slots.Eligible(gang.front(), Role::kActor);
    if (std::ranges::any_of(gang, [&](SlotId slot) { return retired.contains(slot); })) {
      // The group has one size, so there is no going on without it.
      missing = missing || (all_.slots.OneSize() && trains);
      continue;
    }
    const auto slots = static_cast<int64_t>(gang.size());
    whole += slots;
    only_generate += trains ? 0 : slots;
    if (trains) least = std::min(least, slots);
    left += std::ranges::count_if(gang, [&](SlotId slot) { return fleet_.devices.Find(slot) != nullptr; });
    actor = actor || trains;
    rollout = rollout || all_.slots.Eligible(gang.front(), Role::kRollout);
  }
  if (left < min_slots()) {
    all_.life.Fail("fleet_dead", "pool",
                   std::to_string(left) + " of " + std::to_string(fleet_.devices.size()) +
                       " slots are left, and cluster.min_slots is " + std::to_string(min_slots()) +
                       "; gone: " + gone +
                       "; go on with --resume when there are more hosts, or with a lower cluster.min_slots");
  } else if (!actor || missing) {
    all_.life.Fail(
        "fleet_dead", "actor",
        std::string(actor ? "a" : "every") + " worker that trains is retired (" + why + ")" +
            (actor && options_.fleet.parted()
                 ? "; with train.zero or train.mesh each has a part of the state: go on with --resume, "
                   "with fewer slots if it does not come back"
                 : ""));
  } else if (const FleetOptions& s = options_.fleet;
             facts_.needs_rollout &&
             (s.placement == PlacementKind::kMultiplexed || s.placement == PlacementKind::kElastic) &&
             (whole - least < s.rollout_floor ||
              // There all that train have to, so none of them can generate in place of another one.
              (all_.slots.OneSize() && s.placement == PlacementKind::kMultiplexed &&
               only_generate < s.rollout_floor))) {
    all_.life.Fail("fleet_dead", "pool",
                   std::to_string(whole) + " slots are left, and scheduler.rollout_floor of " +
                       std::to_string(s.rollout_floor) + " always generate, so none may train (" + why + ")");
  } else if (facts_.needs_rollout && !rollout) {
    all_.life.Fail("fleet_dead", "rollout", "every rollout worker is retired (" + why + ")");
  } else if ((facts_.needs_reward || facts_.environment) && !side) {
    const std::string kind = Name(options_.side_kind());
    all_.life.Fail("fleet_dead", kind, "every " + kind + " worker is retired (" + why + ")");
  }
}

}  // namespace tidepool::scheduler
