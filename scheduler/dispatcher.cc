#include "scheduler/dispatcher.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::scheduler {

int64_t ChunkTokens(int64_t configured, int64_t max_new_tokens, int64_t block_tokens) {
  if (configured > 0) return configured;
  const int64_t block = std::max<int64_t>(block_tokens, 1);
  const int64_t rounded = (max_new_tokens / 20 + block - 1) / block * block;
  return std::clamp<int64_t>(rounded, 256, 2048);
}

const Request* Dispatcher::Find(const SampleId& tid) const {
  const auto it = requests_.find(tid);
  return it == requests_.end() ? nullptr : &it->second;
}

const Dispatcher::Engine* Dispatcher::FindEngine(WorkerId worker) const {
  const auto it = engines_.find(worker);
  return it == engines_.end() ? nullptr : &it->second;
}

Dispatcher::ReadyKey Dispatcher::KeyFor(const Request& r) const {
  if (r.only.valid()) return {0, -r.max_new, 0, r.tid};
  const auto it = groups_.find(r.gid);
  const int64_t longest = it == groups_.end() || it->second.longest == 0 ? r.max_new : it->second.longest;
  const int64_t remaining = std::max<int64_t>(longest - r.generated, 0);
  if (r.generated > 0) return {1, -remaining, r.gid.value, r.tid};
  if (r.probe) return {2, r.generated, r.gid.value, r.tid};
  return {3, -longest, r.gid.value, r.tid};
}

void Dispatcher::PutReady(Request& r) {
  r.on = {};
  const ReadyKey key = KeyFor(r);
  ready_.insert(key);
  ready_keys_[r.tid] = key;
}

void Dispatcher::TakeReady(const Request& r) {
  const auto it = ready_keys_.find(r.tid);
  if (it == ready_keys_.end()) return;
  ready_.erase(it->second);
  ready_keys_.erase(it);
}

void Dispatcher::Add(const Request& request) {
  TP_CHECK(!requests_.contains(request.tid)) << ToString(request.tid);
  Request& r = requests_[request.tid] = request;
  GroupInfo& g = groups_[r.gid];
  r.probe = !g.probed && g.members.empty() && !r.only.valid();
  g.probed = true;
  g.members.insert(r.tid);
  PutReady(r);
}

std::optional<WorkerRef> Dispatcher::Remove(const SampleId& tid) {
  const auto it = requests_.find(tid);
  if (it == requests_.end()) return std::nullopt;
  TakeReady(it->second);
  const WorkerRef on = it->second.on;
  const auto g = groups_.find(it->second.gid);
  if (g != groups_.end()) g->second.members.erase(tid);
  requests_.erase(it);
  if (!on.inc.valid()) return std::nullopt;
  return on;
}

bool Dispatcher::Progress(const WorkerRef& from, const SampleId& tid, int32_t att, int64_t tokens, const Version& v) {
  const auto it = requests_.find(tid);
  if (it == requests_.end() || it->second.att != att || it->second.on != from || tokens < 0) return false;
  Request& r = it->second;
  if (tokens == 0) return true;
  r.generated += tokens;
  if (!r.v_min.valid() || v < r.v_min) r.v_min = v;
  if (!r.v_max.valid() || r.v_max < v) r.v_max = v;
  return true;
}

Dispatcher::Ended Dispatcher::ChunkEnded(const WorkerRef& from, const SampleId& tid, int32_t att) {
  const auto e = engines_.find(from.worker);
  if (e == engines_.end() || e->second.ref != from) return Ended::kRefused;
  const auto chunk = e->second.in_flight.find({tid, att});
  if (chunk == e->second.in_flight.end()) return Ended::kRefused;
  e->second.reserved -= chunk->second;
  e->second.in_flight.erase(chunk);
  --in_flight_;
  const auto r = requests_.find(tid);
  if (r == requests_.end() || r->second.att != att || r->second.on != from) return Ended::kGone;
  r->second.on = {};
  return Ended::kLive;
}

void Dispatcher::Requeue(const SampleId& tid) { PutReady(requests_.at(tid)); }

void Dispatcher::LearnLength(GroupId gid, int64_t tokens) {
  const auto it = groups_.find(gid);
  if (it == groups_.end() || tokens <= it->second.longest) return;
  it->second.longest = tokens;
  for (const SampleId& tid : it->second.members) {  // their places in the order change
    Request& r = requests_.at(tid);
    if (!ready_keys_.contains(tid)) continue;
    TakeReady(r);
    PutReady(r);
  }
}

bool Dispatcher::HasRequests(GroupId gid) const {
  const auto it = groups_.find(gid);
  return it != groups_.end() && !it->second.members.empty();
}

std::vector<WorkerRef> Dispatcher::ForgetGroup(GroupId gid) {
  std::vector<WorkerRef> who;
  groups_.erase(gid);
  for (auto& [id, e] : engines_) {
    if (e.groups.erase(gid) > 0) who.push_back(e.ref);
  }
  return who;
}

