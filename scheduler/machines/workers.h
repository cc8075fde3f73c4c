#pragma once
// Worker processes: who joins, who comes back after a restart of the controller, who is dead, who is started
// again, and whether those that are left can do the job.

#include <algorithm>
#include <string>

#include "scheduler/events.h"
#include "scheduler/fleet/health.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class Workers : public Machine {
 public:
  explicit Workers(Machines& all);

  void On(const event::WorkerJoined& e);
  void On(const event::WorkerLost& e);
  void On(const event::EngineLost& e);
  void On(const event::WorkerStartFailed& e);
  void On(const event::Heartbeat& e);
  void On(const event::StoodStill& e);

  void Begin();   // makes the worker places
  void Resume();  // a new life of the run: who may come back, who is fenced
  void Start();   // their processes
  void Tick();    // who is silent, stuck or late
  void Replace(const WorkerRef& ref, const std::string& why);  // kills it, if it is alive; then as lost
  // Nobody died of whom its engine could have been lost.
  void ReplaceEngine(const WorkerRef& ref, const std::string& why);

  void Progress(WorkerId worker) { health_.Progress(worker, now_); }  // its work moves
  void Admitted(WorkerId worker) { health_.Admitted(worker); }        // it has what it needs to work
  void Weigh(SlotId slot, double pace) { health_.Weigh(slot, pace); }

  // Slots that the run begins with and cannot go on without, of those that have a place; 0: it does not say.
  [[nodiscard]] int64_t min_slots() const {
    return std::min(options_.fleet.min_slots, static_cast<int64_t>(fleet_.devices.size()));
  }
  [[nodiscard]] int64_t restarts() const { return health_.restarts(); }
  [[nodiscard]] int64_t deaths(WorkerId worker) const { return health_.Deaths(worker, now_); }
  [[nodiscard]] bool DeviceRetired() const { return device_retired_; }  // a place is gone for good
  // Some device, some worker of any kind lived under the last controller and may still come back.
  [[nodiscard]] bool DevicesReattach() const;
  [[nodiscard]] bool SomeReattach() const;

 private:
  bool Reattach(const event::WorkerJoined& e);
  [[nodiscard]] std::string WhyNotWelcome(const event::WorkerJoined& e) const;
  void AddSideWorker(const WorkerRef& ref);
  void ReattachOver();
  void FenceAbsent(WorkerId worker, const std::string& why);
  void ReplaceAbsent(WorkerId worker, const std::string& why);
  void Launch(WorkerId worker);
  [[nodiscard]] bool Forgiven() const { return now_ < forgiven_until_; }
  void Crashed(const event::WorkerLost& e);
  void Lose(const WorkerRef& ref, const std::string& why, bool by_exit, bool for_good = false);
  void AfterDeath(WorkerId worker, const std::string& why, bool for_good = false);
  [[nodiscard]] bool MayLack(const Worker& w) const {
    return options_.fleet.min_slots > 0 && w.kind() == WorkerKind::kDevice;
  }
  void GiveUp(WorkerId worker, const std::string& why);  // where it may lack, until somebody takes it again
  void CheckFleet();

  Health health_;
  bool device_retired_ = false;
  TimePoint reattach_until_;
  TimePoint forgiven_until_;  // deaths before are the controller's own doing
};

}  // namespace tidepool::scheduler
