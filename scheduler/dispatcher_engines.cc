// Rollout engines as the dispatcher sees them: what each serves, what is in flight on it, whom it may blame.

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "scheduler/dispatcher.h"
#include "scheduler/poison.h"

namespace tidepool::scheduler {

const Dispatcher::Engine* Dispatcher::FindEngine(WorkerId worker) const { return engines_.Find(worker); }

void Dispatcher::SetVersion(Engine& e, const Version& v) {
  const auto before = serving_.find(e.version);
  if (before != serving_.end() && --before->second == 0) serving_.erase(before);
  e.version = v;
  if (v.valid()) ++serving_[v];
}

void Dispatcher::LoadChanged(Engine& e) {
  if (!e.load_changed) changed_.push_back(e.ref.worker);
  e.load_changed = true;
}

void Dispatcher::SettleLoads() {
  for (const WorkerId id : changed_) {
    Engine* e = engines_.Find(id);
    if (e == nullptr || !std::exchange(e->load_changed, false)) continue;
    if (e->open())
      by_load_.Set(id.value, {Load(*e), e->reserved});
    else
      by_load_.Remove(id.value);
  }
  changed_.clear();
}

void Dispatcher::AddEngine(const WorkerRef& ref, SlotId slot, LeaseEpoch epoch) {
  TP_CHECK(!engines_.contains(ref.worker)) << ToString(ref);
  Engine e;
  e.ref = ref;
  e.slot = slot;
  e.epoch = epoch;
  engines_.Insert(ref.worker, std::move(e));
}

void Dispatcher::Admit(WorkerId worker, const Version& v) {
  Engine& e = engines_.at(worker);
  SetVersion(e, v);
  e.barred &=
      static_cast<uint8_t>(~(static_cast<uint8_t>(Bar::kLoading) | static_cast<uint8_t>(Bar::kEmptied)));
  LoadChanged(e);
}

void Dispatcher::Adopt(const SampleId& tid, const WorkerRef& on, int64_t offered, const Version& offered_by) {
  Request& r = requests_.at(tid);
  Engine& e = engines_.at(on.worker);
  TakeReady(r);
  r.on = on;
  r.offered = offered;
  r.offered_by = offered_by;
  const int64_t reserved = r.prompt_len + r.foreseen() +
                           std::min(options_.chunk_tokens, std::max<int64_t>(r.max_new - r.foreseen(), 0));
  e.in_flight[{tid, r.att}] = reserved;
  e.reserved += reserved;
  LoadChanged(e);
  e.groups.insert(r.gid);
  groups_[r.gid].on.insert(on.worker);
  ++in_flight_;
}

void Dispatcher::SetBar(WorkerId worker, Bar bar, bool on) {
  const auto it = engines_.find(worker);
  if (it == engines_.end()) return;
  const auto bit = static_cast<uint8_t>(bar);
  it->second.barred = static_cast<uint8_t>(on ? it->second.barred | bit : it->second.barred & ~bit);
  LoadChanged(it->second);
}

void Dispatcher::SetEpoch(WorkerId worker, LeaseEpoch epoch) { engines_.at(worker).epoch = epoch; }

std::vector<SampleId> Dispatcher::Blame(WorkerId worker) {
  std::vector<SampleId> again;
  const Engine* e = FindEngine(worker);
  if (e == nullptr) return again;
  for (const auto& [tid, att] : e->in_flight.SortedKeys()) {
    const auto r = requests_.find(tid);
    if (r == requests_.end() || r->second.att != att) continue;
    r->second.crashed_at = r->second.generated;
    if (++r->second.crashes >= kPoisonDeaths) again.push_back(tid);
  }
  return again;
}

bool Dispatcher::HasSuspect(const Engine& e) const {
  const auto r = requests_.find(e.suspect);
  return r != requests_.end() && r->second.on == e.ref && r->second.crashes > 0;
}

int64_t Dispatcher::RemoveEngine(WorkerId worker) {
  const auto it = engines_.find(worker);
  if (it == engines_.end()) return 0;
  const auto lost = static_cast<int64_t>(it->second.in_flight.size());
  in_flight_ -= lost;
  by_load_.Remove(worker.value);
  for (const auto& chunk : it->second.in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r != requests_.end() && r->second.att == chunk.second && r->second.on == it->second.ref)
      PutReady(r->second);
  }
  SetVersion(it->second, {});
  engines_.erase(worker);
  return lost;
}

std::vector<std::tuple<WorkerRef, SampleId, int32_t>> Dispatcher::Youngest(int64_t n) const {
  std::vector<std::tuple<int64_t, SampleId, WorkerRef, int32_t>> all;
  for (const auto& [id, e] : engines_) {
    for (const auto& chunk : e.in_flight.SortedKeys()) {
      const Request* r = Find(chunk.first);
      if (r != nullptr && r->att == chunk.second && r->on == e.ref && !r->only.valid())
        all.emplace_back(r->generated, r->tid, r->on, r->att);
    }
  }
  std::sort(all.begin(), all.end());
  std::vector<std::tuple<WorkerRef, SampleId, int32_t>> youngest;
  for (size_t i = 0; i < all.size() && static_cast<int64_t>(i) < n; ++i)
    youngest.emplace_back(std::get<2>(all[i]), std::get<1>(all[i]), std::get<3>(all[i]));
  return youngest;
}

std::vector<std::pair<SampleId, int32_t>> Dispatcher::TakeBack(WorkerId worker) {
  std::vector<std::pair<SampleId, int32_t>> taken;
  const auto it = engines_.find(worker);
  if (it == engines_.end()) return taken;
  for (const auto& chunk : it->second.in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r == requests_.end() || r->second.att != chunk.second || r->second.on != it->second.ref ||
        r->second.only.valid())
      continue;
    r->second.home = {};
    r->second.taken_back = true;
    PutReady(r->second);
    taken.push_back(chunk);
  }
  return taken;
}

void Dispatcher::SetSlowness(WorkerId worker, int64_t slowness) {
  Engine& e = engines_.at(worker);
  if (e.slowness == slowness) return;
  e.slowness = slowness;
  LoadChanged(e);
}

bool Dispatcher::NeededFor(WorkerId worker) const {
  const Engine* e = FindEngine(worker);
  if (e == nullptr || !e->version.valid()) return false;
  if (!e->in_flight.empty()) return true;
  const auto same = serving_.find(e->version);
  return same != serving_.end() && same->second == 1 && PinnedReady(e->version) > 0;
}

bool Dispatcher::HasGhosts(WorkerId worker) const {
  const Engine* e = FindEngine(worker);
  if (e == nullptr) return false;
  const auto chunks = e->in_flight.SortedKeys();
  return std::any_of(chunks.begin(), chunks.end(), [&](const auto& chunk) {
    const Request* r = Find(chunk.first);
    return r == nullptr || r->att != chunk.second || r->on != e->ref;
  });
}

}  // namespace tidepool::scheduler
