#pragma once
// How a run begins, goes on, and ends: start and resume, a stop from outside, deadlines, the watchdog, faults
// that end it.

#include <string>

#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/machines/machine.h"
#include "scheduler/shutdown.h"

namespace tidepool::scheduler {

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
  void Fail(const std::string& kind, const WorkerRef& worker, const std::string& what);

  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] bool finished() const { return finished_; }
  // A stop waits for a trainer that comes back with the recovery copy: its last steps are in no checkpoint.
  [[nodiscard]] bool WantsTrainerBack() const;
  [[nodiscard]] const Shutdown& shutdown() const { return shutdown_; }
  [[nodiscard]] int64_t refused() const { return refused_; }

 private:
  void Resume();
  void WaitIsOver(const Waits::Key& key);
  [[nodiscard]] std::string WhoIsWaitedFor() const;
  void AdvanceFinal();
  void FailBy(const record::Fault& fault);
  void Finish(const std::string& why, bool complete = false);
  void End(command::Finish finish);
  void FinishStop();

  Watchdog watchdog_;
  Shutdown shutdown_;
  StepNumber stopped_step_;  // the last one that was done since the stop was asked for
  bool started_ = false, finished_ = false;
  int64_t refused_ = 0;
};

}  // namespace tidepool::scheduler
