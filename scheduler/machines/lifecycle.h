#pragma once
// How a run begins, goes on, and ends: start and resume, a stop from outside, deadlines, the watchdog, faults
// that end it.
//
//   kNew -> kRunning -> kStopping -> kOver
//                  \________________/

#include <cstdint>
#include <string>

#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/machines/machine.h"
#include "scheduler/shutdown.h"

namespace tidepool::scheduler {

enum class RunPhase : uint8_t {
  kNew,       // before event::Started
  kRunning,   // until all steps are done and saved, or a fault
  kStopping,  // a stop was asked for: nothing new begins, and what was done is saved while there is time
  kOver,      // the caller was told to end it: no event is taken in any more
};

class Lifecycle : public Machine {
 public:
  explicit Lifecycle(Machines& all);

  void On(const event::Started&);
  void On(const event::StopRequested& e);
  void On(const event::StorageFailed& e);

  void CheckDeadlines();  // of all waits, then the watchdog
  void Advance();         // ends the run when there is nothing left to do, or no time left

  bool Refuse();                              // an event that does not fit is counted; always false
  void Moved() { watchdog_.Progress(now_); }  // something that brings the run on
  // The run ends with exit code 3. `kind` and `actor` are words for the journal: "no_checkpoint",
  // "controller".
  void Fail(const std::string& kind, const std::string& actor, const std::string& what);
  // The same where a worker caused it. `worker.inc` is not valid where no single life of it is meant.
  // `in`: the step in which it did, where that is closed by now; none: the one that is open, or else the
  // last.
  void Fail(const std::string& kind, const WorkerRef& worker, const std::string& what, StepNumber in = {});

  [[nodiscard]] bool begun() const { return phase_ != RunPhase::kNew; }
  [[nodiscard]] bool running() const { return phase_ == RunPhase::kRunning; }
  [[nodiscard]] bool stopping() const { return phase_ == RunPhase::kStopping; }
  [[nodiscard]] bool over() const { return phase_ == RunPhase::kOver; }
  [[nodiscard]] bool MayCheckpoint() const { return shutdown_.MayCheckpoint(now_); }  // requires stopping()
  // A stop waits for a trainer that comes back with the recovery copy: its last steps are in no checkpoint.
  [[nodiscard]] bool WantsTrainerBack() const;
  [[nodiscard]] int64_t refused() const { return refused_; }

 private:
  void Resume();
  void WaitIsOver(const Waits::Key& key);
  [[nodiscard]] std::string WhoIsWaitedFor() const;
  void EndWhenComplete();
  void EndStopped();
  void EndBy(const record::Fault& fault, StepNumber in = {});
  void End(command::Finish finish);

  Watchdog watchdog_;
  RunPhase phase_ = RunPhase::kNew;
  Shutdown shutdown_;        // once it is stopping
  StepNumber step_to_save_;  // the last one that was done since the stop was asked for
  int64_t refused_ = 0;
};

}  // namespace tidepool::scheduler
