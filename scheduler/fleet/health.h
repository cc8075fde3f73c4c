#pragma once
// The life of worker places: who is alive, who is restarted when, who is given up.
//
//   absent -> starting -> stale (registered, no weights) -> healthy <-> suspect -> dead -> restarting -> ...
//
// Suspect (gets no new work): silent for 3 heartbeats. Dead: silent for 9 heartbeats and at least 10 s, or
// without token progress for too long, or its socket is closed. 10 s, because a machine with more processes
// than cores delays heartbeats by seconds, and the end of a process is seen by its socket at once. Nobody
// comes back from the dead: a new incarnation has to join.
//
// Back-off before restart k: min(60 s, 1 s * 2^k) * (1 + U[0, 1/4]), k resets after 5 min of health;
// 5 restarts in 10 min: retired. A place that dies three times in a row before it joined ends the run.
// Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/base/words.h"
#include "scheduler/events.h"
#include "scheduler/id_map.h"

namespace tidepool::scheduler {

enum class Life : uint8_t { kAbsent, kStarting, kStale, kHealthy, kSuspect, kRestarting, kRetired };
constexpr auto WordsOf(Life) {
  return std::to_array<const char*>(
      {"absent", "starting", "stale", "healthy", "suspect", "restarting", "retired"});
}

struct HealthOptions {
  double heartbeat_s = 0.5, start_timeout_s = 600;
  uint64_t seed = 1;   // of the jitter
  bool launch = true;  // false: workers are started by hand, nothing is restarted
};

class Health {
 public:
  struct Place {
    WorkerKind kind = WorkerKind::kDevice;
    Life life = Life::kAbsent;
    WorkerRef ref;  // of the live process; inc invalid if none
    TimePoint heard, progress, born, starting_since;
    int64_t op_seq = 0;
    std::string op;
    bool busy = false;  // has work whose progress is expected
    double step_s = 0;  // reported engine steps, smoothed
    double pace = 0;  // its steps without prefill over what is usual for their batch, smoothed; 0: not known
    int64_t streak = 0;              // restarts without 5 min of health between
    int64_t failed_starts = 0;       // in a row, before it joined
    std::deque<TimePoint> restarts;  // of the last 10 min
    std::string last_why;
  };
  struct Verdict {
    enum Kind : uint8_t { kSuspect, kRecovered, kDead, kStartTimedOut } kind;
    WorkerId worker;
    std::string why;
    bool stuck = false;  // suspect because its work does not move, not because it is silent
  };
  struct Next {  // what to do after a death
    enum Kind : uint8_t { kRestart, kRetired, kGiveUp, kWait } kind = kWait;
    Duration delay{0};
  };

  explicit Health(const HealthOptions& options) : options_(options) {}

  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  void Add(WorkerId worker, WorkerKind kind) { At(worker).kind = kind; }
  void Starting(WorkerId worker, TimePoint now);
  void Joined(const WorkerRef& ref, TimePoint now);
  void Admitted(WorkerId worker);  // it serves: stale -> healthy
  void Heard(WorkerId worker, const event::Heartbeat& beat, TimePoint now);
  void Weigh(WorkerId worker, double pace);  // a step without prefill over what is usual for its batch
  void Progress(WorkerId worker, TimePoint now);
  void SetBusy(WorkerId worker, bool busy, TimePoint now);
  // The process died or is to be given up (also: a start that failed). Returns what to do.
  Next Died(WorkerId worker, const std::string& why, TimePoint now);
  [[nodiscard]] std::vector<Verdict> Tick(TimePoint now);

  // The live process of a place is `ref`.
  [[nodiscard]] bool IsCurrent(const WorkerRef& ref) const;
  [[nodiscard]] bool MayServe(WorkerId worker) const;  // healthy or stale, not suspect
  [[nodiscard]] const Place* Find(WorkerId worker) const;
  [[nodiscard]] const IdMap<WorkerId, Place>& places() const { return places_; }
  [[nodiscard]] int64_t restarts() const { return restarts_; }
  [[nodiscard]] Duration dead_after() const;

 private:
  Place& At(WorkerId worker) { return places_[worker]; }  // made if it is not there

  HealthOptions options_;
  IdMap<WorkerId, Place> places_;
  int64_t restarts_ = 0;
};

}  // namespace tidepool::scheduler
