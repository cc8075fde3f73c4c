#pragma once
// A machine is one part of the controller. It alone changes its own state; it reads Facts and the const views
// of the other machines; it emits commands and records (Outbox) and deadlines (Waits). Where a decision of
// one machine has a consequence in another, it calls a method of that one that is named after what happened.
//
// Every event changes facts; then Controller::Handle lets each machine look at all facts and do what is
// possible now (`Advance`). So there is no script that a fault could interrupt half way.

#include "scheduler/controller_options.h"
#include "scheduler/fleet/fleet.h"
#include "scheduler/fleet/tries.h"
#include "scheduler/live_cost.h"
#include "scheduler/machines/facts.h"
#include "scheduler/outbox.h"
#include "scheduler/waits.h"

namespace tidepool::scheduler {

struct Machines;  // scheduler/machines/machines.h: all of them; included by sources only

class Machine {
 public:
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

 protected:
  explicit Machine(Machines& all);
  ~Machine() = default;
  [[nodiscard]] TimePoint In(double seconds) const { return now_ + FromSeconds(seconds); }

  Machines& all_;
  const Facts& facts_;
  const ControllerOptions& options_;  // facts_.options
  const RunState& state_;             // facts_.state
  const TimePoint& now_;              // facts_.now
  const Fleet& fleet_;
  Outbox& out_;
  Waits& waits_;
  LiveCost& cost_;  // what engine steps of this run were measured to cost
};

}  // namespace tidepool::scheduler
