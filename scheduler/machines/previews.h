#pragma once
// Groups that are queued while trainers wait for the rest of the batch: what a step will need of them beside
// the loss is computed early by slots that have nothing else to do. A hint: nothing depends on it, it is on
// no record, and what of it is lost is computed in the step.

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "scheduler/commands.h"
#include "scheduler/ledger.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class Previews : public Machine {
 public:
  explicit Previews(Machines& all) : Machine(all) {}

  void Advance();

 private:
  struct Hint {
    SlotRef to;
    double tokens = 0;
  };
  [[nodiscard]] std::vector<command::GroupMember> Idle() const;  // slots that train and keep that role
  void Send(const GroupKey& key, const std::vector<command::GroupMember>& idle);

  std::map<GroupKey, Hint> hints_;  // of groups that are not trained or dropped yet
  // For what it was looked last: changes of ledger and pool, fetches of a state, version.
  std::optional<std::tuple<int64_t, int64_t, bool, Version>> seen_;
};

}  // namespace tidepool::scheduler
