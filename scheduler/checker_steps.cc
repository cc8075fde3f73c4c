// The checker on steps: leased, trained, returned; how old what is trained may be.

#include "core/base/replay_digest.h"
#include "scheduler/checker_state.h"

namespace tidepool::scheduler {

bool Checker::State::On(const record::Lease& x) {
  if (lease) return Violation("Q1", "lease " + std::to_string(lease->lease) + " is still open");
  if (x.lease <= last_lease) return Violation("Q1", "lease numbers have to increase");
  if (!Trusted(x.holder, "lease")) return false;
  last_lease = x.lease;
  for (const SampleId& tid : x.tids) {
    Row* row = Known(tid);
    if (row == nullptr) return false;
    if (row->where != Where::kQueued) return Violation("Q1", ToString(tid) + " is leased, but not queued");
    row->where = Where::kLeased;
    row->lease = x.lease;
  }
  lease = x;
  return true;
}

void Checker::State::Return() {
  for (const SampleId& tid : lease->tids) {
    rows.at(tid).where = Where::kQueued;
    rows.at(tid).lease = -1;
  }
  lease.reset();
}

bool Checker::State::On(const record::Unlease& x) {
  if (!lease || lease->lease != x.lease)
    return Violation("Q1", "lease " + std::to_string(x.lease) + " is not open");
  if (step) return Violation("Q1", "lease " + std::to_string(x.lease) + " is returned inside its step");
  Return();
  return true;
}

bool Checker::State::On(const record::StepBegin& x) {
  if (step || !lease || lease->step != x.step)
    return Violation("Q1", "step " + std::to_string(x.step.value) + " begins without its lease");
  if (x.step.value != current.number + 1 || x.v != current)
    return Violation("W5", "step " + std::to_string(x.step.value) + " on " + ToString(x.v) + ", current is " +
                               ToString(current));
  if (!published.contains(x.v)) return Violation("W5", ToString(x.v) + " is trained before it was published");
  const auto first = x.members.empty() ? slots.end() : slots.find(x.members.front().slot.value);
  if (first == slots.end() || first->second.holder != lease->holder)
    return Violation("G8", "the actor " + Called(lease->holder) + " does not hold its slot");
  for (const record::SlotPlan& m : x.members) {
    const SlotState* found = Slot(m.slot);
    if (found == nullptr) return false;
    const SlotState& s = *found;
    if (s.role != Role::kActor)
      return Violation("G8", "slot " + std::to_string(m.slot.value) + " of step " +
                                 std::to_string(x.step.value) + " is held by " + Name(s.role));
    if (s.epoch != m.epoch.value)
      return Violation("G2", "step " + std::to_string(x.step.value) + " uses slot " +
                                 std::to_string(m.slot.value) + " under epoch " +
                                 std::to_string(m.epoch.value) + ", current is " + std::to_string(s.epoch));
    if (s.transition >= 0 && !transitions.at(s.transition).committed)
      return Violation("G8", "slot " + std::to_string(m.slot.value) + " trains while it is being taken");
  }
  step = x;
  step_slots.clear();
  for (const record::SlotPlan& m : x.members) step_slots.insert(m.slot.value);
  return true;
}

bool Checker::State::On(const record::StepAbort& x) {
  if (!step || step->step != x.step)
    return Violation("Q1", "step " + std::to_string(x.step.value) + " is not open");
  step.reset();
  return true;
}

bool Checker::State::On(const record::StepCommit& x) {
  if (!step || step->step != x.step || !lease)
    return Violation("Q1", "step " + std::to_string(x.step.value) + " is not open");
  if (!Trusted(lease->holder, "step")) return false;
  if (x.digest == 0)
    return Violation(
        "W5", "step " + std::to_string(x.step.value) + " has no weights (its gradient was not finite?)");
  if (x.v != Version{current.lineage, x.step.value})
    return Violation("W1", "step " + std::to_string(x.step.value) + " makes " + ToString(x.v));
  if (x.rows.size() != lease->tids.size())
    return Violation("Q7", std::to_string(static_cast<int64_t>(x.rows.size())) + " rows trained, " +
                               std::to_string(static_cast<int64_t>(lease->tids.size())) + " leased");
  std::map<int64_t, int64_t> per_group;
  for (const record::TrainedRow& t : x.rows) {
    Row* row = Known(t.tid);
    if (row == nullptr) return false;
    if (row->where == Where::kTrained) return Violation("Q2", ToString(t.tid) + " is trained twice");
    if (row->where != Where::kLeased || row->lease != lease->lease)
      return Violation("Q2", ToString(t.tid) + " is trained without a lease");
    if (Rl() && !row->graded) return Violation("Q6", ToString(t.tid) + " has no reward of a grader");
    if (!RightAge(t, *row)) return false;
    // Runs of older programs do not say what the trainer was given.
    if ((config->row_digests != 0 || t.digest != 0) && t.digest != row->digest)
      return Violation("Q12", "what was trained of " + ToString(t.tid) + " is not what its ENQ names");
    row->where = Where::kTrained;
    row->lease = -1;
    row->step = x.step.value;
    fairness.Trained(row->length);
    ++per_group[row->gid];
    ++r.trained;
    CloseRow(*row);
  }
  for (const auto& [gid, count] : per_group) {
    const GroupFacts& g = groups.at(gid);
    if (static_cast<int64_t>(g.tids.size()) != config->group_size)
      return Violation("Q7", "group " + std::to_string(gid) + " was never issued whole");
    for (const SampleId& tid : g.tids) {
      const Row& row = rows.at(tid);
      const bool here = row.where == Where::kTrained && row.step == x.step.value;
      if (!here && row.where != Where::kDropped)
        return Violation("Q7", ToString(tid) + " is missing in the step of its group");
    }
    if (config->group_size >= 2 && count < 2)
      return Violation("Q7", "group " + std::to_string(gid) + " is trained with one sample");
  }
  if (!RightReplay(x)) return false;
  lease.reset();
  step.reset();
  current = x.v;
  fairness.Step();
  committed[x.v] = x.digest;
  SetPath(x.v, x.digest);
  ++r.steps;
  return true;
}

// A store takes in every row that is trained, once, when it is; in a step in the order of their names.
bool Checker::State::RightReplay(const record::StepCommit& x) {
  std::vector<uint64_t>& had = replays[current.lineage];
  had.resize(static_cast<size_t>(current.number) + 1, 0);
  uint64_t taken = current.number == 0 ? kEmptyReplay : had.back();
  had.push_back(x.replay);
  if (x.replay == 0 && (current.number == 0 || taken == 0)) return true;  // there is none
  std::set<SampleId> rows;
  for (const record::TrainedRow& t : x.rows) {
    if (t.oldest.valid()) rows.insert(t.tid);  // else no part of it has a loss
  }
  for (const SampleId& tid : rows) taken = ReplayDigest(taken, tid);
  if (x.replay == taken) return true;
  return Violation("Q14", "the replay store of step " + std::to_string(x.step.value) +
                              " is not made of the rows that were trained, each once");
}

// Tokens that are too old have no loss, all others have it.
bool Checker::State::RightMask(const record::TrainedRow& t, const Row& row) {
  int64_t masked = 0, furthest = 0;
  Version oldest;
  for (const record::VersionTokens& run : row.versions) {
    const int64_t lag = Lag(run.v, step->v);
    if (lag > config->max_lag_versions) {
      masked += run.tokens;
    } else if (!oldest.valid() || lag > furthest) {
      oldest = run.v;
      furthest = lag;
    }
  }
  if (t.masked == masked && (t.oldest == oldest || (masked == 0 && t.oldest == row.oldest))) return true;
  return Violation("Q4", ToString(t.tid) + " is trained from " + ToString(t.oldest) + " with " +
                             std::to_string(t.masked) + " tokens masked; by its ENQ it is " +
                             ToString(oldest) + " and " + std::to_string(masked) + " at " +
                             ToString(step->v));
}

bool Checker::State::RightAge(const record::TrainedRow& t, const Row& row) {
  if (!Rl()) return true;
  const int64_t eta = config->max_lag_versions;
  const bool mask = config->on_stale == Name(OnStale::kMask);
  if (mask && !row.versions.empty()) return RightMask(t, row);
  if (mask && !t.oldest.valid()) return true;  // no token with loss
  if (!mask && t.masked != 0)
    return Violation("Q4", ToString(t.tid) + " has tokens without loss, and on_stale is not mask");
  if (!mask && t.oldest != row.oldest)
    return Violation("Q4", ToString(t.tid) + " is trained from " + ToString(t.oldest) + ", its ENQ says " +
                               ToString(row.oldest));
  for (const Version& v : {t.oldest, mask ? t.oldest : row.newest}) {
    const int64_t lag = Lag(v, step->v);
    if (lag < 0 || lag > eta)
      return Violation("Q4", ToString(t.tid) + " has tokens of " + ToString(v) + ", lag " +
                                 std::to_string(lag) + " at " + ToString(step->v) + ", allowed 0.." +
                                 std::to_string(eta));
  }
  return true;
}

}  // namespace tidepool::scheduler
