// Worker processes and slots: deaths, replacements, deadlines, roles.

#include <algorithm>

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

void Controller::Impl::On(const event::WorkerLost& e) {
  if (!health.IsCurrent(e.worker)) {
    const auto* place = health.Find(e.worker.worker);
    // The end of a process that is already fenced, or of one that is waited for after a restart.
    if (place != nullptr && reattaching.contains(e.worker.worker) &&
        state.workers().at(e.worker.worker).inc == e.worker.inc) {
      reattaching.erase(e.worker.worker);
      out.Record(record::Fence{e.worker});
      if (e.worker.worker.value < options.device_workers()) pool.Lost(SlotOf(e.worker.worker), e.why, now);
      health.Starting(e.worker.worker, now);
      if (options.config.cluster.launch_workers) out.Do(command::StartWorker{e.worker.worker});
      if (reattaching.empty()) ResumeRows();
      return;
    }
    Refuse();
    return;
  }
  Crashed(e.worker, e.why, e.by_exit);
}

// A worker died by itself. What it was working on may be why: a sample that was being worked on when a second
// worker died, and had not come further in between, is dropped before it takes all workers along.
void Controller::Impl::Crashed(const WorkerRef& ref, const std::string& why, bool by_exit) {
  std::vector<SampleId> poison = dispatcher.Blame(ref.worker);
  for (const SampleId& tid : grading.Blame(ref.worker)) poison.push_back(tid);
  for (const SampleId& tid : episodes.Blame(ref.worker)) poison.push_back(tid);
  Lose(ref, why, by_exit);
  for (const SampleId& tid : poison) {
    if (!finished) DropPoison(tid, why);
  }
}

void Controller::Impl::DropPoison(const SampleId& tid, const std::string& why) {
  const std::string reason = "two workers died while they worked on it; the last: " + why;
  if (tid.sample == SampleId::kRowSample) {
    if (!preparing.contains(KeyOf(tid))) return;
    episodes.Remove(tid);
    DropRow(KeyOf(tid), DropReason::kPoison, reason);
    return;
  }
  const Request* r = dispatcher.Find(tid);
  if (!tid.is_eval()) {
    const Sample* s = state.ledger().Find(tid);
    if (s == nullptr || (s->phase != SamplePhase::kRunning && s->phase != SamplePhase::kAwaiting)) return;
    out.Warn("tid=" + ToString(tid) + " event=poison why=\"" + reason + "\"");
    DropSample(tid, DropReason::kPoison);
    return;
  }
  if (!evaluation.Expects(tid)) return;
  out.Warn("tid=" + ToString(tid) + " event=poison why=\"" + reason + "\"");
  if (r != nullptr) {
    const GroupId gid = r->gid;
    dispatcher.Remove(tid);
    if (!dispatcher.HasRequests(gid)) GroupDone(gid);
  }
  grading.Remove(tid);
  episodes.Remove(tid);
  out.Do(command::DiscardTokens{tid, evaluation.attempt()});
  evaluation.Graded(tid, GradeOutcome::kData, 0);
}

void Controller::Impl::On(const event::WorkerStartFailed& e) {
  const auto* place = health.Find(e.worker);
  if (place == nullptr || place->ref.inc.valid()) {
    Refuse();
    return;
  }
  out.Record(record::Fault{"worker_lost", "w" + std::to_string(e.worker.value), {}, e.why});
  out.Warn("worker=" + std::to_string(e.worker.value) + " event=start_failed why=\"" + e.why + "\"");
  AfterDeath(e.worker, e.why);
}

