// The checker on weights: published, loaded, admitted.

#include "scheduler/checker_state.h"

namespace tidepool::scheduler {

bool Checker::State::On(const record::Publish& x) {
  if (!published.insert(x.v).second) return Violation("W1", ToString(x.v) + " is published twice");
  const auto last = last_published.find(x.v.lineage);
  if (last != last_published.end() && x.v.number <= last->second)
    return Violation("W1", ToString(x.v) + " follows number " + std::to_string(last->second));
  last_published[x.v.lineage] = x.v.number;
  if (x.v != current)
    return Violation("W5", ToString(x.v) + " is published, committed is " + ToString(current));
  const auto c = committed.find(x.v);
  if (c == committed.end() && x.v.number != 0) return Violation("W5", ToString(x.v) + " was not committed");
  if (c != committed.end() && c->second != x.digest)
    return Violation("W5", ToString(x.v) + " is published with other weights than were committed");
  SetPath(x.v, x.digest);
  newest = x.v;
  for (const int64_t id : slots.SortedKeys()) {
    const SlotState& s = slots.at(id);
    if (s.role == Role::kRollout && !behind.contains(id)) Follow(id);
  }
  return true;
}

Checker::State::SlotState* Checker::State::Engine(const SlotRef& place, const char* what) {
  if (!Trusted(place.worker, what)) return nullptr;
  SlotState* s = Slot(place.slot);
  if (s == nullptr || s->owner == place.worker) return s;
  Violation("G1", Called(place.worker) + " has no slot " + std::to_string(place.slot.value));
  return nullptr;
}

bool Checker::State::On(const record::Loaded& x) {
  SlotState* found = Engine(PlaceOf(x), "load");
  if (found == nullptr) return false;
  SlotState& w = *found;
  if (!published.contains(x.v)) return Violation("W3", ToString(x.v) + " is loaded, but not published");
  // In a new life of the controller the same version may be loaded again: what was in the worker's memory by
  // then was nothing that could be trusted.
  const bool again = w.loaded == x.v && w.loaded_epoch != now->ctl_epoch;
  if (w.loaded.valid() && !(w.loaded < x.v) && !again)
    return Violation("W2", Called(x.worker) + " loads " + ToString(x.v) + " after " + ToString(w.loaded));
  if (At(x.v, x.v.number) != x.digest)
    return Violation("W3", Called(x.worker) + " loaded other weights than " + ToString(x.v));
  w.loaded = x.v;
  w.loaded_epoch = now->ctl_epoch;
  return true;
}

bool Checker::State::On(const record::Admit& x) {
  SlotState* found = Engine(PlaceOf(x), "admission");
  if (found == nullptr) return false;
  SlotState& w = *found;
  if (!w.loaded.valid())
    return Violation("W3",
                     Called(x.worker) + " is admitted at " + ToString(x.v) + " without having loaded it");
  // An engine is one process (its tensor-parallel ranks, if any, report through it), so its newest LOADED
  // stands for all shards.
  if (w.loaded != x.v)
    return Violation("W4", Called(x.worker) + " is admitted at " + ToString(x.v) + ", but its shards hold " +
                               ToString(w.loaded));
  w.admitted = x.v;
  Follow(PlaceOf(x).slot.value);
  return true;
}

// Behind is who may generate with other weights than the newest. The time counts from the last thing that it
// did: its publication, a grant, an admission, a chunk that it was still given (pinned samples finish on
// their version).
void Checker::State::Follow(int64_t slot) {
  behind.erase(slot);
  if (config->stall_ms <= 0 || !newest.valid()) return;
  const SlotState& s = slots[slot];
  if (!s.owner.inc.valid() || s.holder != s.owner || s.role != Role::kRollout || s.transition >= 0 ||
      !s.admitted.valid() || s.admitted == newest)
    return;
  behind[slot] = now->mono_ns;
  behind_due_ns = std::min(behind_due_ns, now->mono_ns);
}

bool Checker::State::EnginesFollow() {
  if (behind.empty() || now->mono_ns < behind_due_ns) return true;
  uint64_t oldest = UINT64_MAX;
  for (const auto& [slot, since] : behind) {
    if (Stuck(since)) {
      const SlotState& s = slots.at(slot);
      return Violation("W7", Called(s.holder) + " still serves " + ToString(s.admitted) + ", " +
                                 ToString(newest) + " was published longer than " +
                                 std::to_string(config->stall_ms) + " ms ago");
    }
    oldest = std::min(oldest, since);
  }
  behind_due_ns = oldest + static_cast<uint64_t>(config->stall_ms) * 1000000;
  return true;
}

}  // namespace tidepool::scheduler
