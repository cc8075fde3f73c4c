// Rollout engines as the dispatcher sees them: what each serves, what is in flight on it, whom it may blame.

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "scheduler/dispatcher.h"
#include "scheduler/poison.h"

namespace tidepool::scheduler {

const Engine* Dispatcher::FindEngine(WorkerId worker) const {
  const Worker* w = fleet_.Find(worker);
  return w == nullptr ? nullptr : w->engine();
}

Worker* Dispatcher::WithEngine(WorkerId worker) {
  Worker* w = fleet_.Find(worker);
  return w != nullptr && w->engine_ ? w : nullptr;
}

void Dispatcher::SetVersion(Engine& e, const Version& v) {
  const auto before = serving_.find(e.version);
  if (before != serving_.end() && --before->second == 0) serving_.erase(before);
  e.version = v;
  if (v.valid()) ++serving_[v];
}

void Dispatcher::LoadChanged(Worker& w) {
  if (!std::exchange(w.engine_->load_changed, true)) changed_.push_back(w.ref().worker);
}

void Dispatcher::SettleLoads() {
  for (const WorkerId id : changed_) {
    Worker* w = WithEngine(id);
    if (w == nullptr || !std::exchange(w->engine_->load_changed, false)) continue;
    if (w->engine_->open())
      by_load_.Set(id.value, {w->engine_->load(), w->engine_->reserved});
    else
      by_load_.Remove(id.value);
  }
  changed_.clear();
}

void Dispatcher::AddEngine(WorkerId worker, SlotId slot, SlotEpoch epoch) {
  Worker& w = fleet_.at(worker);
  TP_CHECK(!w.engine_) << ToString(w.ref());
  w.engine_.emplace();
  w.engine_->slot = slot;
  w.engine_->epoch = epoch;
}

void Dispatcher::Admit(WorkerId worker, const Version& v) {
  Worker& w = fleet_.at(worker);
  SetVersion(*w.engine_, v);
  w.engine_->barred &= static_cast<uint8_t>(
      ~(static_cast<uint8_t>(Engine::Bar::kLoading) | static_cast<uint8_t>(Engine::Bar::kEmptied)));
  LoadChanged(w);
}

void Dispatcher::Adopt(const SampleId& tid, const WorkerRef& on, int64_t offered, const Version& offered_by) {
  Request& r = requests_.at(tid);
  Worker& w = fleet_.at(on.worker);
  Engine& e = *w.engine_;
  TakeReady(r);
  r.on = on;
  r.offered = offered;
  r.offered_by = offered_by;
  const int64_t reserved = r.prompt_len + r.foreseen() +
                           std::min(options_.chunk_tokens, std::max<int64_t>(r.max_new - r.foreseen(), 0));
  e.in_flight[{tid, r.att}] = reserved;
  e.reserved += reserved;
  LoadChanged(w);
  e.groups.insert(r.gid);
  groups_[r.gid].on.insert(on.worker);
  ++in_flight_;
}

void Dispatcher::SetBar(WorkerId worker, Engine::Bar bar, bool on) {
  Worker* w = WithEngine(worker);
  if (w == nullptr) return;
  const auto bit = static_cast<uint8_t>(bar);
  uint8_t& barred = w->engine_->barred;
  barred = static_cast<uint8_t>(on ? barred | bit : barred & ~bit);
  LoadChanged(*w);
}

void Dispatcher::SetEpoch(WorkerId worker, SlotEpoch epoch) { fleet_.at(worker).engine_->epoch = epoch; }

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

bool Dispatcher::HasSuspect(const Worker& w) const {
  const auto r = requests_.find(w.engine_->suspect);
  return r != requests_.end() && r->second.on == w.ref() && r->second.crashes > 0;
}

int64_t Dispatcher::RemoveEngine(WorkerId worker) {
  Worker* w = WithEngine(worker);
  if (w == nullptr) return 0;
  const auto lost = static_cast<int64_t>(w->engine_->in_flight.size());
  in_flight_ -= lost;
  by_load_.Remove(worker.value);
  for (const auto& chunk : w->engine_->in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r != requests_.end() && r->second.att == chunk.second && r->second.on == w->ref())
      PutReady(r->second);
  }
  SetVersion(*w->engine_, {});
  w->engine_.reset();
  return lost;
}

std::vector<std::tuple<WorkerRef, SampleId, int32_t>> Dispatcher::Youngest(int64_t n) const {
  std::vector<std::tuple<int64_t, SampleId, WorkerRef, int32_t>> all;
  for (const auto& [id, w] : fleet_) {
    if (w.engine() == nullptr) continue;
    for (const auto& chunk : w.engine()->in_flight.SortedKeys()) {
      const Request* r = Find(chunk.first);
      if (r != nullptr && r->att == chunk.second && r->on == w.ref() && !r->only.valid())
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
  const Worker* w = WithEngine(worker);
  if (w == nullptr) return taken;
  for (const auto& chunk : w->engine()->in_flight.SortedKeys()) {
    const auto r = requests_.find(chunk.first);
    if (r == requests_.end() || r->second.att != chunk.second || r->second.on != w->ref() ||
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
  Worker& w = fleet_.at(worker);
  if (std::exchange(w.engine_->slowness, slowness) != slowness) LoadChanged(w);
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
    return r == nullptr || r->att != chunk.second || r->on != fleet_.at(worker).ref();
  });
}

}  // namespace tidepool::scheduler
