#pragma once
// The account of every sample: which groups are open, what state each sample is in, what may be
// admitted, what may be trained.
//
//   sample:  running -> awaiting (payload durable) -> ready (graded) | dropped
//   group:   running | awaiting | queued (every sample ready or dropped) -> leased -> trained
//
// open = groups issued - trained - dropped.  Admission:  open < eta*B + ceil(oversample*B).  The rule needs
// no version, so it stays right with short batches and after a restart. Hard bound: every token with loss has
// 0 <= lag <= eta (VersionGraph::Lag) when it is trained.
//
// Durable state: it changes only through Apply*(), live and when the journal is folded alike. Apply
// functions return kDataLoss when a record contradicts what came before. Not thread-safe.

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "scheduler/flat_table.h"
#include "scheduler/group_signal.h"
#include "scheduler/length_fairness.h"
#include "scheduler/ordinal_set.h"
#include "scheduler/small_set.h"
#include "scheduler/version_graph.h"

namespace tidepool::scheduler {

struct GroupKey {
  int64_t ordinal = -1;
  int32_t issue = 0;
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};
inline uint64_t KeyHash(const GroupKey& key) {
  return Mix64(static_cast<uint64_t>(key.ordinal) ^
               (static_cast<uint64_t>(static_cast<uint32_t>(key.issue)) << 44));
}
inline GroupKey KeyOf(const SampleId& tid) { return {tid.ordinal, tid.issue}; }

enum class SamplePhase : uint8_t { kMissing, kRunning, kAwaiting, kReady, kDropped };
enum class GroupPhase : uint8_t { kRunning, kAwaiting, kQueued, kLeased, kTrained };

struct Sample {
  SamplePhase phase = SamplePhase::kMissing;
  int32_t att = 0;
  bool ended = false;  // its attempt ended by itself; the payload may not be durable yet
  EndStatus end = EndStatus::kOk;
  DropReason reason = DropReason::kStale;  // of a dropped one
  double reward = 0;
  std::vector<std::pair<std::string, double>> rewards;  // by name, as graded
  record::Enq enq;                                      // valid from kAwaiting on
};

struct Group {
  GroupKey key;
  GroupId gid;
  int64_t start = 0;  // order of admission in this run
  GroupPhase phase = GroupPhase::kRunning;
  std::array<int64_t, 5> by_phase{};  // its samples; by the ledger alone
  std::vector<Sample> samples;        // [group_size]
  SmallSet<Version>
      made;  // oldest and newest weights of each sample that awaits its reward or has it; by the ledger alone
  int64_t prompt_len = 0, max_new = 0;
  int64_t lease = -1;
  StepNumber step;          // trained in it
  int64_t undone_step = 0;  // it was trained in this step of a branch that was undone; 0: never

  [[nodiscard]] int64_t Count(SamplePhase phase) const { return by_phase[static_cast<size_t>(phase)]; }
  [[nodiscard]] SampleId Tid(size_t k) const { return {key.ordinal, key.issue, static_cast<int32_t>(k)}; }
  [[nodiscard]] bool EqualRewards() const;  // of the samples that are not dropped
};

// How old a group is for training at some version.
enum class Age : uint8_t {
  kFresh,    // may be trained
  kAhead,    // made by a later, undone version of this branch; may become trainable
  kExpired,  // can never be trained again
};

struct LedgerRules {
  int64_t groups_per_step = 1, group_size = 1, max_lag_versions = 0;
  double oversample = 1, min_step_batch_fraction = 1;
  int64_t max_reissues = 2;
  OversampleMode surplus = OversampleMode::kStartOrder;
  bool reissue = true, mask = false,
       graded = true;  // graded false: sft, a sample is ready when its payload is
  [[nodiscard]] int64_t capacity() const;
  [[nodiscard]] int64_t min_batch() const;
};

class Ledger {
 public:
  void SetRules(const LedgerRules& rules) { rules_ = rules; }
  [[nodiscard]] const LedgerRules& rules() const { return rules_; }

  Status ApplyIssue(const record::Issue& r);
  Status ApplyEnd(const record::End& r);
  Status ApplyEnq(const record::Enq& r);
  Status ApplyGraded(const record::Graded& r);
  Status ApplyDrop(const record::Drop& r);
  Status ApplyLease(const record::Lease& r);
  Status ApplyUnlease(const record::Unlease& r);
  Status ApplyStepCommit(const record::StepCommit& r);
  // Steps after `step` are undone: their groups return to the queue.
  Status ApplyRestore(StepNumber step);
  // Forgets groups trained in steps <= `step`: no restore can reach them any more.
  void Forget(StepNumber step);

  // Admission.
  [[nodiscard]] int64_t changes() const { return changes_; }  // rises when some group's phase does
  [[nodiscard]] int64_t open() const { return open_; }
  [[nodiscard]] bool CanStart(int64_t preparing) const;
  [[nodiscard]] const OrdinalSet& ordinals() const { return ordinals_; }
  // Expired groups that are to be admitted again: ordinal -> next issue.
  [[nodiscard]] const std::map<int64_t, int32_t>& reissues() const { return reissues_; }

