// The checker on checkpoints, restores, faults and the end of a run.

#include "scheduler/checker_state.h"

namespace tidepool::scheduler {

bool Checker::State::On(const record::CheckpointBegin& x) {
  if (x.ckpt <= last_checkpoint) return Violation("C8", "checkpoint numbers have to increase");
  if (x.step.value != current.number)
    return Violation("C3", "checkpoint of step " + std::to_string(x.step.value) + " at step " +
                               std::to_string(current.number));
  if (step) return Violation("C3", "a checkpoint begins inside a step");
  last_checkpoint = x.ckpt;
  checkpoints[x.ckpt] = {.step = x.step.value, .begin_lsn = now->lsn.value};
  return true;
}

Checker::State::CheckpointState* Checker::State::Commits(int64_t ckpt, const char* predicate) {
  const auto it = checkpoints.find(ckpt);
  if (it != checkpoints.end() && it->second.committed && !it->second.rejected && !it->second.deleted)
    return &it->second;
  Violation(predicate, "checkpoint " + std::to_string(ckpt) + " is not committed, or rejected, or deleted");
  return nullptr;
}

bool Checker::State::On(const record::CheckpointCommit& x) {
  const auto it = checkpoints.find(x.ckpt);
  if (it == checkpoints.end() || it->second.committed)
    return Violation("C8", "checkpoint " + std::to_string(x.ckpt) + " was not begun, or is committed twice");
  if (x.manifest_digest == 0)
    return Violation(
        "C8", "checkpoint " + std::to_string(x.ckpt) + " is committed without a manifest that was read back");
  if (it->second.step != x.step.value || x.cut.value > now->lsn.value || x.cut.value < it->second.begin_lsn) {
    return Violation("C3",
                     "step or cut of checkpoint " + std::to_string(x.ckpt) + " differ from its CK_BEGIN");
  }
  if (x.weights_digest == 0)
    return Violation("C7", "checkpoint " + std::to_string(x.ckpt) + " holds no weights that are finite");
  const uint64_t weights = At(current, x.step.value);
  if (x.step.value > 0 && weights != 0 && weights != x.weights_digest)
    return Violation("C3", "weights of checkpoint " + std::to_string(x.ckpt) + " are not those of step " +
                               std::to_string(x.step.value));
  it->second.committed = true;
  it->second.committed_at = current.number;
  checkpoint_distance = config->checkpoint_steps;
  if (x.step.value == 0) step0_committed = true;
  return true;
}

bool Checker::State::On(const record::CheckpointReject& x) {
  CheckpointState* c = Commits(x.ckpt, "C5");
  if (c == nullptr) return false;
  c->rejected = true;
  return true;
}

bool Checker::State::On(const record::CheckpointDelete& x) {
  CheckpointState* c = Commits(x.ckpt, "C2");
  if (c == nullptr) return false;
  const bool newer = std::any_of(checkpoints.upper_bound(x.ckpt), checkpoints.end(), [](const auto& item) {
    return item.second.committed && !item.second.rejected && !item.second.deleted && !item.second.undone;
  });
  // Whoever needs its space no more may ask for the last one of a run that is done (`tidepool prune`).
  if (!newer && !done)
    return Violation("C2", "checkpoint " + std::to_string(x.ckpt) + " is deleted without a newer one");
  c->deleted = true;
  return true;
}

// C6: no more steps are lost than lie between two checkpoints, and those that were done while the newest was
// being written. Who cannot write (a full disk) is excused: it has begun a later one.
bool Checker::State::PointKept(const record::Restore& x) {
  if (checkpoint_distance <= 0) return true;
  const CheckpointState* last = nullptr;
  for (const auto& [id, c] : checkpoints) {
    if (c.undone) continue;
    if (id > x.ckpt && !c.committed) return true;
    if (c.committed) last = &c;
  }
  if (last == nullptr) return true;  // C8 has that of step 0 before any sample, and it is never undone
  const int64_t bound = checkpoint_distance + std::max<int64_t>(last->committed_at - last->step, 0);
  if (current.number - last->step <= bound) return true;
  return Violation("C6", std::to_string(current.number - last->step) +
                             " steps were done since the newest checkpoint, of step " +
                             std::to_string(last->step) + "; one was due after " + std::to_string(bound));
}

bool Checker::State::On(const record::Restore& x) {
  if (lease || step) return Violation("Q1", "restore with an open lease or step");
  if (x.old_lineage != current.lineage || x.new_lineage <= current.lineage)
    return Violation(
        "W1", "lineage " + std::to_string(x.new_lineage) + " follows " + std::to_string(current.lineage));
  if (x.step.value > current.number)
    return Violation("C1", "step " + std::to_string(x.step.value) + " is restored, but was never committed");
  if (x.ckpt >= 0) {
    CheckpointState* c = Commits(x.ckpt, "C1");
    if (c == nullptr) return false;
    if (c->step != x.step.value)
      return Violation("C1",
                       "checkpoint " + std::to_string(x.ckpt) + " holds step " + std::to_string(c->step));
    for (const auto& [id, other] : checkpoints) {
      if (id > x.ckpt && other.committed && !other.rejected && !other.deleted && !other.undone)
        return Violation("C5", "the newer checkpoint " + std::to_string(id) + " was not rejected");
    }
    if (!PointKept(x)) return false;
  } else if (current.number - x.step.value > 1) {
    return Violation("C6",
                     "a recovery copy " + std::to_string(current.number - x.step.value) + " steps behind");
  }
  for (auto& [id, c] : checkpoints) c.undone = c.undone || c.step > x.step.value;
  for (auto& [gid, g] : groups) {
    for (const SampleId& tid : g.tids) {
      Row& row = rows.at(tid);
      if (row.where != Where::kTrained || row.step <= x.step.value) continue;
      row.where = Where::kQueued;
      row.step = -1;
      --r.trained;
      if (g.open_rows++ == 0) ++open_groups;
    }
  }
  for (auto* of_steps : {&path, &replays}) {
    const std::vector<uint64_t>& old = (*of_steps)[x.old_lineage];
    (*of_steps)[x.new_lineage] = {
        old.begin(),
        old.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(old.size()), x.step.value + 1)};
  }
  checkpoint_distance = config->checkpoint_steps;
  r.undone += current.number - x.step.value;
  r.steps -= current.number - x.step.value;
  current = {x.new_lineage, x.step.value};
  newest = {};
  behind.clear();
  const uint64_t weights = At(current, x.step.value);
  if (weights != 0) committed[current] = weights;
  return true;
}

