// The checker on samples: issued, generated, graded, queued, dropped.

#include "scheduler/checker_state.h"

namespace tidepool::scheduler {

bool Checker::State::On(const record::Config& x) {
  const record::RunTerms& c = *x;
  if (config && (config->groups_per_step != c.groups_per_step || config->group_size != c.group_size ||
                 config->job != c.job)) {
    return Violation("journal", "job, groups_per_step or group_size changed within a run");
  }
  if (c.groups_per_step <= 0 || c.group_size <= 0)
    return Violation("journal", "groups_per_step and group_size have to be positive");
  if (rows.empty()) rows = FlatTable<SampleId, Row>(c.group_size);
  const bool none = c.checkpoint_steps <= 0 || (config && checkpoint_distance <= 0);
  checkpoint_distance = none ? 0 : std::max(checkpoint_distance, c.checkpoint_steps);
  config = c;
  done = false;
  return true;
}

bool Checker::State::NewGroup(const record::Issue& i) {
  if (open_groups >= Capacity()) {
    return Violation("Q5", "group " + std::to_string(i.gid.value) + " is admitted with " +
                               std::to_string(open_groups) + " open, capacity is " +
                               std::to_string(Capacity()));
  }
  auto& issues = ordinals[i.tid.ordinal];
  const int32_t expected = issues.empty() ? 0 : issues.rbegin()->first + 1;
  if (i.tid.issue != expected)
    return Violation("Q9", "row " + std::to_string(i.tid.ordinal) + " is issued as " +
                               std::to_string(i.tid.issue) + ", expected " + std::to_string(expected));
  if (i.tid.issue > config->max_reissues)
    return Violation(
        "Q3", "row " + std::to_string(i.tid.ordinal) + " is issued more than max_reissues times again");
  if (expected > 0) {
    bool expired = false;
    for (const SampleId& tid : groups.at(issues.rbegin()->second).tids) {
      const Row& row = rows.at(tid);
      if (row.where != Where::kDropped)
        return Violation("Q9", "row " + std::to_string(i.tid.ordinal) + " is issued again while " +
                                   ToString(tid) + " is not dropped");
      expired |= row.reason == DropReason::kStale;
    }
    if (!expired)
      return Violation("Q9", "row " + std::to_string(i.tid.ordinal) + " is issued again, but did not expire");
  }
  issues[i.tid.issue] = i.gid.value;
  // Rows are read concurrently, so a few may be overtaken; none may stay behind for good.
  const int64_t holes = ordinals.rbegin()->first + 1 - static_cast<int64_t>(ordinals.size());
  if (holes > Capacity())
    return Violation(
        "Q9", std::to_string(holes) + " rows before " + std::to_string(i.tid.ordinal) + " were never issued");
  GroupFacts& g = groups[i.gid.value];
  g.ordinal = i.tid.ordinal;
  g.issue = i.tid.issue;
  ++open_groups;
  return true;
}

bool Checker::State::On(const record::Issue& i) {
  if (!step0_committed) return Violation("C8", "issued before a checkpoint of step 0 was committed");
  if (i.tid.sample < 0 || i.tid.sample >= config->group_size || i.tid.ordinal < 0)
    return Violation("Q7", ToString(i.tid) + " is outside its group");
  const auto it = rows.find(i.tid);
  if (it != rows.end()) {
    Row& row = it->second;
    if (row.where != Where::kRunning || row.enqueued)
      return Violation("Q2", ToString(i.tid) + " is issued again after its ENQ or end");
    if (i.att != row.att + 1)
      return Violation("Q1", "attempt " + std::to_string(i.att) + " of " + ToString(i.tid) + " follows " +
                                 std::to_string(row.att));
    if (row.gid != i.gid.value) return Violation("Q7", ToString(i.tid) + " changed its group");
    const int64_t gid = row.gid;
    row = Row{};
    row.gid = gid;
    row.att = i.att;
    return true;
  }
  if (i.att != 0) return Violation("Q1", ToString(i.tid) + " begins with attempt " + std::to_string(i.att));
  if (!groups.contains(i.gid.value) && !NewGroup(i)) return false;
  GroupFacts& g = groups[i.gid.value];
  if (g.ordinal != i.tid.ordinal || g.issue != i.tid.issue)
    return Violation("Q7", ToString(i.tid) + " joins a group of another row");
  g.tids.push_back(i.tid);
  ++g.open_rows;
  rows[i.tid].gid = i.gid.value;
  ++r.issued;
  return true;
}

Checker::State::Row* Checker::State::Known(const SampleId& tid) {
  const auto it = rows.find(tid);
  if (it != rows.end()) return &it->second;
  Violation("Q1", ToString(tid) + " was never issued");
  return nullptr;
}

bool Checker::State::On(const record::Start& x) {
  Row* row = Known(x.tid);
  if (row == nullptr || !Trusted(x.worker, "chunk")) return false;
  if (row->where != Where::kRunning || row->att != x.att || row->ended)
    return Violation("Q1", ToString(x.tid) + " is not being generated in attempt " + std::to_string(x.att));
  const SlotId slot = PlaceOf(x).slot;
  const SlotState* found = Slot(slot);
  if (found == nullptr) return false;
  const SlotState& s = *found;
  if (s.holder != x.worker)
    return Violation("G8", Called(x.worker) + " does not hold slot " + std::to_string(slot.value));
  if (s.role != Role::kRollout)
    return Violation("G8", "slot " + std::to_string(slot.value) + " of " + Called(x.worker) + " is held by " +
                               Name(s.role));
  if (s.transition >= 0 && !transitions.at(s.transition).committed)
    return Violation("G8", Called(x.worker) + " gets a chunk while its slot is being taken");
  if (!behind.empty()) Follow(slot.value);
  if (s.admitted != x.wv) return Violation("W3", Called(x.worker) + " is not admitted at " + ToString(x.wv));
  return true;
}

bool Checker::State::On(const record::End& x) {
  Row* row = Known(x.tid);
  if (row == nullptr) return false;
  if (row->where != Where::kRunning || row->att != x.att) return true;  // late word of an older attempt
  if (x.status == EndStatus::kOk || x.status == EndStatus::kTruncated) row->ended = true;
  return true;
}

bool Checker::State::On(const record::Enq& x) {
  Row* row = Known(x.tid);
  if (row == nullptr) return false;
  if (row->enqueued) return Violation("Q2", "a second ENQ of " + ToString(x.tid) + " is accepted");
  if (row->where != Where::kRunning || row->att != x.att)
    return Violation("Q1", ToString(x.tid) + " is not running in attempt " + std::to_string(x.att));
  if (!row->ended) return Violation("Q6", ToString(x.tid) + " did not end by itself");
  if (Rl() && (!x.wv_min.valid() || x.wv_max < x.wv_min))
    return Violation("W6", ToString(x.tid) + " has tokens of no version");
  for (const Version& v : {x.wv_min, x.wv_max}) {
    if (Rl() && !published.contains(v))
      return Violation("W3", ToString(x.tid) + " has tokens of " + ToString(v) + ", which was not published");
  }
  if (config->pin_version != 0 && x.wv_min != x.wv_max)
    return Violation("W6", ToString(x.tid) + " is pinned, but has tokens of " + ToString(x.wv_min) + " and " +
                               ToString(x.wv_max));
  row->length = static_cast<int32_t>(std::clamp<int64_t>(x.response_len, 0, INT32_MAX));
  row->enqueued = true;
  row->where = Rl() ? Where::kAwaiting : Where::kQueued;
  row->oldest = x.wv_min;
  row->newest = x.wv_max;
  row->digest = x.digest;
  if (config->on_stale == Name(OnStale::kMask)) row->versions = x.versions;
  return true;
}

bool Checker::State::On(const record::Graded& x) {
  Row* row = Known(x.tid);
  if (row == nullptr) return false;
  if (x.outcome == GradeOutcome::kOk && !x.grader.inc.valid())
    return Violation("Q6", "no grader returned the reward of " + ToString(x.tid));
  if (!Trusted(x.grader, "reward")) return false;
  if (row->where != Where::kAwaiting) return Violation("Q1", ToString(x.tid) + " does not await a reward");
  if (x.outcome != GradeOutcome::kOk) return true;
  if (!std::isfinite(x.reward)) return Violation("Q6", "reward of " + ToString(x.tid) + " is not finite");
  row->graded = true;
  row->where = Where::kQueued;
  return true;
}

bool Checker::State::On(const record::Dup& x) {
  Row* row = Known(x.tid);
  return row != nullptr &&
         (row->enqueued || Violation("Q2", ToString(x.tid) + " is called a duplicate, but none is in"));
}

// What a trainer could not use was dropped, with its group; so it is never trained (Q2).
bool Checker::State::IsSetAside(const SampleId& tid) {
  const Row* row = Known(tid);
  if (row == nullptr) return false;
  for (const SampleId& of_group : groups.at(row->gid).tids) {
    if (rows.at(of_group).where == Where::kDropped) continue;
    return Violation("Q12", "the trainer could not use " + ToString(tid) + ", and " + ToString(of_group) +
                                " of its group is not dropped");
  }
  return row->reason == DropReason::kDataInvalid ||
         Violation("Q12",
                   "the trainer could not use " + ToString(tid) + ", and it was dropped for another reason");
}

bool Checker::State::CloseRow(Row& row) {
  GroupFacts& g = groups.at(row.gid);
  if (--g.open_rows == 0 && static_cast<int64_t>(g.tids.size()) == config->group_size) --open_groups;
  return true;
}

bool Checker::State::On(const record::Drop& x) {
  Row* row = Known(x.tid);
  if (row == nullptr) return false;
  if (x.reason == DropReason::kLostOnRestore && current.lineage == 0)
    return Violation("Q3", ToString(x.tid) + " is called lost on a restore, but none was");
  if (static_cast<int>(x.reason) > static_cast<int>(DropReason::kLostOnRestore))
    return Violation("Q3", "unknown reason");
  if (row->where == Where::kTrained) return Violation("Q2", ToString(x.tid) + " was trained and is dropped");
  if (row->where == Where::kDropped) return Violation("Q1", ToString(x.tid) + " is dropped twice");
  if (row->where == Where::kLeased) return Violation("Q1", ToString(x.tid) + " is leased and dropped");
  if (x.reason == DropReason::kOverflowPolicy) {
    int64_t ready = 0;
    for (const SampleId& tid : groups.at(row->gid).tids) {
      const Where where = rows.at(tid).where;
      ready += where == Where::kQueued || where == Where::kLeased ? 1 : 0;
    }
    const int64_t enough = config->group_size - config->redundancy;
    if (config->redundancy == 0 || row->where == Where::kQueued || ready < enough)
      return Violation("Q13", ToString(x.tid) + " is dropped as redundant, and " + std::to_string(ready) +
                                  " of its group are graded; " + std::to_string(enough) + " have to be");
  }
  // By choice of the ledger, of samples that were complete: must not prefer a length.
  if (row->enqueued && x.reason == DropReason::kStale)  // redundant ones come late by the config's own wish
    fairness.Dropped(row->length);
  row->where = Where::kDropped;
  row->reason = x.reason;
  ++r.dropped;
  return CloseRow(*row);
}

}  // namespace tidepool::scheduler
