#pragma once
// Everything about a run that outlives its controller: the fold of the journal.
//
// `Apply` is the only way to change it, live (through Outbox::Record) and at a restart. What is not
// here (processes, tokens generated so far, waits) is found out again after a restart.
// Not thread-safe.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "scheduler/best_checkpoint.h"
#include "scheduler/ledger.h"
#include "scheduler/version_graph.h"

namespace tidepool::scheduler {

class RunState {
 public:
  struct WorkerFacts {
    Incarnation inc;  // newest
    bool fenced = true;
    // A slot of it was quarantined, or lost with another part of its gang: it never gets one again.
    bool spent = false;
    std::string name;
  };
  // What a life of a worker has in a slot's memory, and serves from there.
  struct Serving {
    WorkerRef by;
    Version loaded, admitted;
  };
  struct SlotFacts {
    Role role = Role::kNone;  // granted to `holder`; kNone: free
    SlotEpoch epoch{0};
    WorkerRef holder;
    TransitionId open;        // transition that has neither T_DONE nor T_ROLLED_BACK
    bool committed = false;   // of the open transition
    Role next = Role::kNone;  // where it leads
    Serving serving;
  };
  struct OpenStep {
    StepNumber step;
    Version v;
    int64_t lease = -1;
    std::vector<record::SlotPlan> members;
  };

  // kDataLoss if `r` contradicts what came before; the state is then unusable.
  Status Apply(const JournalRecord& r);
  // The same, of a journal that is read: also if it is not the next one there.
  Status Apply(const JournalEntry& e);

  // Journal position of the next record.
  [[nodiscard]] Lsn next_lsn() const { return {records_}; }
  [[nodiscard]] bool empty() const { return records_ == 0; }
  [[nodiscard]] const std::optional<record::RunTerms>& config() const { return config_; }
  [[nodiscard]] const Ledger& ledger() const { return ledger_; }
  [[nodiscard]] const VersionGraph& versions() const { return versions_; }
  [[nodiscard]] StepNumber step() const { return {version_.number}; }  // last committed
  [[nodiscard]] const Version& version() const { return version_; }    // of that step
  // Digest of the weights of a committed step's version; 0 if unknown.
  [[nodiscard]] uint64_t WeightsDigest(const Version& v) const { return versions_.Digest(v); }
  [[nodiscard]] int32_t lineages() const { return lineages_; }
  [[nodiscard]] const std::optional<OpenStep>& open_step() const { return open_step_; }
  [[nodiscard]] int64_t open_lease() const { return open_lease_; }  // -1: none
  [[nodiscard]] int64_t next_lease() const { return next_lease_; }
  [[nodiscard]] int64_t next_checkpoint() const { return next_checkpoint_; }
  [[nodiscard]] TransitionId next_transition() const { return {next_transition_}; }
  [[nodiscard]] Incarnation next_incarnation() const { return {next_incarnation_}; }
  // Committed, neither rejected nor deleted; by checkpoint id.
  [[nodiscard]] const std::map<int64_t, record::CheckpointCommit>& checkpoints() const {
    return checkpoints_;
  }
  // Steps of this branch that ever had a checkpoint, also those whose checkpoint is deleted.
  [[nodiscard]] const std::set<StepNumber>& checkpointed() const { return checkpointed_; }
  [[nodiscard]] bool ever_checkpointed() const { return ever_checkpointed_; }
  [[nodiscard]] const std::map<WorkerId, WorkerFacts>& workers() const { return workers_; }
  [[nodiscard]] const std::map<SlotId, SlotFacts>& slots() const { return slots_; }
  // Nothing where that life of the worker has loaded nothing there.
  [[nodiscard]] Serving ServingAt(const SlotRef& place) const {
    const auto it = slots_.find(place.slot);
    return it != slots_.end() && it->second.serving.by == place.worker ? it->second.serving : Serving{};
  }
  // Transitions without T_DONE or T_ROLLED_BACK: were they committed? A slot that was lost has left its own.
  [[nodiscard]] const std::map<TransitionId, bool>& transitions() const { return transitions_; }
  [[nodiscard]] const std::map<StepNumber, record::EvalResult>& evals() const { return evals_; }
  [[nodiscard]] const HeldOutFigures& held_out() const { return held_out_; }
  [[nodiscard]] const std::optional<record::EndRun>& end_run() const { return end_run_; }
  // Hash of everything above that a decision depends on, apart from the terms of the run (CONFIG): what
  // SNAPSHOT records, so that a fold which differs is noticed.
  [[nodiscard]] uint64_t Digest() const;

 private:
  struct Applier;
  int64_t records_ = 0;
  std::optional<record::RunTerms> config_;
  Ledger ledger_;
  VersionGraph versions_;
  Version version_{0, 0};
  int32_t lineages_ = 1;
  std::optional<OpenStep> open_step_;
  int64_t open_lease_ = -1, next_lease_ = 0, next_checkpoint_ = 0, next_transition_ = 0,
          next_incarnation_ = 0;
  std::map<int64_t, record::CheckpointCommit> checkpoints_;
  std::set<StepNumber> checkpointed_;
  bool ever_checkpointed_ = false;
  std::map<WorkerId, WorkerFacts> workers_;
  std::map<SlotId, SlotFacts> slots_;
  std::map<TransitionId, bool> transitions_;
  std::map<TransitionId, std::vector<SlotId>> transition_slots_;  // that began it
  std::map<StepNumber, record::EvalResult> evals_;
  HeldOutFigures held_out_;
  std::optional<record::EndRun> end_run_;  // no later CONFIG goes on
  int64_t steps_committed_ = 0;
};

}  // namespace tidepool::scheduler
