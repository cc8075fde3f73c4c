#pragma once
// Device slots: what the placement placement is shown, and how its plan becomes transactions.

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "scheduler/commands.h"
#include "scheduler/cycles.h"
#include "scheduler/events.h"
#include "scheduler/fleet/pool.h"
#include "scheduler/machines/machine.h"
#include "scheduler/standing_plan.h"

namespace tidepool::scheduler {

class Slots : public Machine {
 public:
  explicit Slots(Machines& all);

  void On(const event::Drained& e);
  void On(const event::Released& e);
  void On(const event::Granted& e);

  void Begin();                                                     // makes the slots
  void Recover(bool keep_holders) { pool_.Recover(keep_holders); }  // a new life of the run
  void LoseAbandoned();                                             // slots whose holders cannot come back
  void Advance(bool again = false);  // `again`: also where nothing has changed but the time

  void Attach(const WorkerRef& ref);                   // a new device worker
  void Reattach(const WorkerRef& ref);                 // a device worker of the last life is back
  void Lost(WorkerId worker, const std::string& why);  // no effect for a worker that has no slot
  void SetStepTime(SlotId slot, double step_s) { pool_.SetStepTime(slot, step_s); }
  // The drain of a slot took too long and is called off. False: that is not what the slot was doing.
  bool DrainTimedOut(SlotId slot, const std::string& why) { return pool_.DrainTimedOut(slot, why, now_); }
  void Abandon(const std::string& why) { pool_.Abandon(why, now_); }  // the run ends

  // What cycles are made of (scheduler/cycles.h).
  void GroupFormed(double seconds) { cycles_.GroupFormed(seconds); }
  void StepTrained(int64_t slots, double seconds, double tokens) { cycles_.Trained(slots, seconds, tokens); }
  void CycleDisturbed() { cycles_.Disturbed(); }

  [[nodiscard]] const Pool& pool() const { return pool_; }
  [[nodiscard]] bool Eligible(SlotId slot, Role role) const;
  [[nodiscard]] bool Eligible(std::span<const SlotId> slots, Role role) const;  // some of them
  // A slot was told that it has this role and has not confirmed it, as each that comes back to a new
  // controller.
  [[nodiscard]] bool Confirms(Role role) const;
  // Slots that hold the actor role now, by slot.
  [[nodiscard]] std::vector<command::GroupMember> Members() const;
  [[nodiscard]] std::vector<SlotId> Trainers() const;  // all that may, whether they are there or not
  // What a slot has of the model and of the optimizer's state: all of it unless they are parted.
  [[nodiscard]] Shard ShardOf(SlotId slot) const;
  // The group that trains has one size: sums would round otherwise, or parts of the state be missing.
  [[nodiscard]] bool OneSize() const { return options_.deterministic || options_.fleet.parted(); }

 private:
  [[nodiscard]] bool Whole(const Pool::Slot& s) const;   // every part of it has a live worker
  [[nodiscard]] bool IsLive(const Pool::Slot& s) const;  // a plan may count on it
  [[nodiscard]] SlotView ViewSlot(SlotId id, const Pool::Slot& s) const;
  [[nodiscard]] bool MayTrainOnFewer() const;
  [[nodiscard]] PoolView ViewPool() const;
  [[nodiscard]] LedgerView ViewLedger(TrainerNeed need) const;
  // Slots whose roles have to be looked at; nothing: all. `by_slot`: only slots have changed since the last
  // plan.
  std::optional<std::vector<SlotId>> DecidePlan(const LedgerView& ledger, bool by_slot);
  [[nodiscard]] Forecast MakeForecast(const LedgerView& ledger) const;
  void FollowPlan(const std::optional<std::vector<SlotId>>& changed);
  void EndIfLeadsNowhere(const LedgerView& ledger);
  [[nodiscard]] bool MayBegin() const;
  [[nodiscard]] int64_t WholeSlots() const;
  [[nodiscard]] int64_t LiveSlots() const;
  void NoteBegin();

  bool begun_ = false;    // some slot was given a role in this life
  const PoolView terms_;  // the part of it that does not change
  Pool pool_;
  Cycles cycles_;
  StandingPlan plan_;
  std::string plan_refused_;  // why the placement's newest was not taken
  int64_t idle_plans_ = 0;    // refused, or without anyone to work, in a row, while nobody was waited for
  TimePoint plan_made_;
  bool takes_held_back_ = false;  // the plan takes slots, and another transition has to end first
  // For what `plan_` was made.
  std::optional<std::tuple<int64_t, TrainerNeed, bool, bool, int64_t>> planned_;
};

}  // namespace tidepool::scheduler
