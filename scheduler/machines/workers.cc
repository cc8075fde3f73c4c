#include <algorithm>
#include <cstdio>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// All of them ended before the controller moved again, and are seen within its next ticks.
constexpr double kForgivenSeconds = 1;

HealthOptions HealthOf(const ControllerOptions& c) {
  return {.heartbeat_s = c.fleet.heartbeat_s,
          .start_timeout_s = c.fleet.start_timeout_s,
          .seed = c.seed,
          .launch = c.fleet.launch_workers,
          .quiet_s = c.fleet.quiet_s,
          .may_lack = c.fleet.min_slots > 0};
}

}  // namespace

Workers::Workers(Machines& all) : Machine(all), health_(HealthOf(options_), all.fleet) {}

// Empty: it may join.
std::string Workers::WhyNotWelcome(const event::WorkerJoined& e) const {
  const Worker* w = fleet_.workers.Find(e.worker);
  if (w == nullptr || e.kind != w->kind()) return "this run has no such worker place";
  const std::string name = options_.NameOf(e.worker);
  if (w->live()) return name + " is taken by another process (" + options_.NameOf(w->ref()) + ")";
  if (w->vitals().life == Life::kRetired && !MayLack(*w))
    return name + " is retired: " + w->vitals().last_why;
  for (const event::OfferedSlot& offered : e.slots) {
    if (std::ranges::find(w->slots(), offered.slot) == w->slots().end())
      return name + " has no slot " + std::to_string(offered.slot.value);
  }
  return "";
}

