#pragma once
// Who holds which slot. A slot changes hands only by a transition of its own:
//
//   free --T_BEGIN,T_COMMIT,GRANT--> granting --Granted--> held --T_BEGIN,Drain--> draining --Drained-->
//   releasing --Released (enough bytes)--> T_COMMIT, GRANT --> granting --> held, T_DONE
//
// Before T_COMMIT a failure rolls back (T_ROLLED_BACK), after it the slot is lost and T_DONE closes the
// transition. Too little memory proven free: QUAR, and the worker is replaced. Every effect carries
// (slot, epoch); others are refused. The journal's view of a slot is RunState::slots(); this class adds
// the phase inside a transition. Not thread-safe.

#include <cstdint>
#include <map>
#include <string>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/events.h"
#include "scheduler/outbox.h"
#include "scheduler/run_state.h"
#include "scheduler/waits.h"

namespace tidepool::scheduler {

enum class SlotPhase : uint8_t { kFree, kGranting, kHeld, kDraining, kReleasing };

struct PoolOptions {
  int64_t need_bytes_rollout = 0, need_bytes_actor = 0;
  Duration drain_deadline = FromSeconds(60), release_deadline = FromSeconds(60), grant_deadline = FromSeconds(120);
};

class Pool {
 public:
  struct Slot {
    SlotPhase phase = SlotPhase::kFree;
    Role role = Role::kNone, next = Role::kNone;  // next: where the open transition leads
    LeaseEpoch epoch{0};
    WorkerRef holder;                             // whose device it is now; inc invalid: nobody's
    TransitionId t;
  };

  Pool(const PoolOptions& options, const RunState& state, Outbox& out, Waits& waits)
      : options_(options), state_(state), out_(out), waits_(waits) {}

  // A controller restart: closes what its predecessor left open. Slots whose holder is in
  // `kept` (re-attached later) stay held, all others are lost.
  void Recover(bool keep_holders);
  void Attach(SlotId slot, const WorkerRef& worker);      // a device joined
  // Its holder died: closes an open transition and frees the slot.
  void Lost(SlotId slot, const std::string& why);

  // The run ends: closes what is open.
  void Abandon(const std::string& why);

  // Starts moving an idle or held slot to `role`.  requires phase kFree or kHeld, and a worker
  void Begin(SlotId slot, Role role, TimePoint now);
  // Each returns false (refused) if (worker, slot, epoch, phase) do not fit.
  bool Drained(const event::Drained& e, TimePoint now);
  enum class ReleaseOutcome : uint8_t { kRefused, kGranted, kQuarantined };
  ReleaseOutcome Released(const event::Released& e, TimePoint now);
  bool Granted(const event::Granted& e);

  [[nodiscard]] const Slot& slot(SlotId id) const { return slots_.at(id); }
  [[nodiscard]] bool Knows(SlotId id) const { return slots_.contains(id); }
  [[nodiscard]] bool Holds(SlotId id, Role role) const;
  [[nodiscard]] const std::map<SlotId, Slot>& slots() const { return slots_; }
  void Add(SlotId id) { slots_[id]; }

 private:
  void Grant(SlotId id, Slot& s, TimePoint now);
  void WaitFor(SlotId id, const Slot& s, const char* what, Duration limit, TimePoint now);

  PoolOptions options_;
  const RunState& state_;
  Outbox& out_;
  Waits& waits_;
  std::map<SlotId, Slot> slots_;
};

}  // namespace tidepool::scheduler
