#include <algorithm>

#include "scheduler/group_filter.h"
#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

void SampleFlow::Withdraw(const SampleId& tid) {
  if (const auto att = all_.rollouts.Withdraw(tid)) {
    if (!tid.is_eval()) out_.Record(record::End{tid, *att, EndStatus::kCancelled});
    out_.Do(command::DiscardTokens{tid, *att});
  }
  grading_.Remove(tid);
  episodes_.Remove(tid);
  finishing_.erase(tid);
}

// Without what follows for its group.
void SampleFlow::DropOne(const SampleId& tid, int32_t att, DropReason reason) {
  episodes_.Drop(tid, att);
  Withdraw(tid);
  lost_.erase(tid);
  out_.Record(record::Drop{tid, reason});
  tokens_kept_.erase(tid);
  out_.Do(command::DiscardTokens{tid, att});
}

void SampleFlow::DropPoison(const SampleId& tid, const std::string& why) {
  const std::string reason = "two workers died while they worked on it; the last: " + why;
  if (tid.sample == SampleId::kRowSample) {
    if (!preparing_.contains(KeyOf(tid))) return;
    episodes_.Remove(tid);
    DropRow(KeyOf(tid), DropReason::kPoison, reason);
    return;
  }
  if (!tid.is_eval()) {
    const Sample* s = state_.ledger().Find(tid);
    if (s == nullptr || (s->phase != SamplePhase::kRunning && s->phase != SamplePhase::kAwaiting)) return;
    out_.Warn("poison", "sample " + ToString(tid) + " is dropped, " + reason, {{"tid", ToString(tid)}});
    DropSample(tid, DropReason::kPoison);
    return;
  }
  if (!all_.evaluations.current().Expects(tid)) return;
  out_.Warn("poison", "sample " + ToString(tid) + " is dropped, " + reason, {{"tid", ToString(tid)}});
  if (const Request* r = all_.rollouts.requests().Find(tid); r != nullptr) all_.rollouts.Remove(*r);
  grading_.Remove(tid);
  episodes_.Remove(tid);
  all_.evaluations.Lost(tid, all_.evaluations.current().attempt(tid), reason);
}

void SampleFlow::DropSample(const SampleId& tid, DropReason reason) {
  const Sample* s = state_.ledger().Find(tid);
  const int32_t att = s->att;
  const GroupId gid = state_.ledger().Find(KeyOf(tid))->gid;
  DropOne(tid, att, reason);
  all_.rollouts.ForgetIfDone(gid);
  CheckGroup(KeyOf(tid), reason);
}

void SampleFlow::DropGroup(const GroupKey& key, DropReason reason) {
  const Group* found = state_.ledger().Find(key);
  if (found == nullptr) return;
  const Group g = *found;
  for (size_t k = 0; k < g.samples.size(); ++k) {
    if (g.samples[k].phase == SamplePhase::kDropped || g.samples[k].phase == SamplePhase::kMissing) continue;
    DropOne(g.Tid(k), g.samples[k].att, reason);
  }
  if (preparing_.Take(key)) episodes_.Remove({key.ordinal, key.issue, SampleId::kRowSample});
  all_.rollouts.ForgetGroup(g.gid);
}

void SampleFlow::DropLeftovers() {
  std::vector<GroupKey> keys;
  for (const auto& [key, g] : state_.ledger().groups()) {
    if (g.phase != GroupPhase::kLeased) keys.push_back(key);
  }
  for (const GroupKey& key : keys) DropGroup(key, DropReason::kOperator);
}

// What was trained up to here will not be needed again; its payload stays on disk.
void SampleFlow::DiscardTrained(StepNumber step) {
  out_.Expect(tokens_kept_.size());
  for (const SampleId& tid : tokens_kept_.SortedKeys()) {
    const Group* g = state_.ledger().Find(KeyOf(tid));
    if (g != nullptr && (g->phase != GroupPhase::kTrained || g->step > step)) continue;
    out_.Do(command::DiscardTokens{tid, g == nullptr ? 0 : g->samples[static_cast<size_t>(tid.sample)].att});
    tokens_kept_.erase(tid);
  }
}

// As many are graded as are trained: the others are not awaited.
void SampleFlow::DropRedundant(const GroupKey& key) {
  const Group* found = state_.ledger().Find(key);
  if (options_.batch.redundancy == 0 || found == nullptr) return;
  const auto trained = static_cast<int64_t>(found->samples.size()) - options_.batch.redundancy;
  if (found->Count(SamplePhase::kReady) < trained || found->phase == GroupPhase::kQueued) return;
  const Group g = *found;
  for (size_t k = 0; k < g.samples.size(); ++k) {
    const SamplePhase phase = g.samples[k].phase;
    if (phase != SamplePhase::kRunning && phase != SamplePhase::kAwaiting) continue;
    const Request* r = all_.rollouts.requests().Find(g.Tid(k));
    ++redundant_.samples;
    redundant_.tokens += r != nullptr ? r->generated : g.samples[k].enq.response_len;
    DropOne(g.Tid(k), g.samples[k].att, DropReason::kOverflowPolicy);
  }
  all_.rollouts.ForgetIfDone(g.gid);
}