void Workers::On(const event::WorkerJoined& e) {
  if (const std::string why = WhyNotWelcome(e); !why.empty()) {
    out_.Do(command::RefuseWorker{e.worker, e.process, why});
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  all_.fleet.Place(e.worker, e.host);
  if (e.restored_inc.valid() && Reattach(e)) {
    if (!SomeReattach()) all_.samples.ResumeRows();
    return;
  }
  if (fleet_.workers.at(e.worker).reattaches()) {
    FenceAbsent(e.worker, "another process took its place");
    if (!SomeReattach()) all_.samples.ResumeRows();
  }
  if (fleet_.workers.at(e.worker).vitals().life == Life::kRetired)
    out_.Note("newcomer", options_.NameOf(e.worker) + ", which was given up, has a worker again",
              {{"worker", options_.NameOf(e.worker)}});
  const WorkerRef ref{e.worker, state_.next_incarnation()};
  const std::vector<SlotId>& slots = fleet_.workers.at(e.worker).slots();
  out_.Record(record::Join{ref, e.name,
                           e.kind == WorkerKind::kReward        ? Role::kReward
                           : e.kind == WorkerKind::kEnvironment ? Role::kEnvironment
                                                                : Role::kNone,
                           slots});
  out_.Do(command::Welcome{e.worker, e.process, ref.inc, slots});
  health_.Joined(ref, now_);
  for (const SlotId slot : slots) all_.rollouts.Forget(slot);
  if (e.kind != WorkerKind::kDevice) {
    all_.samples.AddSideWorker(ref);
    health_.Admitted(e.worker);
  } else {
    all_.slots.Attach(ref);
  }
}

// False: it is not one that was waited for, and has to begin anew.
bool Workers::Reattach(const event::WorkerJoined& e) {
  const auto facts = state_.workers().find(e.worker);
  Worker& w = all_.fleet.workers.at(e.worker);
  if (!w.reattaches() || facts == state_.workers().end() || facts->second.inc != e.restored_inc) return false;
  w.reattaches_ = false;
  const WorkerRef ref{e.worker, e.restored_inc};
  out_.Do(command::Welcome{e.worker, e.process, ref.inc, w.slots()});
  health_.Joined(ref, now_);
  if (e.kind != WorkerKind::kDevice) {
    all_.samples.AddSideWorker(ref);
    return true;
  }
  for (const event::OfferedSlot& offered : e.slots) all_.rollouts.Offered(offered);
  all_.slots.Reattach(ref);
  for (const SlotId slot : w.slots()) {
    const auto said = std::ranges::find(e.slots, slot, &event::OfferedSlot::slot);
    all_.trainer.Adopt(ref, said == e.slots.end() ? event::OfferedSlot{.slot = slot} : *said);
    // What was granted and never confirmed has no chunks: it is made an engine when it confirms.
    const SlotId gang = all_.slots.pool().GangOf(slot);
    const Pool::Slot& s = all_.slots.pool().slot(gang);
    if (s.role == Role::kRollout && !s.t.valid() && slot == gang) all_.rollouts.Adopt(gang, e.chunks);
  }
  return true;
}

// The process of the last life that was waited for is gone, or is not wanted any more.
void Workers::FenceAbsent(WorkerId worker, const std::string& why) {
  all_.fleet.workers.at(worker).reattaches_ = false;
  out_.Record(record::Fence{{worker, state_.workers().at(worker).inc}});
  all_.slots.Lost(worker, why);
}

void Workers::Launch(WorkerId worker) {
  health_.Starting(worker, now_);
  if (options_.fleet.launch_workers) out_.Do(command::StartWorker{worker});
}

void Workers::ReplaceAbsent(WorkerId worker, const std::string& why) {
  FenceAbsent(worker, why);
  Launch(worker);
  if (!SomeReattach()) all_.samples.ResumeRows();
}

void Workers::ReattachOver() {
  for (const auto& [id, w] : fleet_.workers) {
    if (!w.reattaches()) continue;
    FenceAbsent(id, "its worker did not come back");
    Launch(id);
  }
  all_.samples.ResumeRows();
}

bool Workers::DevicesReattach() const {
  return std::ranges::any_of(fleet_.workers, [](const auto& item) {
    return item.second.reattaches() && !item.second.slots().empty();
  });
}

bool Workers::SomeReattach() const {
  return std::ranges::any_of(fleet_.workers, [](const auto& item) { return item.second.reattaches(); });
}

void Workers::Resume() {
  const bool wait = options_.fleet.reattach_grace_s > 0;
  const Pool& pool = all_.slots.pool();
  for (const auto& [id, facts] : std::map(state_.workers())) {
    if (facts.fenced) continue;
    const WorkerRef ref{id, facts.inc};
    Worker* w = all_.fleet.workers.Find(id);  // nullptr: the run had more places before
    // A device that was released by a transition holds nothing; it may come back all the same.
    const bool whole = w != nullptr && std::ranges::all_of(w->slots(), [&](SlotId part) {
                         const Pool::Slot& slot = pool.slot(pool.GangOf(part));
                         return slot.phase == SlotPhase::kFree || slot.gang.Find(part)->worker == ref;
                       });
    // A crash may come between the QUAR or LOST of a slot and the FENCE of the process that has it.
    if (wait && whole && !facts.spent) {
      w->reattaches_ = true;
    } else {
      out_.Record(record::Fence{ref});
    }
  }
  reattach_until_ = In(options_.fleet.reattach_grace_s);
}

void Workers::Begin() {
  for (const auto& [id, slots] : facts_.layout.slots) {
    if (!facts_.needs_rollout && !all_.slots.Eligible(slots, Role::kActor)) continue;
    all_.fleet.Add(id, WorkerKind::kDevice, slots);
  }
  for (const std::vector<SlotId>& gang : facts_.layout.gangs) {
    const auto added = [&](SlotId slot) { return fleet_.devices.Find(slot) != nullptr; };
    if (std::ranges::all_of(gang, added)) all_.fleet.Bind(gang);
  }
  if (facts_.needs_reward || facts_.environment) {
    for (int64_t i = 0; i < options_.side_workers(); ++i)
      all_.fleet.Add(options_.side_worker(i), options_.side_kind(), {});
  }
}

void Workers::Start() {
  for (const auto& [id, w] : fleet_.workers) {
    if (w.reattaches())
      health_.Starting(id, now_);
    else
      Launch(id);
  }
}

void Workers::On(const event::WorkerStartFailed& e) {
  const Worker* w = fleet_.workers.Find(e.worker);
  if (w == nullptr || w->live()) {
    all_.life.Refuse();
    return;
  }
  out_.Record(record::Fault{"worker_lost", options_.NameOf(e.worker), {}, e.why, e.worker});
  AfterDeath(e.worker, e.why, e.for_good);
}

void Workers::On(const event::Heartbeat& e) {
  if (!fleet_.IsLive(e.worker)) {
    all_.life.Refuse();
    return;
  }
  const Worker& w = fleet_.workers.at(e.worker.worker);
  const int64_t seq = w.vitals().op_seq;
  health_.Heard(e.worker.worker, e, now_);
  all_.rollouts.Heard(e);
  if (e.op_seq != seq) {  // a long operation moves
    all_.life.Moved();
    if (e.op == event::kAwaitTurn) waits_.BeginAnew(e.worker, now_);
    for (const SlotId slot : w.slots())
      waits_.Extend({WaitKind::kTrain, slot.value}, now_ + all_.steps.Patience());
  }
}

void Workers::On(const event::StoodStill& e) {
  forgiven_until_ = In(kForgivenSeconds);
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%.1f", Seconds(e.time));
  out_.Warn("stood_still",
            std::string("the controller stood still for ") + seconds +
                " s: it was stopped (SIGSTOP), or the machine gave it no turn. Workers that heard nothing "
                "from it may have ended for that, and not by a fault of their own",
            {{"seconds", seconds}});
}

void Workers::Tick() {
  for (const auto& [id, w] : fleet_.workers) {
    bool busy = false, serves = false, loads = false;
    for (const SlotId slot : w.slots()) {
      const Device& d = fleet_.devices.at(slot);
      if (d.engine() == nullptr) continue;
      serves = true;
      all_.slots.SetStepTime(slot, d.pace().step_s);
      loads |= d.weights().loading.valid();
      busy |= !d.engine()->in_flight.empty() && all_.slots.pool().Holds(slot, Role::kRollout);
    }
    if (serves) health_.SetBusy(id, busy && !loads, now_);
  }
  if (now_ > reattach_until_ && SomeReattach()) ReattachOver();
  for (const Health::Verdict& v : health_.Tick(now_)) {
    if (all_.life.over()) return;
    const Worker& w = fleet_.workers.at(v.worker);
    switch (v.kind) {
      case Health::Verdict::kSuspect:
        out_.Say(LogLevel::kWarn, w.ref(), "worker_suspect", "gets nothing new for now: " + v.why);
        all_.rollouts.JudgeEngines(v.worker);
        if (v.stuck) all_.rollouts.Hedge(v.worker);
        break;
      case Health::Verdict::kRecovered:
        all_.rollouts.JudgeEngines(v.worker);
        break;
      case Health::Verdict::kDead:
        Crashed({WorkerRef(w.ref()), v.why, /*by_exit=*/false, {}});
        break;
      case Health::Verdict::kStartTimedOut:
        if (w.reattaches()) break;
        if (!options_.fleet.launch_workers && MayLack(w)) {
          GiveUp(v.worker, v.why);
          break;
        }
        if (!options_.fleet.launch_workers) {
          all_.life.Fail("start_failed", WorkerRef{v.worker, {}}, "the worker " + v.why);
          return;
        }
        out_.Record(record::Fault{"worker_lost", options_.NameOf(v.worker), {}, v.why, v.worker});
        out_.Do(command::KillWorker{{v.worker, {}}, v.why});
        AfterDeath(v.worker, v.why);
        break;
    }
  }
  for (const WorkerRef& ref : all_.samples.StuckGraders())
    Replace(ref, "a grading did not end within its deadline");
}

}  // namespace tidepool::scheduler