bool Checker::State::On(const record::Snapshot&) { return true; }
bool Checker::State::On(const record::Fault& x) {
  if (x.kind.empty()) return Violation("L3", "a fault without a kind");
  fault_seen = true;
  if (x.kind == "retired") {
    // 5 restarts within 10 minutes; 30 s: a death is noticed later than it happens.
    const auto& lost = losses[x.actor];
    const auto inside = std::count_if(lost.begin(), lost.end(), [&](const auto& at) {
      return at.first != now->ctl_epoch || now->mono_ns - at.second <= uint64_t{630} * 1000000000;
    });
    if (inside < 5)
      return Violation("L5",
                       x.actor + " is retired after " + std::to_string(inside) + " failures in 10 minutes");
  }
  if (x.kind == "row" && !IsSetAside(x.tid)) return false;
  if (x.kind == "worker_lost") losses[x.actor].emplace_back(now->ctl_epoch, now->mono_ns);
  return true;
}

bool Checker::State::On(const record::EvalResult& x) {
  if (x.correct < 0 || x.correct > x.total)
    return Violation("journal", std::to_string(x.correct) + " of " + std::to_string(x.total) + " right");
  return true;
}

bool Checker::State::On(const record::EndRun& x) {
  if (x.code != 0 && !fault_seen)
    return Violation("L3", "code " + std::to_string(x.code) + " without a FAULT that names why");
  fault_seen = false;
  if (!transitions.empty())
    return Violation("G4", "transition " + std::to_string(transitions.begin()->first) + " is still open");
  done = x.code == 0 && x.finished == 1;
  if (x.code != 0 || current.number < config->steps) return true;
  if (const auto unfair = fairness.Unfair()) return Violation("Q10", *unfair);
  for (const auto& [gid, g] : groups) {
    for (const SampleId& tid : g.tids) {
      const Row& row = rows.at(tid);
      if (row.where != Where::kTrained && row.where != Where::kDropped)
        return Violation("Q1", ToString(tid) + " is neither trained nor dropped at the end");
    }
  }
  return true;
}

}  // namespace tidepool::scheduler