// A sample of the group changed: too few left, nothing to learn from, or too old?
void SampleFlow::CheckGroup(const GroupKey& key, DropReason last) {
  const Group* g = state_.ledger().Find(key);
  if (g == nullptr) return;
  const auto size = static_cast<int64_t>(g->samples.size());
  if (size - g->Count(SamplePhase::kDropped) < 2 && size >= 2) {  // a group is compared with itself
    DropGroup(key, last);
    return;
  }
  if (g->phase != GroupPhase::kQueued) return;
  if (Expired(*g)) {
    DropGroup(key, DropReason::kStale);
    return;
  }
  // A group that was trained in an undone step passed the filter then.
  if (!facts_.rl || g->undone_step != 0) return;
  const std::string why = WhyLeftOut(*g, options_.batch);
  if (why.empty()) return;
  DropGroup(key, DropReason::kFiltered);
  const LedgerRules& rules = state_.ledger().rules();
  const int64_t limit = options_.batch.filter_rounds * rules.groups_per_step;
  if (limit > 0 && state_.ledger().filtered_in_a_row() >= limit) {
    all_.life.Fail(
        "filtered", "data",
        std::to_string(state_.ledger().filtered_in_a_row()) +
            " groups in a row were left out by algorithm.filter or keep_groups (algorithm.filter_rounds " +
            std::to_string(options_.batch.filter_rounds) + " times train.groups_per_step), the last for " +
            why + "; take other data or another filter");
  }
}

// Only while the current version stands: with a restore ahead, what is old now may be right then.
bool SampleFlow::Expired(const Group& g) const {
  if (!all_.trainer.VersionStands()) return false;
  return state_.ledger().AgeAt(g, state_.version(), state_.versions()) == Age::kExpired;
}

// At a publication: groups that can never be trained again make room for fresh ones.
void SampleFlow::Expire() {
  const Ledger& ledger = state_.ledger();
  const VersionGraph& versions = state_.versions();
  const Version v = state_.version();
  const int64_t eta = ledger.rules().max_lag_versions;
  const auto old = [&](const Version& made) {
    return made.valid() && versions.Lag(made, v) > eta &&
           !(made.number >= v.number && versions.IsAncestor(v, made));
  };
  std::vector<GroupKey> expired;
  for (const auto& [key, g] : ledger.groups()) {
    if (g.phase == GroupPhase::kLeased) continue;
    bool drop = ledger.AgeAt(g, v, versions) == Age::kExpired;
    for (size_t k = 0; k < g.samples.size() && !drop && !ledger.rules().mask; ++k) {
      if (g.samples[k].phase != SamplePhase::kRunning) continue;
      const Request* r = all_.rollouts.requests().Find(g.Tid(k));
      const auto f = finishing_.find(g.Tid(k));
      drop = (r != nullptr && (old(r->v_min) || old(r->v_max))) ||
             (f != finishing_.end() && (old(f->second.v_min) || old(f->second.v_max)));
    }
    if (drop) expired.push_back(key);
  }
  for (const GroupKey& key : expired) DropGroup(key, DropReason::kStale);
}

// Work of an undone branch waits for its turn, because a deterministic run arrives at the same versions
// again. If the step that has to come first is not possible any more (its rows were dropped), it would
// wait for ever with all places taken; then it expires and is generated anew.
void SampleFlow::ReleaseAhead() {
  const Ledger& ledger = state_.ledger();
  if (all_.life.over() || ledger.queued().empty() || !preparing_.empty() ||
      ledger.CountGroups(GroupPhase::kRunning) > 0 || ledger.CountGroups(GroupPhase::kAwaiting) > 0 ||
      !all_.steps.MayTrain() || !all_.batches.Choose().empty()) {
    return;
  }
  for (const GroupKey& key : std::set(ledger.queued())) {
    if (ledger.AgeAt(*ledger.Find(key), state_.version(), state_.versions()) != Age::kFresh)
      DropGroup(key, DropReason::kStale);
  }
}

// After a restore: what was being generated by weights that are undone now begins again. Tokens of one
// sample then lie on one path of the version tree, so its oldest and newest version bound its lag.
void SampleFlow::RestartUndone() {
  const VersionGraph& versions = state_.versions();
  const Version v = state_.version();
  std::vector<SampleId> tids;
  for (const SampleId& tid : all_.rollouts.requests().Requests()) {
    if (tid.is_eval()) continue;
    const Request& r = *all_.rollouts.requests().Find(tid);
    const auto* e = r.on.worker.inc.valid() ? all_.rollouts.requests().FindEngine(r.on.slot) : nullptr;
    const bool undone = (r.v_max.valid() && !versions.IsAncestor(r.v_max, v)) ||
                        (r.offered_by.valid() && !versions.IsAncestor(r.offered_by, v)) ||
                        (e != nullptr && !versions.IsAncestor(e->version, v));
    if (undone) tids.push_back(tid);
  }
  for (const SampleId& tid : tids) Restart(tid);
}

void SampleFlow::Restart(const SampleId& tid) {
  Withdraw(tid);
  const Group* g = state_.ledger().Find(KeyOf(tid));
  const auto k = static_cast<size_t>(tid.sample);
  out_.Record(record::Issue{tid, g->gid, g->samples[k].att + 1, g->prompt_len, g->max_new});
  AddRequest(*g, k);
}

}  // namespace tidepool::scheduler