void Dispatcher::AddEngine(const WorkerRef& ref, SlotId slot, LeaseEpoch epoch) {
  TP_CHECK(!engines_.contains(ref.worker)) << ToString(ref);
  Engine e;
  e.ref = ref;
  e.slot = slot;
  e.epoch = epoch;
  engines_[ref.worker] = std::move(e);
}

void Dispatcher::Admit(WorkerId worker, const Version& v) {
  Engine& e = engines_.at(worker);
  e.version = v;
  e.open = true;
}

void Dispatcher::Adopt(const SampleId& tid, const WorkerRef& on) {
  Request& r = requests_.at(tid);
  Engine& e = engines_.at(on.worker);
  TakeReady(r);
  r.on = on;
  const int64_t reserved = r.prompt_len + r.generated + std::min(options_.chunk_tokens, r.max_new - r.generated);
  e.in_flight[{tid, r.att}] = reserved;
  e.reserved += reserved;
  e.groups.insert(r.gid);
  ++in_flight_;
}

void Dispatcher::SetOpen(WorkerId worker, bool open) {
  const auto it = engines_.find(worker);
  if (it != engines_.end()) it->second.open = open && it->second.version.valid();
}

int64_t Dispatcher::RemoveEngine(WorkerId worker) {
  const auto it = engines_.find(worker);
  if (it == engines_.end()) return 0;
  const auto lost = static_cast<int64_t>(it->second.in_flight.size());
  in_flight_ -= lost;
  for (const auto& [chunk, reserved] : it->second.in_flight) {
    const auto r = requests_.find(chunk.first);
    if (r != requests_.end() && r->second.att == chunk.second && r->second.on == it->second.ref) PutReady(r->second);
  }
  engines_.erase(it);
  return lost;
}

bool Dispatcher::HasGhosts(WorkerId worker) const {
  const Engine* e = FindEngine(worker);
  if (e == nullptr) return false;
  return std::any_of(e->in_flight.begin(), e->in_flight.end(), [&](const auto& chunk) {
    const Request* r = Find(chunk.first.first);
    return r == nullptr || r->att != chunk.first.second || r->on != e->ref;
  });
}

bool Dispatcher::Fits(const Engine& e, const Request& r, int64_t tokens) const {
  if (!e.open) return false;
  if (options_.kv_cache_tokens == 0 || e.in_flight.empty()) return true;
  const int64_t prompt = e.groups.contains(r.gid) ? 0 : r.prompt_len;  // siblings share it
  return e.reserved + prompt + r.generated + tokens <= options_.kv_cache_tokens;
}

Dispatcher::Engine* Dispatcher::Place(const Request& r, int64_t tokens,
                                      const std::function<bool(const Version&)>& may_serve) {
  int64_t usable = 0;
  Engine* least = nullptr;
  const auto ok = [&](const Engine& e) {
    return (r.only.valid() ? e.version == r.only : may_serve(e.version)) && Fits(e, r, tokens);
  };
  for (auto& [id, e] : engines_) {
    if (e.open) ++usable;
    if (ok(e) && (least == nullptr || e.in_flight.size() < least->in_flight.size())) least = &e;
  }
  if (least == nullptr) return nullptr;
  const auto share = (static_cast<int64_t>(requests_.size()) + usable - 1) / usable;
  const auto group = groups_.find(r.gid);
  for (const WorkerId home : {r.home, group == groups_.end() ? WorkerId{} : group->second.home}) {
    const auto it = engines_.find(home);
    if (it != engines_.end() && ok(it->second) && static_cast<int64_t>(it->second.in_flight.size()) < share) return &it->second;
  }
  return least;
}

std::vector<Dispatcher::Chunk> Dispatcher::Assign(const std::function<bool(const Version&)>& may_serve) {
  std::vector<Chunk> chunks;
  if (ready_.empty()) return chunks;
  bool training_full = false;
  for (auto it = ready_.begin(); it != ready_.end() && in_flight_ < options_.max_concurrent;) {
    Request& r = requests_.at(std::get<3>(*it));
    if (training_full && !r.only.valid()) break;
    const int64_t tokens = std::min(options_.chunk_tokens, r.max_new - r.generated);
    Engine* e = Place(r, tokens, may_serve);
    if (e == nullptr) {
      // What does not fit now will not fit behind it either, but another version's evaluation may.
      if (!r.only.valid()) training_full = true;
      ++it;
      continue;
    }
    it = ready_.erase(it);
    ready_keys_.erase(r.tid);
    const int64_t prompt = e->groups.contains(r.gid) ? 0 : r.prompt_len;
    const int64_t reserved = prompt + r.generated + tokens;
    e->in_flight[{r.tid, r.att}] = reserved;
    e->reserved += reserved;
    e->groups.insert(r.gid);
    r.on = e->ref;
    r.home = e->ref.worker;
    groups_[r.gid].home = e->ref.worker;
    ++in_flight_;
    ++chunks_;
    chunks.push_back({r.tid, e->ref, e->version, tokens});
  }
  return chunks;
}

}  // namespace tidepool::scheduler
