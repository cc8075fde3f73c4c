#pragma once
// Optimizer steps: the group of slots that trains, what each member is given, and what comes back.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/ledger.h"
#include "scheduler/machines/machine.h"
#include "scheduler/placement.h"
#include "scheduler/run_state.h"

namespace tidepool::scheduler {

class Steps : public Machine {
 public:
  struct Open {  // the step that is being computed
    int64_t lease = -1;
    StepNumber step;
    Version v;
    std::vector<record::TrainedRow> rows;
    command::StepReport report;
    double tokens = 0;
    std::vector<command::GroupMember> members;  // by rank
    std::map<SlotRef, event::TrainDone> done;
  };

  explicit Steps(Machines& all) : Machine(all) {}

  void On(const event::GroupFormed& e);
  void On(const event::TrainDone& e);
  void On(const event::TrainFailed& e);
  void On(const event::PayloadLost& e);

  void Advance();            // begins a step if there is everything for it
  TrainerNeed DecideNeed();  // what the trainer needs slots for
  // A step that another life began and never wrote down, and that all its members have made: nothing has
  // changed since that would make it another step.
  [[nodiscard]] bool MayCommit(const RunState::OpenStep& step, const std::vector<SampleId>& rows,
                               const std::map<SlotRef, event::TrainDone>& finished) const;
  // Begins it again and takes what they said for the answer.  requires MayCommit
  void CommitFinished(const std::vector<SampleId>& rows, std::map<SlotRef, event::TrainDone> finished);
  // `but`: who is out of it already; its slot invalid: with all its slots.
  void Abort(const std::string& why, const SlotRef& but = {});
  void Lost(const WorkerRef& ref, const std::string& why);  // a device worker is gone
  void EndEvaluation();                                     // of the open step: its result is wanted now

  [[nodiscard]] const std::optional<Open>& open() const { return open_; }
  [[nodiscard]] bool Replays() const;       // the open step trains groups of one that was undone
  [[nodiscard]] Duration Patience() const;  // for a step without a sign of progress
  [[nodiscard]] bool MayTrain() const;      // all but the slots and the batch
  [[nodiscard]] double seconds() const { return train_s_; }  // of a step, smoothed

 private:
  bool PrepareGroup();  // true: a step may begin on the slots that train now
  void FormGroup(const std::vector<command::GroupMember>& members);
  void StopForming();
  void Begin(const std::vector<GroupKey>& keys);
  struct Batch {
    std::vector<std::vector<SampleId>> groups;
    std::vector<double> costs;  // [groups]
    std::set<Version> stale;    // tokens that have no loss
    int64_t rows = 0;
  };
  Batch OpenStep(const std::vector<GroupKey>& keys);  // with its records
  [[nodiscard]] std::pair<record::TrainedRow, int64_t> RowOf(const SampleId& tid, const record::Enq& enq,
                                                             const Version& v,
                                                             std::set<Version>& stale) const;
  void SendShares(Batch batch);
  [[nodiscard]] bool IsMember(const SlotRef& ref) const;  // of the open step
  // Whether all members hold the same weights, and were given the samples that were stored; else the run
  // ends.
  bool ReplicasAgree(StepNumber step);
  bool SameRows(StepNumber step);
  void NotFinite(const event::TrainDone& e);
  void BadRows(const event::TrainFailed& e, const std::vector<BadRow>& bad);
  void Commit();
  struct GivenTo {
    event::GivenRow row;
    WorkerRef worker;
  };
  std::string OtherRow(std::vector<GivenTo> given, WorkerRef& who);
  [[nodiscard]] std::set<GroupKey> Keys() const;  // groups of the open step
  [[nodiscard]] std::vector<BadRow> OfStep(
      const std::vector<BadRow>& bad) const;  // those that are rows of it
  void SetAside(const std::set<GroupKey>& keys, DropReason reason);

  std::vector<command::GroupMember> group_;  // that has communicators, or is getting them
  std::set<SlotRef> forming_;                // of them, have not answered
  std::optional<TimePoint> preparing_;       // since when members lack the state or a group
  int64_t group_epoch_ = 0, group_tries_ = 0;
  int64_t group_checked_ = -1;  // changes of the pool that PrepareGroup has seen
  std::optional<Open> open_;
  int64_t nonfinite_ = 0, train_failures_ = 0, bad_batches_ = 0;  // in a row
  // The furthest step that was not finite. Those that a restore undid before it, made again, end no row.
  StepNumber nonfinite_at_{0};
  double train_s_ = 0;
};

}  // namespace tidepool::scheduler
