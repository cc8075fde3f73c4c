// A new life of the run: what the journal left open is closed, workers are started, work goes on.

#include "scheduler/controller_impl.h"

namespace tidepool::scheduler {

void Controller::Impl::On(const event::Started&) {
  if (started) return;
  started = true;
  Moved();
  const JobConfig& c = options.config;
  if (state.ended() && state.ended()->finished == 1 && StepsDone()) {
    out.Do(command::Finish{0, "already finished"});
    finished = true;
    return;
  }
  for (int64_t slot = 0; slot < c.cluster.slots; ++slot) pool.Add({slot});
  const record::RunTerms terms{
      .run_id = options.run_id,
      .job = c.job,
      .digest = options.config_digest,
      .groups_per_step = c.train.groups_per_step,
      .group_size = SamplesPerRow(c),
      .max_lag_versions = c.scheduler.max_lag_versions,
      .on_stale = c.scheduler.on_stale,
      .oversample = c.scheduler.oversample,
      .min_step_batch_fraction = c.scheduler.min_step_batch_fraction,
      .max_reissues = c.scheduler.max_reissues,
      .steps = c.train.steps,
      .data_size = options.data_rows,
      .slots = c.cluster.slots,
      .recovery_steps = c.checkpoint.recovery_every_steps,
      .deterministic = c.deterministic ? 1 : 0,
      .oversample_mode = c.scheduler.oversample_mode,
      .pin_version = c.rollout.pin_version ? 1 : 0,
      .rollout_floor = needs_rollout && policy.keeps_floor ? c.scheduler.rollout_floor : 0,
      .stall_ms = static_cast<int64_t>(c.cluster.stall_timeout_s * 1e3),
      .checkpoint_steps = c.checkpoint.every_steps,
      .row_digests = 1};
  if (state.empty()) {
    out.Record(record::Config(terms));
  } else {
    // Also when nothing changed: it tells a reader of the journal that the run goes on after END_RUN.
    if (state.config()->digest != terms.digest || state.ended()) out.Record(record::Config(terms));
    ++lives;
    Resume();
  }
  next_gid = state.ledger().next_gid();
  StartWorkers();
  PlanState(/*must_restore=*/state.ever_checkpointed());
}

void Controller::Impl::Resume() {
  const JobConfig& c = options.config;
  left_open = state.open_step();
  if (left_open) out.Record(record::StepAbort{left_open->step, "controller restarted"});
  if (state.open_lease() >= 0) out.Record(record::Unlease{state.open_lease(), "controller restarted"});
  const bool wait = c.cluster.reattach_grace_s > 0;
  pool.Recover(wait);
  for (const auto& [id, facts] : std::map(state.workers())) {
    if (facts.fenced) continue;
    const bool device = id.value < options.device_workers();
    // A device that was released by a transition holds nothing; it may come back all the same.
    const bool whole =
        !device || (pool.Knows(SlotOf(id)) && (pool.slot(SlotOf(id)).phase == SlotPhase::kFree ||
                                               pool.slot(SlotOf(id)).holder == WorkerRef{id, facts.inc}));
    // A crash may come between the QUAR of a slot and the FENCE of the process that kept its memory.
    if (wait && whole && !facts.keeps_memory) {
      reattaching.insert(id);
    } else {
      out.Record(record::Fence{{id, facts.inc}});
    }
  }
  // Also where a crash came between the FENCE of a worker and the loss of its slot.
  for (const auto& [id, slot] : IdMap(pool.slots())) {
    if ((slot.phase == SlotPhase::kHeld || slot.phase == SlotPhase::kGranting) &&
        !reattaching.contains(slot.holder.worker))
      pool.Lost(id, "controller restarted", now);
  }
  reattach_until = now + FromSeconds(c.cluster.reattach_grace_s);
  const Ledger& ledger = state.ledger();
  for (const auto& [key, g] : std::map(ledger.groups())) {
    if (g.phase == GroupPhase::kTrained) continue;
    for (size_t k = 0; k < g.samples.size(); ++k) {
      // A crash between the ISSUE records of one group.
      if (g.samples[k].phase == SamplePhase::kMissing) {
        out.Record(record::Issue{g.Tid(k), g.gid, 0, g.prompt_len, g.max_new});
      } else if (g.samples[k].phase == SamplePhase::kAwaiting) {
        if (environment) {
          episodes.Add(g.Tid(k), g.samples[k].att, command::kWholeEpisode,
                       now);  // the same actions, the same reward
        } else {
          grading.Add(g.Tid(k), g.samples[k].att);
        }
      }
    }
  }
  // A crash between the records of one decision: what follows from the drops is decided again.
  for (const auto& [key, g] : std::map(ledger.groups())) {
    if (g.phase == GroupPhase::kTrained) continue;
    DropReason last = DropReason::kDataInvalid;
    for (const Sample& sample : g.samples) {
      if (sample.phase == SamplePhase::kDropped) last = sample.reason;
    }
    CheckGroup(key, last);
  }
  if (reattaching.empty()) ResumeRows();
}

// Groups with samples still to be generated: the prompt is read again, then they are issued again.
void Controller::Impl::ResumeRows() {
  if (rows_resumed) return;
  rows_resumed = true;
  for (const auto& [key, g] : state.ledger().groups()) {
    if (g.phase != GroupPhase::kRunning || preparing.contains(key)) continue;
    preparing.Add(key, {.gid = g.gid, .again = true, .stored = {}});
    PrepareRow(key, g.gid);
  }
}

void Controller::Impl::StartWorkers() {
  const int64_t devices = needs_rollout || Eligible({options.device_workers() - 1}, Role::kActor)
                              ? options.device_workers()
                              : options.config.scheduler.actor_slots;
  for (int64_t i = 0; i < devices; ++i) health.Add({i}, WorkerKind::kDevice);
  if (needs_reward || environment) {
    for (int64_t i = 0; i < options.side_workers(); ++i)
      health.Add(options.side_worker(i), options.side_kind());
  }
  for (const auto& [id, place] : IdMap(health.places())) {
    health.Starting(id, now);
    if (options.config.cluster.launch_workers && !reattaching.contains(id)) out.Do(command::StartWorker{id});
  }
}

void Controller::Impl::AddSideWorker(const WorkerRef& ref) {
  if (!environment) {  // environment workers of a control task give their fragments' verdicts as graders do
    grading.AddWorker(ref);
  } else {
    episodes.AddWorker(ref);
  }
}

// Who has not come back by now is gone.
void Controller::Impl::ReattachOver() {
  for (const WorkerId id : std::set(reattaching)) {
    const auto& facts = state.workers().at(id);
    out.Record(record::Fence{{id, facts.inc}});
    if (id.value < options.device_workers() && pool.Knows(SlotOf(id)))
      pool.Lost(SlotOf(id), "its worker did not come back", now);
    health.Starting(id, now);
    if (options.config.cluster.launch_workers) out.Do(command::StartWorker{id});
  }
  reattaching.clear();
  ResumeRows();
}

void Controller::Impl::On(const event::WorkerJoined& e) {
  const auto* place = health.Find(e.worker);
  if (place == nullptr || e.kind != place->kind) {
    out.Do(command::RefuseWorker{e.worker, "this run has no such worker place"});
    Refuse();
    return;
  }
  if (place->ref.inc.valid()) {
    out.Do(command::RefuseWorker{
        e.worker, "worker place " + std::to_string(e.worker.value) + " is taken by " + ToString(place->ref)});
    Refuse();
    return;
  }
  if (place->life == Life::kRetired) {
    out.Do(command::RefuseWorker{
        e.worker, "worker place " + std::to_string(e.worker.value) + " is retired: " + place->last_why});
    Refuse();
    return;
  }
  if (e.kind == WorkerKind::kDevice && e.slot.valid() && e.slot != SlotOf(e.worker)) {
    out.Do(command::RefuseWorker{e.worker, "device worker i owns slot i"});
    Refuse();
    return;
  }
  Moved();
  if (e.restored_inc.valid() && Reattach(e)) {
    if (reattaching.empty()) ResumeRows();
    return;
  }
  if (reattaching.contains(e.worker)) {  // a new process in the place of one that was waited for
    out.Record(record::Fence{{e.worker, state.workers().at(e.worker).inc}});
    if (e.kind == WorkerKind::kDevice) pool.Lost(SlotOf(e.worker), "another process took its place", now);
    reattaching.erase(e.worker);
    if (reattaching.empty()) ResumeRows();
  }
  const WorkerRef ref{e.worker, state.next_incarnation()};
  out.Record(record::Join{ref, e.name,
                          e.kind == WorkerKind::kReward        ? Role::kReward
                          : e.kind == WorkerKind::kEnvironment ? Role::kEnvironment
                                                               : Role::kNone});
  out.Do(command::Welcome{e.worker, ref.inc});
  health.Joined(ref, now);
  verified.erase(e.worker);
  if (e.kind != WorkerKind::kDevice) {
    AddSideWorker(ref);
    health.Admitted(e.worker);
  } else {
    pool.Attach(SlotOf(e.worker), ref);
  }
}

}  // namespace tidepool::scheduler
