#pragma once
// What slots did between two commits. This is the one definition of idleness: real runs (workers/) and
// simulated ones use it, so that the two can be compared.
//
//   idle(role) = 1 - busy(role) / held(role)
//     held: slot-seconds from `Granted` (the slot can work) to the `Release` command (it has drained)
//     busy: rollout: engine steps, with prefill; actor: the optimizer step of each rank, from the command to
//           its end, with the wait for slower ranks
//
// Both are summed over slots and over the steps of a window before one is divided by the other. A mean of
// single steps' shares would be something else: with a lag, short steps (the next batch was ready) and long
// ones take turns. Pure; not thread-safe.

#include <algorithm>
#include <cstdint>
#include <map>

#include "core/base/journal_records.h"

namespace tidepool::scheduler {

struct RoleSeconds {
  double held = 0, busy = 0;
  [[nodiscard]] double idle() const { return held > 0 ? std::max(0.0, 1 - busy / held) : 0; }
  RoleSeconds& operator+=(const RoleSeconds& o) {
    held += o.held, busy += o.busy;
    return *this;
  }
};

class SlotTime {
 public:
  struct Cut {
    RoleSeconds rollout, actor;
    double all = 0;  // slot-seconds, in whatever role or none
    Cut& operator+=(const Cut& o) {
      rollout += o.rollout, actor += o.actor, all += o.all;
      return *this;
    }
  };
  // The slot is in this role from now on; kNone: in none.
  void Hold(int64_t slot, Role role, double now_s) {
    const auto [it, fresh] = slots_.try_emplace(slot, Slot{role, now_s});
    if (!fresh) Count(it->second, now_s);
    it->second = {role, now_s};
  }
  void Busy(Role role, double seconds) {
    if (role == Role::kRollout) sum_.rollout.busy += seconds;
    if (role == Role::kActor) sum_.actor.busy += seconds;
  }
  // Everything since the last cut.
  Cut Take(double now_s) {
    for (auto& [id, slot] : slots_) Count(slot, now_s);
    const Cut out = sum_;
    sum_ = {};
    return out;
  }

 private:
  struct Slot {
    Role role = Role::kNone;
    double since_s = 0;
  };
  void Count(Slot& slot, double now_s) {
    const double s = now_s - slot.since_s;
    if (slot.role == Role::kRollout) sum_.rollout.held += s;
    if (slot.role == Role::kActor) sum_.actor.held += s;
    sum_.all += s;
    slot.since_s = now_s;
  }
  std::map<int64_t, Slot> slots_;
  Cut sum_;
};

}  // namespace tidepool::scheduler
