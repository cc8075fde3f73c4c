#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

HealthOptions HealthOf(const ControllerOptions& c) {
  return {.heartbeat_s = c.fleet.heartbeat_s,
          .start_timeout_s = c.fleet.start_timeout_s,
          .seed = c.seed,
          .launch = c.fleet.launch_workers};
}

}  // namespace

Workers::Workers(Machines& all) : Machine(all), health_(HealthOf(options_)) {}

// Empty: it may join.
std::string Workers::WhyNotWelcome(const event::WorkerJoined& e) const {
  const auto* place = health_.Find(e.worker);
  const std::string name = "worker place " + std::to_string(e.worker.value);
  if (place == nullptr || e.kind != place->kind) return "this run has no such worker place";
  if (place->ref.inc.valid()) return name + " is taken by " + ToString(place->ref);
  if (place->life == Life::kRetired) return name + " is retired: " + place->last_why;
  const std::span<const SlotId> slots = all_.slots.SlotsOf(e.worker);
  if (e.kind == WorkerKind::kDevice && e.slot.valid() && std::ranges::find(slots, e.slot) == slots.end())
    return name + " has no slot " + std::to_string(e.slot.value);
  return "";
}

void Workers::On(const event::WorkerJoined& e) {
  if (const std::string why = WhyNotWelcome(e); !why.empty()) {
    out_.Do(command::RefuseWorker{e.worker, e.process, why});
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  if (e.restored_inc.valid() && Reattach(e)) {
    if (reattaching_.empty()) all_.samples.ResumeRows();
    return;
  }
  if (reattaching_.contains(e.worker)) {  // a new process in the place of one that was waited for
    out_.Record(record::Fence{{e.worker, state_.workers().at(e.worker).inc}});
    all_.slots.Lost(e.worker, "another process took its place");
    reattaching_.erase(e.worker);
    if (reattaching_.empty()) all_.samples.ResumeRows();
  }
  const WorkerRef ref{e.worker, state_.next_incarnation()};
  out_.Record(record::Join{ref, e.name,
                           e.kind == WorkerKind::kReward        ? Role::kReward
                           : e.kind == WorkerKind::kEnvironment ? Role::kEnvironment
                                                                : Role::kNone});
  out_.Do(command::Welcome{e.worker, e.process, ref.inc});
  health_.Joined(ref, now_);
  all_.rollouts.Forget(e.worker);
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
  if (!reattaching_.contains(e.worker) || facts == state_.workers().end() ||
      facts->second.inc != e.restored_inc)
    return false;
  reattaching_.erase(e.worker);
  const WorkerRef ref{e.worker, e.restored_inc};
  out_.Do(command::Welcome{e.worker, e.process, ref.inc});
  health_.Joined(ref, now_);
  if (e.kind != WorkerKind::kDevice) {
    all_.samples.AddSideWorker(ref);
    return true;
  }
  all_.rollouts.Offered(e);
  all_.slots.Reattach(ref);
  for (const SlotId slot : all_.slots.SlotsOf(e.worker)) {
    all_.trainer.Adopt(ref, slot, e);
    // What was granted and never confirmed has no chunks: it is made an engine when it confirms.
    const Pool::Slot& s = all_.slots.pool().slot(all_.slots.pool().GangOf(slot));
    if (s.role == Role::kRollout && !s.t.valid()) all_.rollouts.Adopt(ref, slot, e);
  }
  return true;
}

// Who has not come back by now is gone.
void Workers::ReattachOver() {
  for (const WorkerId id : std::set(reattaching_)) {
    const auto& facts = state_.workers().at(id);
    out_.Record(record::Fence{{id, facts.inc}});
    all_.slots.Lost(id, "its worker did not come back");
    health_.Starting(id, now_);
    if (options_.fleet.launch_workers) out_.Do(command::StartWorker{id});
  }
  reattaching_.clear();
  all_.samples.ResumeRows();
}

bool Workers::DevicesReattach() const {
  return std::ranges::any_of(reattaching_,
                             [&](const WorkerId id) { return !all_.slots.SlotsOf(id).empty(); });
}

void Workers::Resume() {
  const bool wait = options_.fleet.reattach_grace_s > 0;
  const Pool& pool = all_.slots.pool();
  for (const auto& [id, facts] : std::map(state_.workers())) {
    if (facts.fenced) continue;
    const WorkerRef ref{id, facts.inc};
    // A device that was released by a transition holds nothing; it may come back all the same.
    const bool whole = std::ranges::all_of(all_.slots.SlotsOf(id), [&](SlotId part) {
      const Pool::Slot& slot = pool.slot(pool.GangOf(part));
      return slot.phase == SlotPhase::kFree || slot.gang.Find(part)->worker == ref;
    });
    // A crash may come between the QUAR of a slot and the FENCE of the process that kept its memory.
    if (wait && whole && !facts.keeps_memory) {
      reattaching_.insert(id);
    } else {
      out_.Record(record::Fence{ref});
    }
  }
  reattach_until_ = In(options_.fleet.reattach_grace_s);
}

void Workers::Start() {
  for (const auto& [id, slots] : facts_.layout.slots) {
    if (facts_.needs_rollout || all_.slots.Eligible(id, Role::kActor)) health_.Add(id, WorkerKind::kDevice);
  }
  if (facts_.needs_reward || facts_.environment) {
    for (int64_t i = 0; i < options_.side_workers(); ++i)
      health_.Add(options_.side_worker(i), options_.side_kind());
  }
  for (const auto& [id, place] : IdMap(health_.places())) {
    health_.Starting(id, now_);
    if (options_.fleet.launch_workers && !reattaching_.contains(id)) out_.Do(command::StartWorker{id});
  }
}

void Workers::On(const event::WorkerStartFailed& e) {
  const auto* place = health_.Find(e.worker);
  if (place == nullptr || place->ref.inc.valid()) {
    all_.life.Refuse();
    return;
  }
  out_.Record(record::Fault{"worker_lost", "w" + std::to_string(e.worker.value), {}, e.why});
  out_.Warn("worker=" + std::to_string(e.worker.value) + " event=start_failed why=\"" + e.why + "\"");
  AfterDeath(e.worker, e.why);
}

void Workers::On(const event::Heartbeat& e) {
  if (!health_.IsCurrent(e.worker)) {
    all_.life.Refuse();
    return;
  }
  const auto* before = health_.Find(e.worker.worker);
  const int64_t seq = before->op_seq;
  health_.Heard(e.worker.worker, e, now_);
  all_.rollouts.Heard(e);
  if (e.op_seq != seq) {  // a long operation moves
    all_.life.Moved();
    waits_.Extend({WaitKind::kTrain, e.worker.worker.value}, now_ + all_.steps.Patience());
  }
}

void Workers::Tick() {
  for (const auto& [id, e] : all_.rollouts.requests().engines()) {
    all_.slots.SetStepTime(e.slot, health_.Find(id)->step_s);
    health_.SetBusy(
        id,
        !e.in_flight.empty() && !all_.rollouts.Loading(id) && all_.slots.pool().Holds(e.slot, Role::kRollout),
        now_);
  }
  if (!reattaching_.empty() && now_ > reattach_until_) ReattachOver();
  for (const Health::Verdict& v : health_.Tick(now_)) {
    if (all_.life.finished()) return;
    const auto* place = health_.Find(v.worker);
    switch (v.kind) {
      case Health::Verdict::kSuspect:
        out_.Warn("worker=" + ToString(place->ref) + " event=suspect why=\"" + v.why + "\"");
        all_.rollouts.SetSuspect(v.worker, true);
        if (v.stuck) all_.rollouts.Hedge(v.worker);
        break;
      case Health::Verdict::kRecovered:
        all_.rollouts.SetSuspect(v.worker, false);
        break;
      case Health::Verdict::kDead:
        Crashed(place->ref, v.why, /*by_exit=*/false);
        break;
      case Health::Verdict::kStartTimedOut:
        if (reattaching_.contains(v.worker)) break;
        if (!options_.fleet.launch_workers) {
          all_.life.Fail("start_failed", "w" + std::to_string(v.worker.value), {},
                         "worker " + std::to_string(v.worker.value) + " " + v.why);
          return;
        }
        out_.Record(record::Fault{"worker_lost", "w" + std::to_string(v.worker.value), {}, v.why});
        out_.Do(command::KillWorker{{v.worker, {}}, v.why});
        AfterDeath(v.worker, v.why);
        break;
    }
  }
  for (const WorkerRef& ref : all_.samples.StuckGraders())
    Replace(ref, "a grading did not end within its deadline");
}

}  // namespace tidepool::scheduler
