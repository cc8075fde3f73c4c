#include "scheduler/dispatcher.h"

#include <algorithm>
#include <iterator>

#include "core/base/check.h"

namespace tidepool::scheduler {
namespace {

// Tokens after which a sample is not blamed for a worker that died with it: more than can be on their way to
// the controller when a worker dies.
constexpr int64_t kCleared = 16;

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

void Dispatcher::PutReady(Request& r) {
  r.on = {};
  r.offered = 0;
  r.offered_by = {};
  r.key = KeyFor(r);
  r.ready = true;
  ready_[Line(r)].insert(r.key);
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
  ready_[Line(r)].erase(r.key);
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
  }
  r.turn_end = turn_tokens > 0 ? r.generated + turn_tokens : 0;
  PutReady(r);
}

std::optional<SlotRef> Dispatcher::Remove(const SampleId& tid) {
  const auto it = requests_.find(tid);
  if (it == requests_.end()) return std::nullopt;
  TakeReady(it->second);
  const SlotRef on = it->second.on;
  if (it->second.waiting_env) --waiting_env_;
  const auto g = groups_.find(it->second.gid);
  if (g != groups_.end()) g->second.members.erase(tid);
  requests_.erase(tid);
  if (!on.worker.inc.valid()) return std::nullopt;
  return on;
}

bool Dispatcher::Progress(const SlotRef& from, const SampleId& tid, int32_t att, int64_t tokens,
                          const Version& v) {
  const auto it = requests_.find(tid);
  if (it == requests_.end() || it->second.att != att || it->second.on != from || tokens < 0) return false;
  Request& r = it->second;
  if (tokens == 0) return true;
  r.generated += tokens;
  r.length_bin = lengths_.Running(r.length_bin, r.generated);
  if (r.crashes > 0 && r.generated >= r.crashed_at + kCleared) r.crashes = 0;
  const auto g = groups_.find(r.gid);
  if (g != groups_.end() && !r.only.valid())
    g->second.served += tokens;  // its place in the order follows at the chunk's end
  if (!r.v_min.valid() || v < r.v_min) r.v_min = v;
  if (!r.v_max.valid() || r.v_max < v) r.v_max = v;
  return true;
}

Dispatcher::Ended Dispatcher::ChunkEnded(const SlotRef& from, const SampleId& tid, int32_t att) {
  Engine* e = EngineOn(from.slot);
  if (e == nullptr || On(from.slot) != from) return Ended::kRefused;
  const auto* chunk = e->in_flight.find({tid, att});
  if (chunk == nullptr) return Ended::kRefused;
  e->reserved -= chunk->second;
  e->in_flight.erase({tid, att});
  LoadChanged(from.slot, *e);
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

std::vector<SlotRef> Dispatcher::ForgetGroup(GroupId gid) {
  std::vector<SlotRef> who;
  const auto g = groups_.find(gid);
  if (g != groups_.end() && !g->second.ready.empty()) least_served_.erase({g->second.ratio, gid});
  const SmallSet<SlotId> on = g == groups_.end() ? SmallSet<SlotId>() : std::move(g->second.on);
  groups_.erase(gid);
  urgent_.erase(gid);
  too_late_.erase(gid);
  for (const SlotId slot : on) {
    Engine* e = EngineOn(slot);
    if (e != nullptr && e->groups.erase(gid) > 0) who.push_back(On(slot));
  }
  return who;
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

}  // namespace tidepool::scheduler
