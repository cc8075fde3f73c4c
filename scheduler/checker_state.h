#pragma once
// What the checker has understood of a journal so far; private to the checker_*.cc files.
//
// One `On` a kind of record; each returns false at a violation, which Violation() notes. Shares nothing
// with ledger, pool and run state. Every container grows with the samples, slots and workers alone.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/choices.h"
#include "core/base/places.h"
#include "scheduler/checker.h"
#include "scheduler/flat_table.h"
#include "scheduler/length_fairness.h"

namespace tidepool::scheduler {

struct Checker::State {
  enum class Where : uint8_t { kRunning, kAwaiting, kQueued, kLeased, kTrained, kDropped };

  struct Row {
    Where where = Where::kRunning;
    int32_t att = 0;
    bool enqueued = false, ended = false, graded = false;
    int64_t gid = -1, lease = -1, step = -1;
    int32_t length = 0;  // response tokens, once they are known
    Version oldest, newest;
    uint64_t digest = 0;
    std::vector<record::VersionTokens> versions;  // on_stale mask only
    DropReason reason = DropReason::kStale;
  };
  struct GroupFacts {
    int64_t ordinal = -1;
    int32_t issue = 0;
    std::vector<SampleId> tids;
    int64_t open_rows = 0;  // neither trained nor dropped
  };
  struct SlotState {
    Role role = Role::kNone;
    int64_t epoch = 0;
    WorkerRef owner;   // the live process that has it; inc invalid: there is none
    WorkerRef holder;  // of its role
    int64_t transition = -1;
    Version loaded, admitted;   // by the process that joined last
    uint32_t loaded_epoch = 0;  // life of the controller
    bool released = false, quarantined = false;
    Role owed = Role::kNone;  // after a rollback: what it was released from
    uint64_t taken_ns = 0;    // last left rollout in a transition of this life
    uint32_t taken_epoch = 0;
    Role next = Role::kNone;               // where its open transition leads
    bool idle = false, generates = false;  // as counted in `idle_slots` and `rollout_slots`
  };
  struct TransitionState {
    std::vector<record::SlotPlan> plan;
    bool committed = false;
    uint64_t begun_ns = 0;
    uint32_t ctl_epoch = 0;
    int64_t deadline_ms = 0;
  };
  struct WorkerState {
    bool fenced = false;
    std::vector<SlotId> slots;
  };
  struct CheckpointState {
    int64_t step = -1, begin_lsn = -1;
    bool committed = false, rejected = false, deleted = false, undone = false;
    int64_t committed_at = -1;  // the step that the run had come to by then
  };

  CheckResult r;
  const JournalEntry* now = nullptr;
  uint32_t ctl_epoch = 0;  // of the record before
  std::optional<record::RunTerms> config;
  FlatTable<SampleId, Row> rows;
  std::map<int64_t, GroupFacts> groups;                    // by gid
  std::map<int64_t, std::map<int32_t, int64_t>> ordinals;  // ordinal -> issue -> gid
  int64_t open_groups = 0;
  std::optional<record::Lease> lease;
  std::optional<record::StepBegin> step;
  std::set<int64_t> step_slots;  // of its members
  Version current{0, 0};
  std::map<int32_t, std::vector<uint64_t>> path;  // lineage -> digest of each number, inherited ones too
  // Q14: lineage -> what a replay store had taken in by each step, inherited ones too; 0: there is none.
  std::map<int32_t, std::vector<uint64_t>> replays;
  std::set<Version> published;
  std::map<int32_t, int64_t> last_published;
  std::map<Version, uint64_t> committed;  // STEP_COMMIT and what RESTORE carried over
  FlatTable<WorkerRef, WorkerState> workers;
  std::map<WorkerId, std::string> names;  // of places
  FlatTable<WorkerId, WorkerRef> alive;   // joined and not fenced; one a place
  FlatTable<int64_t, SlotState> slots;
  std::map<int64_t, TransitionState> transitions;  // open ones
  uint64_t transition_due_ns = 0;                  // none can be late before
  int64_t last_transition = -1;
  std::map<int64_t, CheckpointState> checkpoints;
  int64_t last_checkpoint = -1;
  // C6: the widest distance of checkpoints that a config has asked for since the newest one; 0: none.
  int64_t checkpoint_distance = 0;
  std::map<std::string, std::vector<std::pair<uint32_t, uint64_t>>>
      losses;  // of workers: life of the controller, time
  bool step0_committed = false, fault_seen = false;
  bool done = false;  // END_RUN says that nothing is left to do, and no later CONFIG goes on
  int64_t last_inc = -1, last_lease = -1;
  LengthFairness fairness;
  // G6: slots that are free and have a live worker; slots that generate or are on their way to it.
  int64_t idle_slots = 0, rollout_slots = 0;
  std::optional<uint64_t> below_floor_ns;  // since when
  bool slots_move = false;                 // a transition has begun in this life
  // W7: engines that serve an older version than the newest one, and when they last did anything about it.
  Version newest;                      // of this lineage that may be loaded
  std::map<int64_t, uint64_t> behind;  // by slot
  uint64_t behind_due_ns = 0;          // nothing can be late before