void Controller::Impl::Lose(const WorkerRef& ref, const std::string& why, bool by_exit) {
  Moved();
  out.Record(record::Fence{ref});
  out.Record(record::Fault{"worker_lost", "w" + std::to_string(ref.worker.value), ref.inc, why});
  out.Warn("worker=" + ToString(ref) + " event=lost why=\"" + why + "\"");
  if (!by_exit) out.Do(command::KillWorker{ref, why});
  grading.RemoveWorker(ref.worker);
  episodes.RemoveWorker(ref.worker);
  // A verdict that waits for its tokens to be stored would come after the FENCE of who gave it.
  for (auto& [tid, f] : finishing) {
    if (!f.graded || f.graded->grader != ref) continue;
    f.graded.reset();
    if (environment) {
      episodes.Add(tid, f.att, command::kWholeEpisode, now);
    } else {
      grading.Add(tid, f.att);
    }
  }
  dispatcher.RemoveEngine(ref.worker);
  weights.Remove(ref.worker);
  verified.erase(ref.worker);
  ghosts_until.erase(ref.worker);
  waits.End({WaitKind::kLoad, ref.worker.value});
  waits.End({WaitKind::kCancel, ref.worker.value});
  if (ref.worker.value < options.device_workers()) pool.Lost(SlotOf(ref.worker), why, now);
  TrainerLost(ref, why);
  AfterDeath(ref.worker, why);
}

void Controller::Impl::Replace(const WorkerRef& ref, const std::string& why) {
  if (health.IsCurrent(ref)) Lose(ref, why, /*by_exit=*/false);
}

void Controller::Impl::AfterDeath(WorkerId worker, const std::string& why) {
  if (finished) return;
  const std::string name = "w" + std::to_string(worker.value);
  const Health::Next next = health.Died(worker, why, now);
  switch (next.kind) {
    case Health::Next::kRestart:
      if (!shutdown.requested()) out.Do(command::StartWorker{worker, next.delay});
      break;
    case Health::Next::kGiveUp:
      Fail("start_failed", name, {},
           "worker " + std::to_string(worker.value) + " died three times before it joined: " + why +
               "; see its log");
      return;
    case Health::Next::kRetired:
      out.Record(record::Fault{"retired", name, {}, why});
      out.Warn("worker=" + name + " event=retired why=\"" + why + "\"");
      break;
    case Health::Next::kWait:
      break;
  }
  CheckFleet();
}

// A part of the fleet that the run cannot do without is gone for good.
void Controller::Impl::CheckFleet() {
  bool rollout = false, side = false, actor = false, missing = false;
  int64_t devices = 0;
  std::string why;
  for (const auto& [id, p] : health.places()) {
    if (p.life == Life::kRetired) {
      // A group of another size would round otherwise, so there is no going on without it.
      if (options.config.deterministic && p.kind == WorkerKind::kDevice && Eligible(SlotOf(id), Role::kActor))
        missing = true;
      why = "w" + std::to_string(id.value) + ": " + p.last_why;
      continue;
    }
    if (p.kind == options.side_kind()) side = true;
    if (p.kind == WorkerKind::kDevice) ++devices;
    if (p.kind == WorkerKind::kDevice && Eligible(SlotOf(id), Role::kActor)) actor = true;
    if (p.kind == WorkerKind::kDevice && Eligible(SlotOf(id), Role::kRollout)) rollout = true;
  }
  if (!actor || missing) {
    Fail("fleet_dead", "actor", {},
         std::string(actor ? "a" : "every") + " worker that trains is retired (" + why + ")");
  } else if (const SchedulerConfig& s = options.config.scheduler;
             needs_rollout && (s.placement == "multiplexed" || s.placement == "elastic") &&
             devices <= s.rollout_floor) {
    Fail("fleet_dead", "pool", {},
         std::to_string(devices) + " slots are left, and scheduler.rollout_floor of " +
             std::to_string(s.rollout_floor) + " always generate, so none may train (" + why + ")");
  } else if (needs_rollout && !rollout) {
    Fail("fleet_dead", "rollout", {}, "every rollout worker is retired (" + why + ")");
  } else if ((needs_reward || environment) && !side) {
    const std::string kind = options.side_kind() == WorkerKind::kReward ? "reward" : "environment";
    Fail("fleet_dead", kind, {}, "every " + kind + " worker is retired (" + why + ")");
  }
}