  // Look-ups; nullptr if unknown.
  [[nodiscard]] const Group* Find(const GroupKey& key) const;
  [[nodiscard]] const Sample* Find(const SampleId& tid) const;
  [[nodiscard]] const std::map<GroupKey, Group>& groups() const { return groups_; }  // open ones
  // Trained ones that a restore may still undo, by the step that trained them.
  [[nodiscard]] const std::map<StepNumber, std::map<GroupKey, Group>>& trained() const { return trained_; }
  [[nodiscard]] const std::set<GroupKey>& queued() const { return queued_; }
  [[nodiscard]] int64_t CountGroups(GroupPhase phase) const { return by_phase_[static_cast<size_t>(phase)]; }
  [[nodiscard]] int64_t running_samples() const { return running_samples_; }
  [[nodiscard]] int64_t issued_samples() const { return issued_samples_; }
  [[nodiscard]] int64_t trained_samples() const { return trained_samples_; }
  [[nodiscard]] const std::array<int64_t, 9>& drops() const { return drops_; }
  [[nodiscard]] int64_t next_gid() const { return next_gid_; }
  [[nodiscard]] int64_t filtered_since_commit() const { return filtered_since_commit_; }
  // Since the last complete group whose rewards differ.
  [[nodiscard]] int64_t filtered_in_a_row() const { return filtered_in_a_row_; }
  [[nodiscard]] int64_t stale_since_commit() const { return stale_since_commit_; }
  // Of the step that is being trained, whose groups are leased.
  [[nodiscard]] GroupSignal StepSignal() const;

  // Age of a group's tokens for training at `v`.
  [[nodiscard]] Age AgeAt(const Group& g, const Version& v, const VersionGraph& versions) const;
  // Groups to train as `step` at version `v`: whole groups, earliest deadline first (oldest token, then
  // admission), those of an undone run of this same step before all others; empty if there is no batch
  // yet. The result is sorted by (ordinal, issue), so the rows do not depend on timing.
  [[nodiscard]] std::vector<GroupKey> ChooseBatch(StepNumber step, const Version& v,
                                                  const VersionGraph& versions) const;
  // All queued groups that may be trained as `step` at `v`, in the order in which a batch takes them.
  [[nodiscard]] std::vector<GroupKey> LeaseOrder(StepNumber step, const Version& v,
                                                 const VersionGraph& versions) const;
  // How many steps right after `step` were undone and wait as whole batches to be trained again.
  [[nodiscard]] int64_t Replays(StepNumber step) const;
  // No more groups can come before the next step, so a batch of fewer than B groups is allowed.
  [[nodiscard]] bool Exhausted() const;

  [[nodiscard]] const LengthFairness& fairness() const { return fairness_; }

 private:
  struct Candidate {  // to be trained next
    int64_t rank, oldest, start;
    GroupKey key;
    [[nodiscard]] auto Order() const { return std::tuple(rank, oldest, start); }
  };
  [[nodiscard]] std::vector<Candidate> Candidates(StepNumber step, const Version& v,
                                                  const VersionGraph& versions) const;  // in order
  [[nodiscard]] Group* FindGroup(const GroupKey& key) const;
  Sample* Mutable(const SampleId& tid, Group** group = nullptr);
  void MayBeTrained(const Group& g);
  void Move(Group& g, Sample& s,
            SamplePhase phase);  // and its group to the phase that follows, unless all are dropped
  static void AddMade(Group& g, const Sample& s);
  void SetPhase(Group& g, GroupPhase phase);
  void Erase(const GroupKey& key);
  void CountQueued(const Group& g, int64_t groups);

  LedgerRules rules_;
  LengthFairness fairness_;
  std::map<GroupKey, Group> groups_;
  // Apart from the open ones, which every step looks through: between two checkpoints they are many more.
  std::map<StepNumber, std::map<GroupKey, Group>> trained_;
  FlatTable<GroupKey, Group*> index_;  // into both
  std::set<GroupKey> queued_;
  std::map<int64_t, int64_t> undone_;  // of these: by the step that they were trained in
  std::map<int64_t, std::vector<GroupKey>> leases_;
  OrdinalSet ordinals_;
  std::map<int64_t, int32_t> reissues_;
  std::array<int64_t, 5> by_phase_{};
  std::array<int64_t, 9> drops_{};
  int64_t open_ = 0, running_samples_ = 0, issued_samples_ = 0, trained_samples_ = 0;
  int64_t next_gid_ = 0, next_start_ = 0, dropped_groups_since_commit_ = 0;
  GroupKey queued_last_;
  int64_t filtered_before_it_ = 0;  // in a row, before that group was queued
  int64_t filtered_since_commit_ = 0, filtered_in_a_row_ = 0, stale_since_commit_ = 0, changes_ = 0;
  int64_t last_trained_start_ = -1;  // of the newest group that was trained
  GroupSignal filtered_signal_;      // of groups that were filtered since the last commit
};

}  // namespace tidepool::scheduler
