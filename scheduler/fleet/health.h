#pragma once
// The life of workers (Worker::vitals) and the pace of their engines (Device::pace): who is alive, who is
// restarted when, who is given up.
//
//   absent -> starting -> stale (registered, no weights) -> healthy <-> suspect -> dead -> restarting -> ...
//
// Suspect (gets no new work): silent for 3 heartbeats. Dead: silent for 9 heartbeats and at least 10 s, or
// without token progress for too long, or its socket is closed. 10 s, because a machine with more processes
// than cores delays heartbeats by seconds, and the end of a process is seen by its socket at once. Nobody
// comes back from the dead: a new incarnation has to join.
//
// Back-off before restart k: min(60 s, 1 s * 2^k) * (1 + U[0, 1/4]), k resets after 5 min of health;
// 5 restarts in 10 min: retired. A place that dies three times in a row before it joined ends the run, or is
// retired where the run may lack places; so does one whose process says that another one would end as it did.
// There a device that nobody starts is retired, too, when it has
// stayed away for the start time-out; who joins at a retired place of such a run has it again. Progress is
// that of the process: the work of one of its slots hides that another one's stands still. Pure; not
// thread-safe.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/events.h"
#include "scheduler/fleet/fleet.h"

namespace tidepool::scheduler {

struct HealthOptions {
  double heartbeat_s = 0.5, start_timeout_s = 600;
  uint64_t seed = 1;      // of the jitter
  bool launch = true;     // false: workers are started by hand, nothing is restarted
  double quiet_s = 0;     // a worker may make no progress for so long: it waits for others
  bool may_lack = false;  // devices may stay away (cluster.min_slots)
};

class Health {
 public:
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

  Health(const HealthOptions& options, Fleet& fleet) : options_(options), fleet_(fleet) {}

  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  void Starting(WorkerId worker, TimePoint now);
  void Joined(const WorkerRef& ref, TimePoint now);
  void Admitted(WorkerId worker);  // it serves: stale -> healthy
  void Heard(WorkerId worker, const event::Heartbeat& beat, TimePoint now);
  void Weigh(SlotId slot, double pace);  // a step without prefill over what is usual for its batch
  void Progress(WorkerId worker, TimePoint now);
  void SetBusy(WorkerId worker, bool busy, TimePoint now);
  // kForgiven: it does not count towards the retirement of the place, and makes no later restart wait longer.
  // kForGood: another process would die so again, so none is started; kGiveUp is the answer.
  enum class Death : uint8_t { kCounts, kForgiven, kForGood };
  // The process died or is to be given up (also: a start that failed). Returns what to do.
  Next Died(WorkerId worker, const std::string& why, TimePoint now, Death death = Death::kCounts);
  void Retire(WorkerId worker, const std::string& why);  // nobody waits for it any more
  [[nodiscard]] std::vector<Verdict> Tick(TimePoint now);
  [[nodiscard]] int64_t Deaths(WorkerId worker, TimePoint now) const;  // that count, within ten minutes

  [[nodiscard]] static bool MayServe(const Worker& w);  // healthy or stale, not suspect
  [[nodiscard]] int64_t restarts() const { return restarts_; }
  [[nodiscard]] Duration dead_after() const;

 private:
  HealthOptions options_;
  Fleet& fleet_;
  int64_t restarts_ = 0;
};

}  // namespace tidepool::scheduler
