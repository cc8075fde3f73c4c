// What others may see of the controller. None of it changes anything.

#include <algorithm>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

ControllerView Controller::View() const {
  const Machines& m = *impl_;
  const Ledger& l = m.state.ledger();
  ControllerView v;
  v.step = m.state.step();
  v.version = m.state.version();
  v.open_groups = l.open();
  v.running = l.CountGroups(GroupPhase::kRunning);
  v.awaiting = l.CountGroups(GroupPhase::kAwaiting);
  v.queued = l.CountGroups(GroupPhase::kQueued);
  v.leased = l.CountGroups(GroupPhase::kLeased);
  v.capacity = l.rules().capacity();
  v.trained_samples = l.trained_samples();
  v.issued_samples = l.issued_samples();
  v.drops.assign(l.drops().begin(), l.drops().end());
  v.chunks = m.rollouts.requests().chunks();
  v.restarts = m.workers.restarts();
  v.refused = m.life.refused();
  v.in_flight = m.rollouts.requests().in_flight();
  v.waiting_env = m.rollouts.requests().waiting_env();
  v.env_turns = m.samples.episodes().turns();
  v.env_retries = m.samples.episodes().retries();
  v.rollbacks = m.slots.pool().rollbacks();
  for (const auto& [id, w] : m.fleet.workers) {
    const Vitals& vitals = w.vitals();
    if (!w.live() && vitals.life != Life::kRetired) v.absent.push_back(id);
    if (vitals.life == Life::kRestarting)
      v.restarting.push_back({id, vitals.starting_since - m.now, m.workers.deaths(id), vitals.last_why});
  }
  v.phase = m.life.over()                              ? "done"
            : !m.life.begun() || !m.trainer.ready()    ? "starting"
            : m.life.stopping()                        ? "stopping"
            : m.evaluations.current().active()         ? "evaluating"
            : m.checkpoints.writing() == StepNumber{0} ? "checkpointing"
            : m.facts.StepsDone() ? (m.checkpoints.writing().valid() ? "checkpointing" : "stopping")
                                  : "running";
  return v;
}

const record::Enq* Controller::FindPayload(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  if (s == nullptr || (s->phase != SamplePhase::kAwaiting && s->phase != SamplePhase::kReady)) return nullptr;
  return &s->enq;
}

bool Controller::Expects(const SlotRef& on, const SampleId& tid, int32_t att) const {
  const Request* r = impl_->rollouts.requests().Find(tid);
  return r != nullptr && r->att == att && r->on == on && impl_->fleet.IsLive(on);
}

bool Controller::ExpectsGrade(const WorkerRef& grader, const SampleId& tid, int32_t att) const {
  return impl_->fleet.IsLive(grader) && impl_->samples.grading().Expects(grader, tid, att);
}

bool Controller::ExpectsTurn(const WorkerRef& worker, const SampleId& tid, int32_t att, int64_t turn) const {
  return impl_->fleet.IsLive(worker) && impl_->samples.episodes().Expects(worker, tid, att, turn);
}

double Controller::Reward(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  TP_CHECK(s != nullptr && s->phase == SamplePhase::kReady) << "no reward of " << ToString(tid);
  return s->reward;
}

const std::vector<std::pair<std::string, double>>& Controller::Rewards(const SampleId& tid) const {
  const Sample* s = impl_->state.ledger().Find(tid);
  TP_CHECK(s != nullptr && s->phase == SamplePhase::kReady) << "no rewards of " << ToString(tid);
  return s->rewards;
}

std::set<int64_t> Controller::PayloadFiles() const {
  std::set<int64_t> files;
  const auto look = [&](const std::map<GroupKey, Group>& groups) {
    for (const auto& [key, g] : groups) {
      for (const Sample& s : g.samples) {
        const bool stored = s.phase == SamplePhase::kAwaiting || s.phase == SamplePhase::kReady;
        if (stored && s.enq.payload_file >= 0) files.insert(s.enq.payload_file);
      }
    }
  };
  look(impl_->state.ledger().groups());
  for (const auto& [step, groups] : impl_->state.ledger().trained()) look(groups);
  return files;
}

}  // namespace tidepool::scheduler