void Controller::Impl::CheckHealth() {
  for (const auto& [id, e] : dispatcher.engines()) {
    const auto* w = weights.Find(id);
    const bool loading = w != nullptr && w->loading.valid();
    pool.SetStepTime(e.slot, health.Find(id)->step_s);
    health.SetBusy(id, !e.in_flight.empty() && !loading && pool.Holds(e.slot, Role::kRollout), now);
  }
  if (!reattaching.empty() && now > reattach_until) ReattachOver();
  for (const Health::Verdict& v : health.Tick(now)) {
    if (finished) return;
    const auto* place = health.Find(v.worker);
    switch (v.kind) {
      case Health::Verdict::kSuspect:
        out.Warn("worker=" + ToString(place->ref) + " event=suspect why=\"" + v.why + "\"");
        dispatcher.SetBar(v.worker, Dispatcher::Bar::kSuspect, true);
        if (v.stuck) HedgeChunks(v.worker);
        break;
      case Health::Verdict::kRecovered:
        dispatcher.SetBar(v.worker, Dispatcher::Bar::kSuspect, false);
        break;
      case Health::Verdict::kDead:
        Crashed(place->ref, v.why, /*by_exit=*/false);
        break;
      case Health::Verdict::kStartTimedOut:
        if (reattaching.contains(v.worker)) break;
        if (!options.config.cluster.launch_workers) {
          Fail("start_failed", "w" + std::to_string(v.worker.value), {},
               "worker " + std::to_string(v.worker.value) + " " + v.why);
          return;
        }
        out.Record(record::Fault{"worker_lost", "w" + std::to_string(v.worker.value), {}, v.why});
        out.Do(command::KillWorker{{v.worker, {}}, v.why});
        AfterDeath(v.worker, v.why);
        break;
    }
  }
  for (const WorkerRef& ref : grading.Stuck(now)) Replace(ref, "a grading did not end within its deadline");
}

void Controller::Impl::CheckDeadlines() {
  for (const Waits::Key& key : waits.Expired(now)) {
    if (finished) return;
    const auto* found = waits.Find(key);
    if (found == nullptr) continue;  // ended with another one of this list
    const Waits::Wait w = *found;
    waits.End(key);
    const std::string why = std::string("deadline of ") + Name(key.kind) + " passed" +
                            (w.what.empty() ? "" : " (" + w.what + ")");
    switch (key.kind) {
      case WaitKind::kCancel:
        break;  // the worker does not answer for the chunk; it loads all the same
      case WaitKind::kCheckpoint:
        if (writing) On(event::CheckpointFailed{writing->ckpt, why});
        break;
      case WaitKind::kVerify:
      case WaitKind::kFinal:
      case WaitKind::kRow:
      case WaitKind::kPayload:
        Fail("storage", "controller", {}, why);
        return;
      case WaitKind::kTransition:
        // Slow to drain is not dead: its transition is called off. Who does not answer to that is.
        if (pool.DrainTimedOut({key.id}, why, now)) {
          out.Warn("slot=" + std::to_string(key.id) + " event=rolled_back why=\"" + why + "\"");
          break;
        }
        Replace(w.who, why);
        break;
      default:
        Replace(w.who, why);
    }
  }
  if (finished || !watchdog.Stalled(waits, now)) return;
  if (environment && now < episodes.Horizon(now)) return;  // a turn is inside its own deadline
  for (const auto& [id, p] : health.places()) {            // has a deadline of its own
    if (p.life == Life::kStarting || p.life == Life::kRestarting) return;
  }
  std::string line = waits.Describe(now);
  if (!preparing.empty())
    line += (line.empty() ? "" : "; ") + std::string("rows_being_read=") + std::to_string(preparing.size());
  if (!finishing.empty())
    line +=
        (line.empty() ? "" : "; ") + std::string("payloads_being_stored=") + std::to_string(finishing.size());
  if (episodes.waiting() > 0)
    line += (line.empty() ? "" : "; ") + std::string("episodes_being_played=") +
            std::to_string(episodes.waiting());
  if (grading.waiting() > 0)
    line += (line.empty() ? "" : "; ") + std::string("gradings=") + std::to_string(grading.waiting());
  for (const auto& [id, p] : health.places()) {
    if (p.life != Life::kHealthy)
      line += (line.empty() ? "" : "; ") + std::string("w") + std::to_string(id.value) + "=" + Name(p.life);
  }
  Fail("no_progress", "controller", {},
       "watchdog kind=no_progress for_s=" + std::to_string(Seconds(now - watchdog.last())) + " step=" +
           std::to_string(state.step().value) + " in_flight=" + std::to_string(dispatcher.in_flight()) + " " +
           (line.empty() ? "nobody is waited for" : line));
}

}  // namespace tidepool::scheduler
