#pragma once
// The controller state machine: every decision of a run, in production and in the simulator alike.
//
// Pure: no I/O, thread, clock, log or random device. The same options, journal and events give the
// same commands. Not thread-safe: one thread owns it.
//
// State that has to outlive a crash changes only by applying journal records, live (when the record
// is emitted) and at a restart (when the journal is folded) by the same function.

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "scheduler/commands.h"
#include "scheduler/controller_options.h"
#include "scheduler/events.h"
#include "scheduler/run_state.h"

namespace tidepool::scheduler {

// A place that a process is started for again.
struct Restarting {
  WorkerId worker;
  Duration in{0};      // until then; not above 0: it is starting
  int64_t deaths = 0;  // within ten minutes
  std::string why;     // of the last one
};

// What people see: `tidepool status`, the progress display. A copy, cheap.
struct ControllerView {
  std::string phase;  // starting, warm_start, evaluating, running, checkpointing, stopping, done
  StepNumber step;    // last committed
  Version version;
  int64_t open_groups = 0, running = 0, awaiting = 0, queued = 0, leased = 0, capacity = 0;
  int64_t trained_samples = 0, issued_samples = 0;
  std::vector<int64_t> drops;  // by DropReason
  int64_t chunks = 0, restarts = 0, refused = 0, in_flight = 0;
  int64_t rollbacks = 0;
  int64_t waiting_env = 0;  // samples whose environment works just now
  int64_t env_turns = 0,
          env_retries = 0;  // asked of environment workers so far; of them, again after a failure
  std::vector<Restarting> restarting;
  std::vector<WorkerId> absent;  // places that no process holds, and one is to
};

struct Machines;  // scheduler/machines/

class Controller {
 public:
  // kInvalidArgument if the options cannot make a run. `journal`: records of earlier lives, in order
  // (empty: a new run); kDataLoss if they do not fold.
  static StatusOr<std::unique_ptr<Controller>> Create(const ControllerOptions& options,
                                                      const std::vector<JournalEntry>& journal);
  // The same, of records that were folded as they were read.
  static StatusOr<std::unique_ptr<Controller>> CreateFrom(const ControllerOptions& options, RunState earlier);
  ~Controller();

  // Takes in one event at `now` and returns what is to be done, in order.
  std::vector<Command> Handle(const Event& event, TimePoint now);

  [[nodiscard]] ControllerView View() const;
  // Where a finished sample's payload is (from its Enq), for fetching a batch; not found: nullptr.
  [[nodiscard]] const record::Enq* FindPayload(const SampleId& tid) const;
  // Whether tokens of this chunk would be taken from that slot now. Those of a chunk that was taken back
  // from it are not: the caller keeps them out of the sample.
  [[nodiscard]] bool Expects(const SlotRef& on, const SampleId& tid, int32_t att) const;
  // Whether a verdict of this grader, or an answer of this environment worker to this turn, would be taken
  // now, and so count.
  [[nodiscard]] bool ExpectsGrade(const WorkerRef& grader, const SampleId& tid, int32_t att) const;
  [[nodiscard]] bool ExpectsTurn(const WorkerRef& worker, const SampleId& tid, int32_t att,
                                 int64_t turn) const;
  [[nodiscard]] double Reward(const SampleId& tid) const;  // requires a graded sample
  // Its scores by reward function.  requires a graded sample
  [[nodiscard]] const std::vector<std::pair<std::string, double>>& Rewards(const SampleId& tid) const;
  // The payload files with samples that may be trained, or trained again after a restore to a checkpoint that
  // is kept.
  [[nodiscard]] std::set<int64_t> PayloadFiles() const;

 private:
  Controller();
  std::unique_ptr<Machines> impl_;
};

}  // namespace tidepool::scheduler
