#pragma once
// New weights to the rollout workers, one by one: Load, compare the digest that the worker computed with
// the published one, LOADED, ADMIT. A worker with samples in it is taken out only if at most max(1, 25 %) of
// such ones are loading; one that serves nothing (fresh, idle, or too old) loads at once. A wrong digest or
// an error is tried again twice, then the worker is replaced. Pure; not thread-safe.

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/id_map.h"

namespace tidepool::scheduler {

class WeightRoll {
 public:
  struct Place {
    WorkerRef ref;
    Version loaded;   // verified, in its memory
    Version loading;  // valid: a Load is under way
    int64_t tries = 0;
    bool disturbs = false;  // samples in it wait for this load
  };

  void Add(const WorkerRef& ref, const Version& loaded);
  void Remove(WorkerId worker);
  // The weights that everyone is to have; `from` holds the bytes (invalid: nobody, no loads now).
  void SetTarget(const Version& v, uint64_t digest, const WorkerRef& from);

  // Loads to start. `serving`: it has samples that may go on with the weights it has; `hold`: not now;
  // `trained`: it took part in the step and has the weights already, so it loads from itself (an alias).
  std::vector<command::Load> Assign(const std::function<bool(const Place&)>& serving,
                                    const std::function<bool(const Place&)>& hold,
                                    const std::function<bool(const WorkerRef&)>& trained);
  enum class Outcome : uint8_t { kRefused, kAdmit, kRetry, kReplace };
  Outcome Loaded(const event::Loaded& e);

  [[nodiscard]] const Place* Find(WorkerId worker) const;
  [[nodiscard]] const IdMap<WorkerId, Place>& places() const { return places_; }
  [[nodiscard]] const Version& target() const { return target_; }
  [[nodiscard]] int64_t loading() const { return loading_; }

 private:
  void EndLoad(Place& p);  // requires p.loading valid

  IdMap<WorkerId, Place> places_;
  std::set<WorkerId> behind_;  // hold something else than the target
  Version target_;
  uint64_t digest_ = 0;
  WorkerRef from_;
  int64_t loading_ = 0, disturbing_ = 0;  // loading_: places with a load under way
};

}  // namespace tidepool::scheduler
