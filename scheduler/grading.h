#pragma once
// Which finished sample is graded by which reward worker. Infrastructure failures are tried again on
// another worker if there is one; 0 is a reward only when a grader returned it. A grader that keeps a
// sample beyond the deadline is stuck and is to be replaced. Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/flat_table.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {

struct GradingOptions {
  int64_t max_retries = 2;
  int64_t in_flight_per_worker = 16;  // hides the round trip; a grader works on them in order
  Duration timeout{FromSeconds(15)};  // of one sample
};

class Grading {
 public:
  explicit Grading(const GradingOptions& options) : options_(options) {}

  // stored: its payload is. Else whoever carries the command out may hold it back until then, and no deadline
  // runs before PayloadStored.
  void Add(const SampleId& tid, int32_t att, bool stored = true);
  void PayloadStored(const SampleId& tid, TimePoint now);
  void Remove(const SampleId& tid);  // not wanted any more; a late result is refused
  void AddWorker(const WorkerRef& ref);
  void RemoveWorker(WorkerId worker);  // its samples return to the head of the queue
  // The worker died by itself; RemoveWorker is to follow. Its samples are suspects from now on, and a worker
  // is given one suspect at a time. Returns those that had been suspects before.
  std::vector<SampleId> Blame(WorkerId worker);
  [[nodiscard]] std::vector<command::Grade> Assign(TimePoint now);

  enum class Result : uint8_t { kRefused, kFinal, kRetry };
  // kFinal: the outcome stands (ok, data, or infra after all retries).
  Result Done(const event::Graded& e);
  // Whether this grader was given this attempt and has not answered.
  [[nodiscard]] bool Expects(const WorkerRef& grader, const SampleId& tid, int32_t att) const {
    const auto it = jobs_.find(tid);
    return it != jobs_.end() && it->second.att == att && it->second.on == grader;
  }
  // The first deadline of what graders hold; `now` if they hold nothing.
  [[nodiscard]] TimePoint Horizon(TimePoint now) const;
  // Workers that hold a sample beyond its deadline.
  [[nodiscard]] std::vector<WorkerRef> Stuck(TimePoint now) const;
  [[nodiscard]] bool Knows(const SampleId& tid) const { return jobs_.contains(tid); }
  [[nodiscard]] int64_t waiting() const { return static_cast<int64_t>(jobs_.size()); }
  [[nodiscard]] int64_t workers() const { return static_cast<int64_t>(workers_.size()); }

 private:
  struct Job {
    int32_t att = 0, attempt = 0;
    int64_t crashes = 0;  // workers that died with it
    WorkerRef on;
    WorkerId avoid;
    bool stored = true;
    TimePoint deadline;  // once it is stored
  };
  struct Worker {
    WorkerRef ref;
    SmallSet<SampleId> holds;  // at most in_flight_per_worker
    [[nodiscard]] int64_t in_flight() const { return static_cast<int64_t>(holds.size()); }
  };
  [[nodiscard]] bool Takes(const Worker& w, const Job& job) const;
  [[nodiscard]] TimePoint Deadline(const Worker& w, TimePoint now) const;
  GradingOptions options_;
  FlatTable<SampleId, Job> jobs_;
  std::deque<SampleId> queue_;
  std::map<WorkerId, Worker> workers_;
};

}  // namespace tidepool::scheduler
