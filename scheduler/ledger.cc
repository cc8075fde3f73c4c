#include "scheduler/ledger.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

namespace tidepool::scheduler {
namespace {

Status Contradiction(const char* kind, const SampleId& tid, const char* why) {
  return DataLoss(std::string(kind) + " of sample " + ToString(tid) + ": " + why);
}

// A group that is trained, or whose last sample was just filtered.
void CountSignal(const Group& g, GroupSignal& signal) {
  int64_t graded = 0, right = 0, wrong = 0;
  double least = 0, most = 0;
  for (const Sample& s : g.samples) {
    if (s.phase != SamplePhase::kReady &&
        !(s.phase == SamplePhase::kDropped && s.reason == DropReason::kFiltered)) {
      continue;
    }
    least = graded == 0 ? s.reward : std::min(least, s.reward);
    most = graded == 0 ? s.reward : std::max(most, s.reward);
    const double first = s.rewards.empty() ? s.reward : s.rewards.front().second;
    right += first == 1 ? 1 : 0;
    wrong += first == 0 ? 1 : 0;
    ++graded;
  }
  if (graded < 2) return;  // nothing to compare
  ++signal.groups;
  signal.verdicts = signal.verdicts && right + wrong == graded;
  if (least != most) return;
  ++signal.equal;
  signal.all_right += right == graded ? 1 : 0;
  signal.all_wrong += wrong == graded ? 1 : 0;
}

}  // namespace

bool Group::EqualRewards() const {
  std::optional<double> first;
  return std::all_of(samples.begin(), samples.end(), [&](const Sample& s) {
    if (s.phase == SamplePhase::kDropped) return true;
    if (!first) first = s.reward;
    return s.reward == *first;
  });
}

int64_t LedgerRules::capacity() const {
  return max_lag_versions * groups_per_step +
         static_cast<int64_t>(std::ceil(oversample * static_cast<double>(groups_per_step) - 1e-9));
}

int64_t LedgerRules::min_batch() const {
  return std::max<int64_t>(
      1,
      static_cast<int64_t>(std::ceil(min_step_batch_fraction * static_cast<double>(groups_per_step) - 1e-9)));
}

Group* Ledger::FindGroup(const GroupKey& key) const {
  const auto* found = index_.find(key);
  return found == nullptr ? nullptr : found->second;
}

const Group* Ledger::Find(const GroupKey& key) const { return FindGroup(key); }

const Sample* Ledger::Find(const SampleId& tid) const {
  const Group* g = Find(KeyOf(tid));
  if (g == nullptr || tid.sample < 0 || static_cast<size_t>(tid.sample) >= g->samples.size()) return nullptr;
  return &g->samples[static_cast<size_t>(tid.sample)];
}

Sample* Ledger::Mutable(const SampleId& tid, Group** group) {
  Group* g = FindGroup(KeyOf(tid));
  if (g == nullptr || tid.sample < 0 || static_cast<size_t>(tid.sample) >= g->samples.size()) return nullptr;
  if (group != nullptr) *group = g;
  return &g->samples[static_cast<size_t>(tid.sample)];
}

void Ledger::SetPhase(Group& g, GroupPhase phase) {
  ++changes_;
  if (g.phase == phase) return;
  --by_phase_[static_cast<size_t>(g.phase)];
  ++by_phase_[static_cast<size_t>(phase)];
  if (g.phase == GroupPhase::kQueued) CountQueued(g, -1);
  if (phase == GroupPhase::kQueued) CountQueued(g, 1);
  g.phase = phase;
}

void Ledger::CountQueued(const Group& g, int64_t groups) {
  if (groups > 0)
    queued_.insert(g.key);
  else
    queued_.erase(g.key);
  if (g.undone_step == 0) return;
  const auto undone = undone_.try_emplace(g.undone_step).first;
  if ((undone->second += groups) == 0) undone_.erase(undone);
}

void Ledger::Move(Group& g, Sample& s, SamplePhase phase) {
  if (s.phase == SamplePhase::kRunning) --running_samples_;
  if (phase == SamplePhase::kRunning) ++running_samples_;
  --g.by_phase[static_cast<size_t>(s.phase)];
  ++g.by_phase[static_cast<size_t>(phase)];
  s.phase = phase;
  if (g.phase == GroupPhase::kLeased || g.phase == GroupPhase::kTrained ||
      g.Count(SamplePhase::kDropped) == rules_.group_size)
    return;
  const bool running = g.Count(SamplePhase::kRunning) + g.Count(SamplePhase::kMissing) > 0;
  SetPhase(g, running                               ? GroupPhase::kRunning
              : g.Count(SamplePhase::kAwaiting) > 0 ? GroupPhase::kAwaiting
                                                    : GroupPhase::kQueued);
}

void Ledger::Erase(const GroupKey& key) {
  const auto it = groups_.find(key);
  --by_phase_[static_cast<size_t>(it->second.phase)];
  ++changes_;
  if (it->second.phase == GroupPhase::kQueued) CountQueued(it->second, -1);
  index_.erase(key);
  groups_.erase(it);
}

Status Ledger::ApplyIssue(const record::Issue& r) {
  if (r.tid.sample < 0 || r.tid.sample >= rules_.group_size || r.tid.ordinal < 0) {
    return Contradiction("ISSUE", r.tid, "no such place in a group");
  }
  const GroupKey key = KeyOf(r.tid);
  Group* there = FindGroup(key);
  if (there == nullptr) {
    const auto again = reissues_.find(key.ordinal);
    if (key.issue == 0 ? !ordinals_.Insert(key.ordinal)
                       : again == reissues_.end() || again->second != key.issue) {
      return Contradiction("ISSUE", r.tid, "its row was issued before and is not to be issued again");
    }
    if (key.issue > 0) reissues_.erase(again);
    Group g;
    g.key = key;
    g.gid = r.gid;
    g.start = next_start_++;
    g.samples.resize(static_cast<size_t>(rules_.group_size));
    g.by_phase[static_cast<size_t>(SamplePhase::kMissing)] = rules_.group_size;
    there = index_[key] = &groups_.emplace(key, std::move(g)).first->second;
    ++by_phase_[static_cast<size_t>(GroupPhase::kRunning)];
    ++changes_;
    ++open_;
    next_gid_ = std::max(next_gid_, r.gid.value + 1);
  }
  Group& g = *there;
  Sample& s = g.samples[static_cast<size_t>(r.tid.sample)];
  if (s.phase != SamplePhase::kMissing && (s.phase != SamplePhase::kRunning || r.att != s.att + 1)) {
    return Contradiction("ISSUE", r.tid, "it is neither new nor the next attempt of a running sample");
  }
  if (s.phase == SamplePhase::kMissing) ++issued_samples_;
  s = Sample{.phase = s.phase, .att = r.att};
  g.prompt_len = r.prompt_len;
  g.max_new = r.max_new;
  Move(g, s, SamplePhase::kRunning);
  return OkStatus();
}

Status Ledger::ApplyEnd(const record::End& r) {
  Sample* s = Mutable(r.tid);
  if (s == nullptr || s->phase != SamplePhase::kRunning) return OkStatus();  // END may come after a DROP
  if (r.att != s->att) return Contradiction("END", r.tid, "attempt is not the running one");
  s->end = r.status;
  s->ended = r.status == EndStatus::kOk || r.status == EndStatus::kTruncated;
  return OkStatus();
}

void Ledger::AddMade(Group& g, const Sample& s) {
  if (!s.enq.wv_min.valid()) return;
  g.made.insert(s.enq.wv_min);
  g.made.insert(s.enq.wv_max);
}

Status Ledger::ApplyEnq(const record::Enq& r) {
  Group* g = nullptr;
  Sample* s = Mutable(r.tid, &g);
  if (s == nullptr || s->phase != SamplePhase::kRunning || r.att != s->att) {
    return Contradiction("ENQ", r.tid, "no such attempt is running");
  }
  s->enq = r;
  Move(*g, *s, rules_.graded ? SamplePhase::kAwaiting : SamplePhase::kReady);
  AddMade(*g, *s);
  return OkStatus();
}

Status Ledger::ApplyGraded(const record::Graded& r) {
  Group* g = nullptr;
  Sample* s = Mutable(r.tid, &g);
  if (s == nullptr || s->phase != SamplePhase::kAwaiting)
    return Contradiction("GRADED", r.tid, "it does not await a reward");
  if (r.outcome != GradeOutcome::kOk) return OkStatus();  // a DROP follows
  s->reward = r.reward;
  s->rewards = r.rewards;
  Move(*g, *s, SamplePhase::kReady);
  if (g->phase == GroupPhase::kQueued) MayBeTrained(*g);
  return OkStatus();
}

// Unless a filter leaves it out, which comes next.
void Ledger::MayBeTrained(const Group& g) {
  queued_last_ = g.key;
  filtered_before_it_ = std::exchange(filtered_in_a_row_, 0);
}

Status Ledger::ApplyDrop(const record::Drop& r) {
  Group* g = nullptr;
  Sample* s = Mutable(r.tid, &g);
  if (s == nullptr || s->phase == SamplePhase::kDropped || s->phase == SamplePhase::kMissing ||
      g->phase == GroupPhase::kLeased || g->phase == GroupPhase::kTrained) {
    return Contradiction("DROP", r.tid, "it is not open");
  }
  const bool complete = s->phase == SamplePhase::kAwaiting || s->phase == SamplePhase::kReady;
  if (complete && r.reason == DropReason::kStale) fairness_.Dropped(s->enq.response_len);
  const bool queued = g->phase == GroupPhase::kQueued;
  Move(*g, *s, SamplePhase::kDropped);
  if (!queued && g->phase == GroupPhase::kQueued) MayBeTrained(*g);
  s->reason = r.reason;
  ++drops_[static_cast<size_t>(r.reason)];
  if (g->Count(SamplePhase::kDropped) < rules_.group_size) {
    if (!complete) return OkStatus();
    g->made.clear();
    for (const Sample& left : g->samples) {
      if (left.phase == SamplePhase::kAwaiting || left.phase == SamplePhase::kReady) AddMade(*g, left);
    }
    return OkStatus();
  }
  // The reason of a group's last sample is the group's.
  ++dropped_groups_since_commit_;
  if (g->key == queued_last_) filtered_in_a_row_ += std::exchange(filtered_before_it_, 0);
  if (r.reason == DropReason::kFiltered) {
    ++filtered_since_commit_;
    ++filtered_in_a_row_;
    CountSignal(*g, filtered_signal_);
  }
  if (r.reason == DropReason::kStale) {
    ++stale_since_commit_;
    if (rules_.reissue && g->key.issue < rules_.max_reissues) reissues_[g->key.ordinal] = g->key.issue + 1;
  }
  --open_;
  Erase(g->key);
  return OkStatus();
}

Status Ledger::ApplyLease(const record::Lease& r) {
  std::vector<GroupKey> keys;
  for (const SampleId& tid : r.tids) {
    if (keys.empty() || keys.back() != KeyOf(tid)) keys.push_back(KeyOf(tid));
  }
  for (const GroupKey& key : keys) {
    const auto it = groups_.find(key);
    if (it == groups_.end() || it->second.phase != GroupPhase::kQueued) {
      return DataLoss("LEASE " + std::to_string(r.lease) + ": group " + std::to_string(key.ordinal) + "." +
                      std::to_string(key.issue) + " is not queued");
    }
    SetPhase(it->second, GroupPhase::kLeased);
    it->second.lease = r.lease;
  }
  leases_[r.lease] = std::move(keys);
  return OkStatus();
}

Status Ledger::ApplyUnlease(const record::Unlease& r) {
  const auto it = leases_.find(r.lease);
  if (it == leases_.end()) return DataLoss("UNLEASE of unknown lease " + std::to_string(r.lease));
  for (const GroupKey& key : it->second) {
    Group& g = groups_.at(key);
    SetPhase(g, GroupPhase::kQueued);
    g.lease = -1;
  }
  leases_.erase(it);
  return OkStatus();
}

Status Ledger::ApplyStepCommit(const record::StepCommit& r) {
  if (leases_.size() != 1)
    return DataLoss("STEP_COMMIT " + std::to_string(r.step.value) + " without one open lease");
  int64_t rows = 0;
  for (const GroupKey& key : leases_.begin()->second) {
    Group& g = groups_.at(key);
    SetPhase(g, GroupPhase::kTrained);
    g.step = r.step;
    g.lease = -1;
    last_trained_start_ = std::max(last_trained_start_, g.start);
    --open_;
    for (const Sample& s : g.samples) {
      if (s.phase != SamplePhase::kReady) continue;
      ++rows;
      fairness_.Trained(s.enq.response_len);
    }
    trained_[r.step].insert(groups_.extract(key));
  }
  fairness_.Step();
  if (rows != static_cast<int64_t>(r.rows.size())) {
    return DataLoss("STEP_COMMIT " + std::to_string(r.step.value) + " has " + std::to_string(r.rows.size()) +
                    " rows, its lease " + std::to_string(rows));
  }
  trained_samples_ += rows;
  leases_.clear();
  dropped_groups_since_commit_ = filtered_since_commit_ = stale_since_commit_ = 0;
  filtered_signal_ = {};
  return OkStatus();
}

Status Ledger::ApplyRestore(StepNumber step) {
  if (!leases_.empty()) return DataLoss("RESTORE with an open lease");
  for (auto undone = trained_.upper_bound(step); undone != trained_.end(); undone = trained_.erase(undone)) {
    for (auto& [key, g] : undone->second) {
      g.undone_step = g.step.value;
      g.step = StepNumber{};
      SetPhase(g, GroupPhase::kQueued);
      ++open_;
      for (const Sample& s : g.samples) trained_samples_ -= s.phase == SamplePhase::kReady ? 1 : 0;
    }
    groups_.merge(undone->second);
  }
  return OkStatus();
}

void Ledger::Forget(StepNumber step) {
  for (auto it = trained_.begin(); it != trained_.end() && it->first <= step; it = trained_.erase(it)) {
    by_phase_[static_cast<size_t>(GroupPhase::kTrained)] -= static_cast<int64_t>(it->second.size());
    for (const auto& [key, g] : it->second) index_.erase(key);
  }
}

bool Ledger::CanStart(int64_t preparing) const {
  const int64_t open = open_ + preparing;
  if (open >= rules_.capacity()) return false;
  // A step that may go on with a short batch does not replace what was dropped while enough is left.
  if (rules_.min_batch() < rules_.groups_per_step && open >= rules_.min_batch() &&
      open + dropped_groups_since_commit_ >= rules_.capacity()) {
    return false;
  }
  return true;
}

GroupSignal Ledger::StepSignal() const {
  if (!rules_.graded) return {};  // pairs and rows have no rewards
  GroupSignal signal = filtered_signal_;
  for (const auto& [lease, keys] : leases_) {
    for (const GroupKey& key : keys) CountSignal(groups_.at(key), signal);
  }
  return signal;
}

bool Ledger::Exhausted() const {
  return !CanStart(0) && CountGroups(GroupPhase::kRunning) == 0 && CountGroups(GroupPhase::kAwaiting) == 0;
}

Age Ledger::AgeAt(const Group& g, const Version& v, const VersionGraph& versions) const {
  Age age = Age::kFresh;
  const int64_t eta = rules_.max_lag_versions;
  bool some_loss = false;
  // A sample's tokens lie on one path of the version tree, so its two ends have the largest lags.
  for (const Version& made : g.made) {
    if (versions.Lag(made, v) <= eta) {
      some_loss = true;
    } else if (made.number >= v.number && versions.CommonNumber(made, v) == v.number) {
      age = Age::kAhead;
    } else if (!rules_.mask) {
      return Age::kExpired;
    }
  }
  if (rules_.mask && !g.made.empty() && !some_loss && age == Age::kFresh) return Age::kExpired;
  return age;
}

int64_t Ledger::Replays(StepNumber step) const {
  int64_t n = 0;
  for (auto at = undone_.find(step.value + 1);
       at != undone_.end() && at->first == step.value + n + 1 && at->second >= rules_.min_batch(); ++at)
    ++n;
  return n;
}

std::vector<Ledger::Candidate> Ledger::Candidates(StepNumber step, const Version& v,
                                                  const VersionGraph& versions) const {
  std::vector<Candidate> candidates;
  for (const GroupKey& key : queued_) {
    const Group& g = groups_.at(key);
    if (AgeAt(g, v, versions) != Age::kFresh) continue;
    Candidate c{g.undone_step == step.value ? 0 : g.undone_step == 0 ? 1 : 2, INT64_MAX, g.start, key};
    for (const Sample& s : g.samples) {
      if (s.phase == SamplePhase::kReady) c.oldest = std::min(c.oldest, s.enq.wv_min.number);
    }
    candidates.push_back(c);
  }
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.Order() < b.Order(); });
  return candidates;
}

