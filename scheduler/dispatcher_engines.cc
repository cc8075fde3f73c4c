// Rollout engines as the dispatcher sees them: what each serves, what is in flight on it, whom it may blame.

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "scheduler/dispatcher.h"
#include "scheduler/poison.h"

namespace tidepool::scheduler {

const Engine* Dispatcher::FindEngine(SlotId slot) const {
  const Device* d = fleet_.devices.Find(slot);
  return d == nullptr ? nullptr : d->engine();
}

Engine* Dispatcher::EngineOn(SlotId slot) {
  Device* d = fleet_.devices.Find(slot);
  return d != nullptr && d->engine_ ? &*d->engine_ : nullptr;
}

void Dispatcher::SetVersion(Engine& e, const Version& v) {
  const auto before = serving_.find(e.version);
  if (before != serving_.end() && --before->second == 0) serving_.erase(before);
  e.version = v;
  if (v.valid()) ++serving_[v];
}

void Dispatcher::LoadChanged(SlotId slot, Engine& e) {
  if (!std::exchange(e.load_changed, true)) changed_.push_back(slot);
}

void Dispatcher::SettleLoads() {
  for (const SlotId slot : changed_) {
    Engine* e = EngineOn(slot);
    if (e == nullptr || !std::exchange(e->load_changed, false)) continue;
    if (e->open())
      by_load_.Set(slot.value, {e->load(), e->reserved});
    else
      by_load_.Remove(slot.value);
  }
  changed_.clear();
}

void Dispatcher::AddEngine(SlotId slot, SlotEpoch epoch) {
  Device& d = fleet_.devices.at(slot);
  TP_CHECK(!d.engine_) << "slot " << slot.value;
  d.engine_.emplace().epoch = epoch;
}

void Dispatcher::Admit(SlotId slot, const Version& v) {
  Engine& e = *EngineOn(slot);
  SetVersion(e, v);
  e.barred &= static_cast<uint8_t>(
      ~(static_cast<uint8_t>(Engine::Bar::kLoading) | static_cast<uint8_t>(Engine::Bar::kEmptied)));
  LoadChanged(slot, e);
}

void Dispatcher::Adopt(const SampleId& tid, SlotId slot, int64_t offered, const Version& offered_by) {
  Request& r = requests_.at(tid);
  Engine& e = *EngineOn(slot);
  TakeReady(r);
  r.on = On(slot);
  r.offered = offered;
  r.offered_by = offered_by;
  const int64_t reserved = r.prompt_len + r.foreseen() +
                           std::min(options_.chunk_tokens, std::max<int64_t>(r.max_new - r.foreseen(), 0));
  e.in_flight[{tid, r.att}] = reserved;
  e.reserved += reserved;
  LoadChanged(slot, e);
  e.groups.insert(r.gid);
  groups_[r.gid].on.insert(slot);
  ++in_flight_;
}

void Dispatcher::SetBar(SlotId slot, Engine::Bar bar, bool on) {
  Engine* e = EngineOn(slot);
  if (e == nullptr) return;
  const auto bit = static_cast<uint8_t>(bar);
  e->barred = static_cast<uint8_t>(on ? e->barred | bit : e->barred & ~bit);
  LoadChanged(slot, *e);
}

void Dispatcher::SetEpoch(SlotId slot, SlotEpoch epoch) { EngineOn(slot)->epoch = epoch; }

std::vector<SampleId> Dispatcher::Blame(WorkerId worker) {
  std::set<SampleId> blamed;  // one that was taken back may be on two of its engines
  std::vector<SampleId> again;
  for (const SlotId slot : fleet_.EnginesOf(worker)) {
    const Engine* e = FindEngine(slot);
    if (e == nullptr) continue;
    for (const auto& [tid, att] : e->in_flight.SortedKeys()) {
      const auto r = requests_.find(tid);
      if (r == requests_.end() || r->second.att != att || !blamed.insert(tid).second) continue;
      r->second.crashed_at = r->second.generated;
      if (++r->second.crashes >= kPoisonDeaths) again.push_back(tid);
    }
  }
  return again;
}

bool Dispatcher::HasSuspect(SlotId near) const {
  const auto has = [&](SlotId slot) {
    const Engine* e = FindEngine(slot);
    const auto r = e == nullptr ? requests_.end() : requests_.find(e->suspect);
    return r != requests_.end() && r->second.on == On(slot) && r->second.crashes > 0;
  };
  return std::ranges::any_of(fleet_.WorkersOf(near), [&](WorkerId worker) {
    return std::ranges::any_of(fleet_.EnginesOf(worker), has);
  });
}

int64_t Dispatcher::RemoveEngine(SlotId slot) {
  Engine* e = EngineOn(slot);
  if (e == nullptr) return 0;
  const SlotRef on = On(slot);
  const auto lost = static_cast<int64_t>(e->in_flight.size());
  in_flight_ -= lost;
  by_load_.Remove(slot.value);
  for (const auto& chunk : e->in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r != requests_.end() && r->second.att == chunk.second && r->second.on == on) PutReady(r->second);
  }
  SetVersion(*e, {});
  fleet_.devices.at(slot).engine_.reset();
  return lost;
}

std::vector<std::tuple<SlotRef, SampleId, int32_t>> Dispatcher::Youngest(int64_t n) const {
  std::vector<std::tuple<int64_t, SampleId, SlotRef, int32_t>> all;
  for (const auto& [slot, d] : fleet_.devices) {
    if (d.engine() == nullptr) continue;
    for (const auto& chunk : d.engine()->in_flight.SortedKeys()) {
      const Request* r = Find(chunk.first);
      if (r != nullptr && r->att == chunk.second && r->on == On(slot) && !r->only.valid())
        all.emplace_back(r->generated, r->tid, r->on, r->att);
    }
  }
  std::sort(all.begin(), all.end());
  std::vector<std::tuple<SlotRef, SampleId, int32_t>> youngest;
  for (size_t i = 0; i < all.size() && static_cast<int64_t>(i) < n; ++i)
    youngest.emplace_back(std::get<2>(all[i]), std::get<1>(all[i]), std::get<3>(all[i]));
  return youngest;
}

std::vector<std::pair<SampleId, int32_t>> Dispatcher::TakeBack(SlotId slot) {
  std::vector<std::pair<SampleId, int32_t>> taken;
  const Engine* e = FindEngine(slot);
  if (e == nullptr) return taken;
  for (const auto& chunk : e->in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r == requests_.end() || r->second.att != chunk.second || r->second.on != On(slot) ||
        r->second.only.valid())
      continue;
    r->second.home = {};
    r->second.taken_back = true;
    PutReady(r->second);
    taken.push_back(chunk);
  }
  return taken;
}

void Dispatcher::SetSlowness(SlotId slot, int64_t slowness) {
  Engine& e = *EngineOn(slot);
  if (std::exchange(e.slowness, slowness) != slowness) LoadChanged(slot, e);
}

bool Dispatcher::NeededFor(SlotId slot) const {
  const Engine* e = FindEngine(slot);
  if (e == nullptr || !e->version.valid()) return false;
  if (!e->in_flight.empty()) return true;
  const auto same = serving_.find(e->version);
  return same != serving_.end() && same->second == 1 && PinnedReady(e->version) > 0;
}

bool Dispatcher::HasGhosts(SlotId slot) const {
  const Engine* e = FindEngine(slot);
  if (e == nullptr) return false;
  const auto chunks = e->in_flight.SortedKeys();
  return std::any_of(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    const Request* r = Find(chunk.first);
    return r == nullptr || r->att != chunk.second || r->on != On(slot);
  });
}

}  // namespace tidepool::scheduler
