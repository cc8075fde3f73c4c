#include "scheduler/dispatcher.h"

#include <algorithm>
#include <iterator>

#include "core/base/check.h"
#include "scheduler/poison.h"

namespace tidepool::scheduler {
namespace {

constexpr int64_t kUneven = 32;  // Seer
constexpr int64_t kSlack =
    32;  // its part of a share may be above it: of 1/8, 1/16, 1/32 and none the best in all Seer workloads
constexpr int64_t kStarvation = 16;
// Tokens after which a sample is not blamed for a worker that died with it: more than can be on their way to
// the controller when a worker dies.
constexpr int64_t kCleared = 16;
constexpr int kRest = 4, kTooLate = 5;  // the last classes of the order

}  // namespace

int64_t ChunkTokens(int64_t configured, int64_t max_new_tokens, int64_t block_tokens) {
  if (configured > 0) return configured;
  const int64_t block = std::max<int64_t>(block_tokens, 1);
  const int64_t rounded = (max_new_tokens / 20 + block - 1) / block * block;
  return std::clamp<int64_t>(rounded, 256, 2048);
}

const Request* Dispatcher::Find(const SampleId& tid) const {
  const auto* found = requests_.find(tid);
  return found == nullptr ? nullptr : &found->second;
}

const Dispatcher::Engine* Dispatcher::FindEngine(WorkerId worker) const { return engines_.Find(worker); }

int64_t Dispatcher::Expected(const Request& r) const {
  if (options_.oracle) return options_.oracle(r.tid);
  const auto it = groups_.find(r.gid);
  const int64_t longest = it == groups_.end() ? 0 : it->second.longest;
  if (lengths_.mode() != SiblingMode::kIgnore) return longest == 0 ? r.max_new : longest;
  return r.foreseen() + static_cast<int64_t>(lengths_.ResidualLife(
                            r.foreseen(), static_cast<double>(r.max_new - r.foreseen())));
}

int64_t Dispatcher::LikelyLeft(const Request& r) const {
  const int64_t most = std::max<int64_t>(1, r.max_new - r.foreseen());
  const auto it = groups_.find(r.gid);
  const int64_t sibling = options_.oracle       ? options_.oracle(r.tid)
                          : it == groups_.end() ? 0
                                                : it->second.longest;
  const auto residual =
      static_cast<int64_t>(lengths_.ResidualLife(r.foreseen(), static_cast<double>(most) / 2));
  return std::clamp<int64_t>(
      options_.oracle ? sibling - r.foreseen() : std::max(sibling - r.foreseen(), residual), 1, most);
}

ReadyKey Dispatcher::KeyFor(const Request& r) const {
  if (r.only.valid()) return {0, -r.max_new, 0, r.tid};
  if (too_late_.contains(r.gid)) return {kTooLate, 0, r.gid.value, r.tid};
  if (options_.order == DispatchOptions::Order::kArrival)
    return {kRest, r.gid.value, r.generated > 0 ? 0 : 1, r.tid};
  const int64_t left = std::max<int64_t>(Expected(r) - r.generated, 0);
  if (urgent_.contains(r.gid)) return {1, -left, r.gid.value, r.tid};
  const bool probe = r.probe && lengths_.mode() == SiblingMode::kContext && !options_.oracle;
  if (probe) return {2, r.generated, r.gid.value, r.tid};
  if (r.warm) return {3, -left, 0, r.tid};
  return {kRest, -left, r.generated > 0 ? 0 : 1, r.tid};
}

void Dispatcher::PutReady(Request& r) {
  r.on = {};
  r.offered = 0;
  r.offered_by = {};
  r.place = KeyFor(r);
  r.ready = true;
  ready_[Line(r)].insert(r.place);
  if (r.only.valid()) return;
  GroupInfo& g = groups_[r.gid];
  if (!g.ready.empty()) least_served_.erase({g.ratio, r.gid});
  g.ready.insert(r.tid);
  g.ratio = static_cast<double>(g.served) /
            static_cast<double>(std::max<int64_t>(g.size * (g.longest == 0 ? r.max_new : g.longest), 1));
  least_served_.insert({g.ratio, r.gid});
}

void Dispatcher::TakeReady(Request& r) {
  if (!r.ready) return;
  r.ready = false;
  ready_[Line(r)].erase(r.place);
  const auto g = groups_.find(r.gid);
  if (r.only.valid() || g == groups_.end()) return;
  g->second.ready.erase(r.tid);
  if (g->second.ready.empty()) least_served_.erase({g->second.ratio, r.gid});
}

void Dispatcher::Rekey(const SampleId& tid) {
  Request& r = requests_.at(tid);
  if (!r.ready) return;
  TakeReady(r);
  PutReady(r);
}

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

void Dispatcher::SetUrgent(const std::set<GroupId>& urgent, const std::set<GroupId>& too_late) {
  std::set<GroupId> changed;
  std::set_symmetric_difference(urgent_.begin(), urgent_.end(), urgent.begin(), urgent.end(),
                                std::inserter(changed, changed.end()));
  std::set_symmetric_difference(too_late_.begin(), too_late_.end(), too_late.begin(), too_late.end(),
                                std::inserter(changed, changed.end()));
  urgent_ = urgent;
  too_late_ = too_late;
  for (const GroupId gid : changed) {
    const auto g = groups_.find(gid);
    if (g == groups_.end()) continue;
    for (const SampleId& tid : SmallSet(g->second.members)) Rekey(tid);
  }
}

int64_t Dispatcher::ExpectedLeft(GroupId gid) const {
  const auto g = groups_.find(gid);
  int64_t most = 0;
  if (g == groups_.end()) return 0;
  for (const SampleId& tid : g->second.members) {
    const Request& r = requests_.at(tid);
    most = std::max(most, ExpectedLeft(r));
  }
  return most;
}

void Dispatcher::Add(const Request& request) {
  TP_CHECK(!requests_.contains(request.tid)) << ToString(request.tid);
  Request& r = requests_[request.tid] = request;
  GroupInfo& g = groups_[r.gid];
  r.probe = !g.probed && g.members.empty() && !r.only.valid();
  g.probed = true;
  g.members.insert(r.tid);
  ++g.size;
  if (r.waiting_env) {
    ++waiting_env_;
  } else {
    PutReady(r);
  }
}

void Dispatcher::WaitEnv(const SampleId& tid) {
  Request& r = requests_.at(tid);
  r.waiting_env = true;
  ++r.turn;
  ++waiting_env_;
}

void Dispatcher::Resume(const SampleId& tid, int64_t observation, int64_t turn_tokens) {
  Request& r = requests_.at(tid);
  r.waiting_env = false;
  --waiting_env_;
  if (r.turn == 0) {
    r.prompt_len = observation;
  } else {
    r.generated += observation;
    observed_ += observation;
  }
  r.turn_end = turn_tokens > 0 ? r.generated + turn_tokens : 0;
  PutReady(r);
}

std::optional<WorkerRef> Dispatcher::Remove(const SampleId& tid) {
  const auto it = requests_.find(tid);
  if (it == requests_.end()) return std::nullopt;
  TakeReady(it->second);
  const WorkerRef on = it->second.on;
  if (it->second.waiting_env) --waiting_env_;
  const auto g = groups_.find(it->second.gid);
  if (g != groups_.end()) g->second.members.erase(tid);
  requests_.erase(tid);
  if (!on.inc.valid()) return std::nullopt;
  return on;
}

bool Dispatcher::Progress(const WorkerRef& from, const SampleId& tid, int32_t att, int64_t tokens,
                          const Version& v) {
  const auto it = requests_.find(tid);
  if (it == requests_.end() || it->second.att != att || it->second.on != from || tokens < 0) return false;
  Request& r = it->second;
  if (tokens == 0) return true;
  r.generated += tokens;
  decoded_ += tokens;
  r.length_bin = lengths_.Running(r.length_bin, r.generated);
  if (r.crashes > 0 && r.generated >= r.crashed_at + kCleared) r.crashes = 0;
  const auto g = groups_.find(r.gid);
  if (g != groups_.end() && !r.only.valid())
    g->second.served += tokens;  // its place in the order follows at the chunk's end
  if (!r.v_min.valid() || v < r.v_min) r.v_min = v;
  if (!r.v_max.valid() || r.v_max < v) r.v_max = v;
  return true;
}

Dispatcher::Ended Dispatcher::ChunkEnded(const WorkerRef& from, const SampleId& tid, int32_t att) {
  const auto e = engines_.find(from.worker);
  if (e == engines_.end() || e->second.ref != from) return Ended::kRefused;
  const auto* chunk = e->second.in_flight.find({tid, att});
  if (chunk == nullptr) return Ended::kRefused;
  e->second.reserved -= chunk->second;
  e->second.in_flight.erase({tid, att});
  LoadChanged(e->second);
  --in_flight_;
  const auto r = requests_.find(tid);
  if (r == requests_.end() || r->second.att != att || r->second.on != from) return Ended::kGone;
  r->second.on = {};
  return Ended::kLive;
}

void Dispatcher::Requeue(const SampleId& tid) {
  Request& r = requests_.at(tid);
  const Engine* home = FindEngine(r.home);
  r.warm = options_.order == DispatchOptions::Order::kContext && home != nullptr && home->open();
  if (r.warm) warm_.push_back(tid);
  PutReady(r);
}

void Dispatcher::LearnLength(const SampleId& tid) {
  Request& r = requests_.at(tid);
  const int64_t tokens = r.generated;
  lengths_.Finished(tokens, r.length_bin);
  r.length_bin = -1;
  const auto it = groups_.find(r.gid);
  if (it == groups_.end()) return;
  it->second.lengths.push_back(tokens);
  bool changed = false;
  if (static_cast<int64_t>(it->second.lengths.size()) == it->second.size)
    changed = lengths_.GroupFinished(it->second.lengths);
  if (changed) {
    std::vector<SampleId> ready;
    for (const auto& line : ready_) {
      for (const ReadyKey& key : line) ready.push_back(std::get<3>(key));
    }
    for (const SampleId& tid : ready) Rekey(tid);
  }
  if (tokens <= it->second.longest) return;
  it->second.longest = tokens;
  for (const SampleId& tid : SmallSet(it->second.ready)) Rekey(tid);  // their places in the order change
}

bool Dispatcher::HasRequests(GroupId gid) const {
  const auto it = groups_.find(gid);
  return it != groups_.end() && !it->second.members.empty();
}

std::vector<WorkerRef> Dispatcher::ForgetGroup(GroupId gid) {
  std::vector<WorkerRef> who;
  const auto g = groups_.find(gid);
  if (g != groups_.end() && !g->second.ready.empty()) least_served_.erase({g->second.ratio, gid});
  const SmallSet<WorkerId> on = g == groups_.end() ? SmallSet<WorkerId>() : std::move(g->second.on);
  groups_.erase(gid);
  urgent_.erase(gid);
  too_late_.erase(gid);
  for (const WorkerId id : on) {
    const auto e = engines_.find(id);
    if (e != engines_.end() && e->second.groups.erase(gid) > 0) who.push_back(e->second.ref);
  }
  return who;
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

int64_t Dispatcher::PinnedReady(const Version& v) const {
  return std::count_if(ready_[0].begin(), ready_[0].end(), [&](const ReadyKey& key) {
    const Request& r = requests_.at(std::get<3>(key));
    return !r.only.valid() && r.v_min == v;
  });
}

std::set<GroupId> Dispatcher::Orphans() const {
  std::set<GroupId> orphans;
  for (const ReadyKey& key : ready_[0]) {
    const Request& r = requests_.at(std::get<3>(key));
    if (!r.only.valid() && r.v_min.valid() && !serving_.contains(r.v_min)) orphans.insert(r.gid);
  }
  return orphans;
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

int64_t Dispatcher::Room(const Request& r, int64_t tokens) const {
  return options_.reserve && options_.kv_cache_tokens > 0 ? options_.kv_cache_tokens - r.generated - tokens
                                                          : INT64_MAX;
}

bool Dispatcher::Fits(const Engine& e, const Request& r, int64_t tokens) const {
  if (!e.open()) return false;
  if (e.in_flight.empty()) return true;
  const int64_t room = Room(r, tokens) - e.reserved;
  return room >= r.prompt_len || (room >= 0 && e.groups.contains(r.gid));  // siblings share the prompt
}

Dispatcher::Engine* Dispatcher::Place(const Request& r, int64_t tokens,
                                      const std::function<bool(const Version&)>& may_serve,
                                      const Version& newest) {
  const auto group = groups_.find(r.gid);
  // A sample of a fresh group begins on the newest weights, and only up to its share of a worker that has
  // them: the others follow within a load.
  const bool fresh = newest.valid() && !r.only.valid() && r.generated == 0 && group != groups_.end();
  const Version least_version = !fresh                         ? Version{}
                                : group->second.oldest.valid() ? std::min(group->second.oldest, newest)
                                                               : newest;
  SettleLoads();
  const auto usable = static_cast<int64_t>(by_load_.size()) + coming_;
  const auto share = (static_cast<int64_t>(requests_.size()) + usable - 1) / usable;
  const auto ok = [&](const Engine& e) {
    if (fresh && (e.version < least_version || (e.version == newest && older_ > 0 && Load(e) >= share)))
      return false;
    if (coming_ > 0 && !r.only.valid() && Load(e) >= share) return false;
    if (r.crashes > 0 && HasSuspect(e)) return false;
    if (r.taken_back && e.in_flight.contains({r.tid, r.att}))
      return false;  // its cancelled chunk is not over there yet
    if (options_.pin && !r.only.valid() && r.v_min.valid() && e.version != r.v_min) return false;
    return e.open() && (r.only.valid() ? e.version == r.only : may_serve(e.version)) && Fits(e, r, tokens);
  };
  // What has just ended a chunk goes on there or not at all for now: under KV pressure there is nearly always
  // a little more room elsewhere, and everything would move, and be computed again, at every chunk.
  if (r.warm) {
    const auto home = engines_.find(r.home);
    if (home != engines_.end() && home->second.open() && Load(home->second) < share + share / kSlack &&
        !Fits(home->second, r, tokens))
      return nullptr;
  }
  std::optional<std::pair<int64_t, int64_t>> end;
  if (coming_ > 0 && !r.only.valid()) end = {share, INT64_MIN};  // nobody behind has less than a share
  // Where its own tokens alone have no room, said by the key; Fits says the same and more.
  const int64_t room = Room(r, tokens);
  const auto* first = by_load_.FirstThat(
      [&](const auto& next) {
        const auto& [load, reserved] = next.first;
        return (load == 0 || reserved <= room) && ok(engines_.at({next.second}));
      },
      end);
  if (first == nullptr) return nullptr;
  Engine* least = &engines_.at({first->second});
  const int64_t fewest = Load(*least);
  for (const WorkerId home : {r.home, group == groups_.end() ? WorkerId{} : group->second.home}) {
    const auto it = engines_.find(home);
    if (it != engines_.end() && ok(it->second) && Load(it->second) < share + share / kSlack &&
        Load(it->second) - fewest <= kUneven)
      return &it->second;
  }
  return least;
}

std::vector<Dispatcher::Chunk> Dispatcher::Assign(const std::function<bool(const Version&)>& may_serve,
                                                  const Version& newest, int64_t coming) {
  std::vector<Chunk> chunks = Fill(may_serve, newest, coming);
  // The room of those that did not go on is others' now, and their KV will not outlast them.
  for (const SampleId& tid : warm_) {
    const auto it = requests_.find(tid);
    if (it == requests_.end() || !it->second.warm) continue;
    it->second.warm = false;
    Rekey(tid);
  }
  warm_.clear();
  return chunks;
}

std::vector<Dispatcher::Chunk> Dispatcher::Fill(const std::function<bool(const Version&)>& asked,
                                                const Version& newest, int64_t coming) {
  std::vector<Chunk> chunks;
  if (ready_[0].empty() && ready_[1].empty()) return chunks;
  SettleLoads();
  if (by_load_.empty()) return chunks;
  // Nearly all engines have the same version: one question for them.
  std::optional<std::pair<Version, bool>> known;
  const std::function<bool(const Version&)> may_serve = [&](const Version& v) {
    if (!known || known->first != v) known.emplace(v, asked(v));
    return known->second;
  };
  older_ = 0;
  coming_ = coming;
  for (const auto& [version, engines] : serving_) older_ += version < newest ? engines : 0;
  const int64_t most = std::min(options_.max_concurrent, cap_);
  std::array<std::set<ReadyKey>::iterator, 2> at{ready_[0].begin(), ready_[1].begin()};
  std::array<bool, 2> blocked{};
  bool suspects_wait = false;  // every engine has one
  while (in_flight_ < most) {
    // The next of both lines.
    std::array<bool, 2> there{};
    for (size_t i : {0, 1}) there[i] = !blocked[i] && at[i] != ready_[i].end();
    if (!there[0] && !there[1]) break;
    const size_t line = !there[0] || (there[1] && *at[1] < *at[0]) ? 1 : 0;
    ReadyKey picked = *at[line];
    // Now and then the group that was served least of what it needs, or the longest would starve the rest.
    if (options_.order == DispatchOptions::Order::kContext && !options_.oracle &&
        std::get<0>(picked) == kRest && decisions_ % kStarvation == kStarvation - 1 &&
        !least_served_.empty()) {
      const ReadyKey starving = requests_.at(*groups_.at(least_served_.begin()->second).ready.begin()).place;
      if (std::get<0>(starving) != kTooLate && !blocked[Line(requests_.at(std::get<3>(starving)))])
        picked = starving;
    }
    if (std::get<0>(picked) == kTooLate) {  // and so is all behind it
      blocked[line] = true;
      continue;
    }
    Request& r = requests_.at(std::get<3>(picked));
    const int64_t tokens = std::min(options_.chunk_tokens, r.limit() - r.generated);
    const bool suspect = r.crashes > 0;
    Engine* e = suspect && suspects_wait ? nullptr : Place(r, tokens, may_serve, newest);
    if (e == nullptr) {
      // What does not fit now will not fit behind it either, but another version's evaluation may, and what
      // has begun does not wait for what has not.
      if (suspect) {
        suspects_wait = true;
        if (at[line] != ready_[line].end() && *at[line] == picked) ++at[line];
        ++decisions_;
      } else if (r.only.valid()) {
        ++at[line];
      } else {
        blocked[1] = true;
        blocked[0] = blocked[0] || Line(r) == 0;
      }
      continue;
    }
    for (size_t i : {0, 1}) {
      if (at[i] != ready_[i].end() && *at[i] == picked) ++at[i];
    }
    ++decisions_;
    TakeReady(r);
    r.warm = false;
    chunks.push_back({r.tid, e->ref, e->version, tokens});
    if (suspect) e->suspect = r.tid;
    const int64_t prompt = e->groups.contains(r.gid) ? 0 : r.prompt_len;
    const int64_t reserved = prompt + r.generated + tokens;
    e->in_flight[{r.tid, r.att}] = reserved;
    e->reserved += reserved;
    LoadChanged(*e);
    e->groups.insert(r.gid);
    r.on = e->ref;
    r.home = e->ref.worker;
    GroupInfo& group = groups_[r.gid];
    group.on.insert(e->ref.worker);
    group.home = e->ref.worker;
    if (!r.only.valid() && (!group.oldest.valid() || e->version < group.oldest)) group.oldest = e->version;
    ++in_flight_;
    ++chunks_;
  }
  return chunks;
}

}  // namespace tidepool::scheduler
