#pragma once
// The rows of an optimizer step, from the commands that begin it to its end. Every member of the training
// group has a command of its own with its share of the batch, and reads the rows of that share and the
// outlines of all others (core/sample/trajectory.h), so the bytes of a row leave here once. When the last
// command is here, the rows are read from what is durable; when they are here, and are what their ENQs say,
// they are open to the members, and the members are told. The controller process and the simulated network
// run this very class. One thread, apart from Read.

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

// Trajectories, or why one cannot be had, in the order in which they were asked for.
using Trajectories = std::vector<StatusOr<sample::Trajectory>>;

class StepRows {
 public:
  struct Ends {
    // Samples as they are on record; `then` is called now or later.
    std::function<void(const std::vector<SampleId>&, std::function<void(Trajectories)> then)> read;
    std::function<void(const SampleId&, BatchRow&)> judge;  // says what the row is worth
    // With the bytes that the rows take in payload files.
    std::function<void(StepNumber, const std::vector<BatchRow>&, int64_t bytes)> opened;
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
  void Open(Trajectories recorded);
  [[nodiscard]] StatusOr<BatchRow> Row(const SampleId& tid, StatusOr<sample::Trajectory> recorded) const;

  const scheduler::Controller& controller_;
  const Ends ends_;
  Step step_;  // whose rows are being read
  OpenLease open_;
};

}  // namespace tidepool::workers