  bool Violation(const char* predicate, std::string why);
  [[nodiscard]] int64_t Capacity() const;
  [[nodiscard]] bool Rl() const { return config->job == Name(JobKind::kRl); }
  // Digest of the weights with number n on the path of v; 0: not known.
  [[nodiscard]] uint64_t At(const Version& v, int64_t n) const;
  // Lag through the last number at which both paths had the same weights. A path without a known digest
  // shares its place only with itself (the same lineage).
  [[nodiscard]] int64_t Lag(const Version& made, const Version& trained) const;
  void SetPath(const Version& v, uint64_t digest);
  bool Trusted(const WorkerRef& ref, const char* what);
  [[nodiscard]] std::string Called(const WorkerRef& worker) const;  // "reward-0/inc3", by its JOIN
  // What time alone can violate: G4, G6, W7. Cheap; called at every record.
  bool OnTime();
  // mono_ns counts from another start in every life of the controller.
  void NewLife();

  // --- checker_samples.cc, Q1-Q3, Q5-Q9, G8, W3, W6
  bool On(const record::Config& c);
  bool NewGroup(const record::Issue& i);
  bool On(const record::Issue& i);
  Row* Known(const SampleId& tid);
  bool On(const record::Start& x);
  bool On(const record::End& x);
  bool On(const record::Enq& x);
  bool On(const record::Graded& x);
  bool On(const record::Dup& x);
  bool IsSetAside(const SampleId& tid);
  bool CloseRow(Row& row);
  bool On(const record::Drop& x);

  // --- checker_steps.cc, Q1, Q2, Q4, Q7, Q8, Q12, Q14, G2, G8
  bool On(const record::Lease& x);
  void Return();
  bool On(const record::Unlease& x);
  bool On(const record::StepBegin& x);
  bool On(const record::StepAbort& x);
  bool On(const record::StepCommit& x);
  bool RightAge(const record::TrainedRow& t, const Row& row);
  bool RightMask(const record::TrainedRow& t, const Row& row);
  bool RightReplay(const record::StepCommit& x);  // Q14

  // --- checker_weights.cc, W1-W5, W7
  bool On(const record::Publish& x);
  bool EnginesFollow();                                       // W7
  void Follow(int64_t slot);                                  // after anything that moves its engine
  SlotState* Engine(const SlotRef& place, const char* what);  // nullptr: that worker has no such slot
  bool On(const record::Loaded& x);
  bool On(const record::Admit& x);

  // --- checker_pool.cc, G1-G7, Q8
  bool On(const record::Fence& x);
  bool On(const record::Join& x);
  bool On(const record::TransitionBegin& x);
  SlotState* Slot(SlotId id);                         // nullptr: there is no such slot (G3)
  void Recount(int64_t slot);                         // after anything that moves this slot
  bool FloorKept();                                   // G6
  [[nodiscard]] bool Stuck(uint64_t since_ns) const;  // longer than the run may stand still
  TransitionState* Open(TransitionId t);
  bool On(const record::TransitionCommit& x);
  // When it is late; UINT64_MAX: never, by its own clock.
  [[nodiscard]] uint64_t LateAfter(const TransitionState& t) const;
  bool TransitionsEnd();  // G4
  bool EndTransition(TransitionId id, bool done);
  bool On(const record::TransitionDone& x);
  bool On(const record::TransitionRolledBack& x);
  bool On(const record::Grant& x);
  bool On(const record::Release& x);
  bool On(const record::Quarantine& x);
  bool On(const record::SlotLost& x);

  // --- checker_checkpoints.cc, C1-C3, C5-C8, L3, L5, and at the end Q1, Q10
  bool On(const record::CheckpointBegin& x);
  CheckpointState* Commits(int64_t ckpt, const char* predicate);
  bool On(const record::CheckpointCommit& x);
  bool On(const record::CheckpointReject& x);
  bool On(const record::CheckpointDelete& x);
  bool PointKept(const record::Restore& x);
  bool On(const record::Restore& x);
  bool On(const record::Snapshot&);
  bool On(const record::Fault& x);
  bool On(const record::EvalResult& x);
  bool On(const record::EndRun& x);
};

}  // namespace tidepool::scheduler