std::vector<GroupKey> Ledger::LeaseOrder(StepNumber step, const Version& v,
                                         const VersionGraph& versions) const {
  std::vector<GroupKey> keys;
  for (const Candidate& c : Candidates(step, v, versions)) keys.push_back(c.key);
  return keys;
}

std::vector<GroupKey> Ledger::ChooseBatch(StepNumber step, const Version& v,
                                          const VersionGraph& versions) const {
  const auto want = static_cast<size_t>(rules_.groups_per_step);
  if (queued_.size() < static_cast<size_t>(rules_.min_batch())) return {};
  if (queued_.size() < want && !Exhausted()) return {};
  std::vector<Candidate> candidates = Candidates(step, v, versions);
  if (candidates.size() < static_cast<size_t>(rules_.min_batch())) return {};
  // The groups of an undone step are that step again, also if its batch was a short one.
  const auto replayed = static_cast<size_t>(
      std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.rank == 0; }));
  const bool replay = replayed >= static_cast<size_t>(rules_.min_batch());
  if (candidates.size() < want && !Exhausted() && !replay) return {};
  if (rules_.surplus == OversampleMode::kTailRounds && !replay) {
    // Prompts that were overtaken are collected; when they fill a batch, they have a round of their own.
    size_t overtaken = 0;
    for (const auto& [key, g] : groups_) {
      overtaken += g.phase != GroupPhase::kLeased && g.start < last_trained_start_ ? 1 : 0;
    }
    if (overtaken >= want) {
      std::erase_if(candidates, [&](const Candidate& c) { return c.start >= last_trained_start_; });
      if (candidates.size() < want) return {};
    }
  }
  if (rules_.oversample > 1 && rules_.surplus == OversampleMode::kStartOrder && !replay &&
      CountGroups(GroupPhase::kRunning) + CountGroups(GroupPhase::kAwaiting) > 0) {
    // Surplus only replaces what is lost: an earlier group that still runs keeps its place, so that
    // short answers are not preferred.
    std::vector<int64_t> starts;
    for (const auto& [key, g] : groups_) {
      if (g.phase == GroupPhase::kRunning || g.phase == GroupPhase::kAwaiting) starts.push_back(g.start);
    }
    const int64_t first_unfinished = *std::min_element(starts.begin(), starts.end());
    std::erase_if(candidates, [&](const Candidate& c) { return c.start > first_unfinished; });
    if (candidates.size() < want) return {};
  }
  candidates.resize(std::min(candidates.size(), want));
  std::vector<GroupKey> keys;
  for (const Candidate& c : candidates) keys.push_back(c.key);
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace tidepool::scheduler
