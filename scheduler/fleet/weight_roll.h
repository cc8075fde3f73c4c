#pragma once
// New weights to the rollout engines, one by one: Load, compare the digest that the worker computed with
// the published one, LOADED, ADMIT. A worker with samples in it is taken out only if at most max(1, 25 %) of
// such ones are loading; one that serves nothing (fresh, idle, or too old) loads at once. A wrong digest or
// an error is tried again twice, then the worker is replaced.
//
// A load is of weights that are on the worker's host. On the trainer's that is what it published. To every
// other host one of its workers pulls them (Pull, Pulled), while its engine goes on with what it has; the
// rest of the host load them from there. A pull that has begun ends, whatever is published meanwhile, and
// what it brings is loaded if it may still be served; only one that has become too old is called off, for the
// newest.
//
// Whoever has the weights, or is getting them, passes them on: a pull takes the source that fewest others
// read from, so hosts form a chain, the trainer sends the weights once, and all receive at the same time. A
// host that is late takes part in what the others are getting. A source that fails is not asked again for
// those weights while there is another one, and costs its reader no try unless it is the trainer.
//
// It changes Device::weights. Pure; not thread-safe.

#include <cstdint>
#include <functional>
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
  // What the caller knows and this class asks.
  struct Conditions {
    std::function<bool(SlotId)> serving;            // it has samples that may go on with the weights it has
    std::function<bool(SlotId)> hold;               // not now
    std::function<bool(const SlotRef&)> trained;    // it took part in the step and has the newest weights
    std::function<bool(const Version&)> may_serve;  // not too old: what it generates may be trained on
  };
  struct Orders {
    std::vector<command::Load> loads;
    std::vector<command::Pull> pulls;
  };
  // kDone: the weights are there, and are to be served (Loaded) or loaded (Pulled). kOvertaken: a newer
  // version was published meanwhile, and these are of no use any more. kRetry: they are not the right ones,
  // or could not be had; where nobody else can be blamed it is kReplace the third time in a row.
  enum class Outcome : uint8_t { kRefused, kDone, kOvertaken, kRetry, kReplace };

  WeightRoll(Fleet& fleet, Conditions conditions) : fleet_(fleet), ask_(std::move(conditions)) {}

  // The slot's memory holds these weights, as was verified; invalid: nothing that anyone verified, because
  // its worker is new, or its trainer writes there.
  void Holds(SlotId slot, const Version& verified);
  void Add(SlotId slot);  // its engine is to get the newest weights from now on
  void Remove(SlotId slot);
  // The weights that everyone is to have; `from` holds the bytes (invalid: nobody, nothing begins now).
  // `copied`: where others can read them; else engines that have trained them load, and no others.
  void SetTarget(const Version& v, uint64_t digest, const SlotRef& from, bool copied = true);

  // What is to begin. A slot that trained the weights loads from itself (an alias). A pull takes the place of
  // one that the same worker was told before.
  Orders Assign();
  Outcome Loaded(const event::Loaded& e);
  Outcome Pulled(const event::Pulled& e);  // requires e.whole or an error
  // The newest weights that work in this slot may wait for. Those are the target's, but behind a link on
  // which a version takes longer than a step what its host has; invalid: nothing.
  [[nodiscard]] Version InSight(SlotId slot) const;
  // The slot is bringing weights to its host.
  [[nodiscard]] bool Pulls(const SlotRef& ref) const;

  [[nodiscard]] int64_t loading() const { return state_.loading; }
  // An engine is behind that has not trained the target: it needs a copy.
  [[nodiscard]] bool NeedsCopy() const;

 private:
  struct Target {
    Version v;
    uint64_t digest = 0;
    SlotRef from;
  };
  // What a host other than the trainer's has and gets.
  struct Host {
    Target has;   // whole there; `from` brought it, and serves it.  v invalid: nothing, as far as is known
    Target gets;  // `from` is its source.  v invalid: nothing
    SlotRef by;   // who pulls it
    std::set<SlotRef> failed;  // sources that did not give what they were asked for, since the last that did
    int64_t tries = 0;         // pulls from the trainer that failed in a row
    std::optional<SlotId> needs;  // within Assign: the first slot that lacks the target
  };
  struct State {
    Target target;
    bool copied = true;
    std::vector<Host> hosts;  // by Fleet::HostNumber
    std::set<SlotId> behind;  // followers that hold something else than the target
    int64_t followers = 0;
    int64_t loading = 0, disturbing = 0;  // loading: followers with a load under way
    bool settled = false;                 // nothing can begin until something is said to this class
  };

  void Set(SlotId slot, Weights& w, const Version& verified);
  void EndLoad(Weights& w);  // requires w.loading valid
  [[nodiscard]] bool Lacks(SlotId slot) const;
  Host& HostOf(SlotId slot);
  void ForgetTheDead();
  // What `slot` can load just now; v invalid: nothing.
  Target Available(SlotId slot);
  std::optional<command::Pull> PullTo(int64_t host);
  // Whether `host` is where the source of `of` has its weights from, and so on up to who has them.
  [[nodiscard]] bool Follows(const Host& of, int64_t host) const;

  Fleet& fleet_;
  Conditions ask_;
  State state_;
};

}  // namespace tidepool::scheduler
