#pragma once
// The rows of an optimizer step, from the commands that begin it to its end. Every member of the training
// group has a command of its own with its share of the batch. When the last command is here, the list of the
// rows is open to the members, and the members are told: what each row is, what it is worth, which member
// computes it, and where its payload lies. No payload is read here. Rows that have none, of supervised jobs,
// are in the list of the member that computes them, and as outlines (core/sample/trajectory.h) in those of
// the others. The controller process and the simulated network run this very class. One thread, apart from
// Read.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "scheduler/controller.h"
#include "workers/controller/open_lease.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class StepRows {
 public:
  struct Ends {
    // Of a sample without payload: what its row teaches.
    std::function<StatusOr<sample::Trajectory>(const SampleId&)> taught;
    std::function<void(const SampleId&, BatchRow&)> judge;  // says what the row is worth
    std::function<void(StepNumber, const std::vector<BatchRow>&)> opened;
    std::function<void(const WorkerRef&, down::Train)> send;
    std::function<void(scheduler::Event)> feed;
  };
  StepRows(const scheduler::Controller& controller, Ends ends)
      : controller_(controller), ends_(std::move(ends)) {}

  void Add(const scheduler::command::Train& c);
  // The record ends a step, however it does: its rows are not asked for any more.
  void Remember(const JournalRecord& r);
  // As OpenLease::Read; any thread.
  StatusOr<OpenLease::Rows> Read(int64_t lease, StepNumber step, Incarnation reader, int64_t rank) const {
    return open_.Read(lease, step, reader, rank);
  }

 private:
  struct Step {
    int64_t lease = -1;
    StepNumber number;
    std::vector<SampleId> tids;     // of the whole batch, share by share
    std::vector<int64_t> group_of;  // as tids
    std::vector<int64_t> rank_of;   // as tids
    int64_t groups = 0;
    std::vector<Version> stale;  // their tokens have no loss
    std::vector<std::pair<WorkerRef, down::Train>> members;
  };
  void Open();
  [[nodiscard]] StatusOr<BatchRow> Row(const SampleId& tid) const;

  const scheduler::Controller& controller_;
  const Ends ends_;
  Step step_;  // whose commands come
  OpenLease open_;
};

}  // namespace tidepool::workers
