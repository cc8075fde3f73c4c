#pragma once
// Who held which slot in which role, over time: what the journal says about it (GRANT, T_*, STEP_* records),
// for the report's picture of the pool.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/observe/trace_reader.h"

namespace tidepool::observe {

// Transactions that led slots from one role to another (of several slots: as its first one). Seconds:
// `release` from the decision until all are drained and released, `grant` from there until all work in their
// new role.
struct MoveTimes {
  int64_t rolled_back = 0;
  std::vector<double> release_s, grant_s;  // of each that was done, in order
};

// The trainer's state was set back, or a new controller began from it.
struct RestoreSeen {
  double at_s = 0;
  int64_t from = 0, to = 0;  // steps; equal: nothing was undone
  int64_t ckpt = -1;         // -1: the recovery copy
};

// One lane a slot, in the form of a trace; categories: "rollout" (generates), "train" (an optimizer step),
// "actor" (holds the training role between steps), "moving" (inside a transaction: draining, releasing, being
// granted), "lost" (no worker, or quarantined). Times are seconds of the run; a restarted controller goes on
// where the one before ended.
struct PoolHistory {
  ReadTrace lanes;
  std::vector<double> steps;  // ends of optimizer steps
  double end_s = 0;
  int64_t moves = 0;                                 // transactions that were done
  std::map<std::pair<Role, Role>, MoveTimes> times;  // by roles from and to
  std::vector<RestoreSeen> restores;
  std::map<std::string, int64_t> faults;  // FAULT records by kind
  [[nodiscard]] bool empty() const { return lanes.spans.empty(); }
};

PoolHistory PoolHistoryOf(const std::vector<JournalEntry>& journal);
// kNotFound: no journal there; otherwise as storage::ReadJournal.
StatusOr<PoolHistory> ReadPoolHistory(const std::string& run_dir);

// The same of a run that goes on: reads only what was added to the journal since the call before, so that a
// page can ask every few seconds however long the run is. Not thread-safe.
class PoolFollower {
 public:
  PoolFollower(FileSystem& fs, const std::string& run_dir);
  ~PoolFollower();
  // Up to the newest record. kNotFound: no journal there; kFailedPrecondition, kDataLoss as
  // storage::JournalTail. Another run's journal in its place is read anew.
  StatusOr<PoolHistory> Read();

 private:
  struct Followed;
  FileSystem& fs_;
  const std::string journal_;
  std::unique_ptr<Followed> followed_;
};

}  // namespace tidepool::observe
