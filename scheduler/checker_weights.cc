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
    if (s.role == Role::kRollout && !behind.contains(s.holder)) Follow(s.holder);
  }
  return true;
}

bool Checker::State::On(const record::Loaded& x) {
  if (!Trusted(x.worker, "load")) return false;
  WorkerState& w = workers.at(x.worker);
  if (!published.contains(x.v)) return Violation("W3", ToString(x.v) + " is loaded, but not published");
  // In a new life of the controller the same version may be loaded again: what was in the worker's memory by
  // then was nothing that could be trusted.
  const bool again = w.loaded == x.v && w.loaded_epoch != now->ctl_epoch;
  if (w.loaded.valid() && !(w.loaded < x.v) && !again)
    return Violation("W2", ToString(x.worker) + " loads " + ToString(x.v) + " after " + ToString(w.loaded));
  if (At(x.v, x.v.number) != x.digest)
    return Violation("W3", ToString(x.worker) + " loaded other weights than " + ToString(x.v));
  w.loaded = x.v;
  w.loaded_epoch = now->ctl_epoch;
  return true;
}

bool Checker::State::On(const record::Admit& x) {
  if (!Trusted(x.worker, "admission")) return false;
  WorkerState& w = workers.at(x.worker);
  if (!w.loaded.valid())
    return Violation("W3",
                     ToString(x.worker) + " is admitted at " + ToString(x.v) + " without having loaded it");
  // An engine is one process (its tensor-parallel ranks, if any, report through it), so its newest LOADED
  // stands for all shards.
  if (w.loaded != x.v)
    return Violation("W4", ToString(x.worker) + " is admitted at " + ToString(x.v) +
                               ", but its shards hold " + ToString(w.loaded));
  w.admitted = x.v;
  Follow(x.worker);
  return true;
}

// Behind is who may generate with other weights than the newest. The time counts from the last thing that it
// did: its publication, a grant, an admission, a chunk that it was still given (pinned samples finish on
// their version).
void Checker::State::Follow(const WorkerRef& ref) {
  behind.erase(ref);
  if (config->stall_ms <= 0 || !newest.valid()) return;
  const auto w = workers.find(ref);
  const auto held = slot_of.find(ref.worker);
  if (w == workers.end() || w->second.fenced || !w->second.admitted.valid() || w->second.admitted == newest ||
      held == slot_of.end())
    return;
  const SlotState& s = slots[held->second];
  if (s.holder != ref || s.role != Role::kRollout || s.transition >= 0) return;
  behind[ref] = now->mono_ns;
  behind_due_ns = std::min(behind_due_ns, now->mono_ns);
}

bool Checker::State::EnginesFollow() {
  if (behind.empty() || now->mono_ns < behind_due_ns) return true;
  uint64_t oldest = UINT64_MAX;
  for (const auto& [ref, since] : behind) {
    if (Stuck(since)) {
      return Violation("W7", ToString(ref) + " still serves " + ToString(workers.at(ref).admitted) + ", " +
                                 ToString(newest) + " was published longer than " +
                                 std::to_string(config->stall_ms) + " ms ago");
    }
    oldest = std::min(oldest, since);
  }
  behind_due_ns = oldest + static_cast<uint64_t>(config->stall_ms) * 1000000;
  return true;
}

}  // namespace tidepool::scheduler
