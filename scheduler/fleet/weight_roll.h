#pragma once
// New weights to the rollout engines, one by one: Load, compare the digest that the worker computed with
// the published one, LOADED, ADMIT. A worker with samples in it is taken out only if at most max(1, 25 %) of
// such ones are loading; one that serves nothing (fresh, idle, or too old) loads at once. A wrong digest or
// an error is tried again twice, then the worker is replaced.
//
// Workers on the trainer's host read what it published there. On every other host one of them pulls the
// weights from another host, and the rest wait until they are there. Whoever has the weights, or is getting
// them, passes them on: a pull takes the source that fewest others read from, so hosts form a chain, the
// trainer sends the weights once, and all receive at the same time. A source that fails costs its reader no
// try: it asks the trainer next.
//
// It changes Device::weights. Pure; not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/ids.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "scheduler/fleet/fleet.h"

namespace tidepool::scheduler {

class WeightRoll {
 public:
  explicit WeightRoll(Fleet& fleet) : fleet_(fleet) {}

  // The slot's memory holds these weights, as was verified; invalid: nothing that anyone verified, because
  // its worker is new, or its trainer writes there.
  void Holds(SlotId slot, const Version& verified);
  void Add(SlotId slot);  // its engine is to get the newest weights from now on
  void Remove(SlotId slot);
  // The weights that everyone is to have; `from` holds the bytes (invalid: nobody, no loads now).
  void SetTarget(const Version& v, uint64_t digest, const SlotRef& from);

  // Loads to start. `serving`: it has samples that may go on with the weights it has; `hold`: not now;
  // `trained`: it took part in the step and has the weights already, so it loads from itself (an alias).
  std::vector<command::Load> Assign(const std::function<bool(SlotId)>& serving,
                                    const std::function<bool(SlotId)>& hold,
                                    const std::function<bool(const SlotRef&)>& trained);
  // kOvertaken: a newer version was published while this one was fetched, and is loaded now. kRetry: the
  // digest is another one, or the newest version could not be fetched; the third time in a row it is
  // kReplace.
  enum class Outcome : uint8_t { kRefused, kAdmit, kOvertaken, kRetry, kReplace };
  Outcome Loaded(const event::Loaded& e);

  [[nodiscard]] int64_t loading() const { return loading_; }

 private:
  void Set(SlotId slot, Weights& w, const Version& verified);
  void EndLoad(Weights& w);  // requires w.loading valid
  // Who has the target or gets it, as of now: one look at all slots serves a whole Assign.
  struct Sources {
    struct Host {
      SlotRef has;         // the first slot there that has it; inc invalid: none
      bool comes = false;  // to a slot there, just now
    };
    std::vector<Host> hosts;            // by Fleet::HostNumber
    std::set<SlotId> pulls;             // the trainer, and who brought it to another host, or does so
    std::map<SlotId, int64_t> readers;  // how many slots of other hosts read from each
  };
  [[nodiscard]] Sources LookAround() const;
  void Note(SlotId slot, Sources& sources) const;  // what `slot` has or gets
  // Who gives it the weights; none: they come to its host just now, and it waits.
  [[nodiscard]] std::optional<SlotRef> SourceOf(SlotId slot, std::optional<Sources>& sources) const;

  Fleet& fleet_;
  int64_t followers_ = 0;
  std::set<SlotId> behind_;  // followers that hold something else than the target
  Version target_;
  uint64_t digest_ = 0;
  SlotRef from_;
  int64_t loading_ = 0, disturbing_ = 0;  // loading_: followers with a load under way
};

}  // namespace tidepool::scheduler
