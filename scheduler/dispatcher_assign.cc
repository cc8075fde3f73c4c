// Which request is next, and which engine gets it.

#include <algorithm>
#include <optional>

#include "scheduler/dispatcher.h"

namespace tidepool::scheduler {
namespace {

// Chunks that an engine may have more than the one with the fewest before a sample leaves its KV there
// (Seer).
constexpr int64_t kUneven = 32;
// An engine may have this part of its share more than its share: 1/32 was the best of 1/8, 1/16, 1/32 and
// none in all of Seer's workloads.
constexpr int64_t kSlack = 32;
constexpr int64_t kStarvation = 16;     // every so many decisions the group served least has its turn
constexpr int kRest = 4, kTooLate = 5;  // the last classes of the order

int ClassOf(const ReadyKey& key) { return std::get<0>(key); }
const SampleId& TidOf(const ReadyKey& key) { return std::get<3>(key); }

}  // namespace

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

// The oldest weights that the request may be started on; invalid: any. A sample of a group that has nothing
// yet begins on the newest.
Version Dispatcher::OldestFor(const Request& r, const Round& round) const {
  const auto group = groups_.find(r.gid);
  if (!round.newest.valid() || r.only.valid() || r.generated > 0 || group == groups_.end()) return {};
  return group->second.oldest.valid() ? std::min(group->second.oldest, round.newest) : round.newest;
}

bool Dispatcher::MayTake(SlotId slot, const Request& r, int64_t tokens, Round& round) const {
  const Engine& e = *FindEngine(slot);
  const bool full = e.load() >= round.share;
  if (!e.open() || !Fits(e, r, tokens)) return false;
  if (r.crashes > 0 && HasSuspect(slot)) return false;
  if (r.taken_back && e.in_flight.contains({r.tid, r.att}))
    return false;  // cancelled there, and not over yet
  if (r.only.valid()) return e.version == r.only;
  // Those that come back from a load or a grant get their share.
  if (round.coming > 0 && full) return false;
  if (const Version oldest = OldestFor(r, round); oldest.valid()) {
    // Work that waited for the newest behind a slow link would find newer ones published then.
    if (e.version < oldest && (in_sight_ == nullptr || e.version < in_sight_(slot))) return false;
    if (e.version == round.newest && round.older > 0 && full) return false;
  }
  if (options_.pin && r.v_min.valid() && e.version != r.v_min) return false;
  return round.MayServe(e.version);
}

// What has just ended a chunk goes on there or not at all for now: under KV pressure there is nearly always a
// little more room elsewhere, and everything would move, and be computed again, at every chunk.
bool Dispatcher::WaitsForItsHome(const Request& r, int64_t tokens, const Round& round) const {
  const Engine* home = r.warm ? FindEngine(r.home) : nullptr;
  return home != nullptr && home->open() && home->load() < round.share + round.share / kSlack &&
         !Fits(*home, r, tokens);
}

SlotId Dispatcher::ChooseEngine(const Request& r, int64_t tokens, Round& round) {
  SettleLoads();
  const auto usable = static_cast<int64_t>(by_load_.size()) + round.coming;
  round.share = (static_cast<int64_t>(requests_.size()) + usable - 1) / usable;
  if (WaitsForItsHome(r, tokens, round)) return {};
  std::optional<std::pair<int64_t, int64_t>> end;
  if (round.coming > 0 && !r.only.valid())
    end = {round.share, INT64_MIN};  // nobody behind has less than a share
  // The heap's key holds the reserved tokens, so engines without room are skipped before the full check.
  const int64_t room = Room(r, tokens);
  const auto* first = by_load_.FirstThat(
      [&](const auto& next) {
        const auto& [load, reserved] = next.first;
        return (load == 0 || reserved <= room) && MayTake({next.second}, r, tokens, round);
      },
      end);
  if (first == nullptr) return {};
  const SlotId least{first->second};
  const int64_t most = std::min(round.share + round.share / kSlack - 1, FindEngine(least)->load() + kUneven);
  const auto group = groups_.find(r.gid);
  for (const SlotId home : {r.home, group == groups_.end() ? SlotId{} : group->second.home}) {
    const Engine* e = FindEngine(home);
    if (e != nullptr && e->load() <= most && MayTake(home, r, tokens, round)) return home;
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

// The next of both lines; nothing: nobody behind has a chance.
std::optional<ReadyKey> Dispatcher::NextReady(Round& round) const {
  while (true) {
    std::array<bool, 2> there{};
    for (size_t i : {0, 1}) there[i] = !round.blocked[i] && round.at[i] != ready_[i].end();
    if (!there[0] && !there[1]) return std::nullopt;
    const size_t line = !there[0] || (there[1] && *round.at[1] < *round.at[0]) ? 1 : 0;
    const ReadyKey& next = *round.at[line];
    // Now and then the group that was served least of what it needs, or the longest would starve the rest.
    if (options_.order == DispatchOptions::Order::kContext && !options_.oracle && ClassOf(next) == kRest &&
        decisions_ % kStarvation == kStarvation - 1 && !least_served_.empty()) {
      const ReadyKey& starving = requests_.at(*groups_.at(least_served_.begin()->second).ready.begin()).key;
      if (ClassOf(starving) != kTooLate && !round.blocked[Line(requests_.at(TidOf(starving)))])
        return starving;
    }
    if (ClassOf(next) != kTooLate) return next;
    round.blocked[line] = true;  // and so is all behind it
  }
}

void Dispatcher::Pass(const ReadyKey& key, Round& round) const {
  for (size_t i : {0, 1}) {
    if (round.at[i] != ready_[i].end() && *round.at[i] == key) ++round.at[i];
  }
}

// What does not fit now will not fit behind it either, but another version's evaluation may, and what has
// begun does not wait for what has not.
void Dispatcher::NoEngineFor(const Request& r, const ReadyKey& key, Round& round) {
  if (r.crashes > 0) {
    round.suspects_wait = true;
    Pass(key, round);
    ++decisions_;
  } else if (r.only.valid()) {
    Pass(key, round);
  } else {
    round.blocked[1] = true;
    round.blocked[0] = round.blocked[0] || Line(r) == 0;
  }
}

Dispatcher::Chunk Dispatcher::Start(Request& r, SlotId slot, int64_t tokens) {
  ++decisions_;
  TakeReady(r);
  r.warm = false;
  Engine& e = *EngineOn(slot);
  if (r.crashes > 0) e.suspect = r.tid;
  const int64_t prompt = e.groups.contains(r.gid) ? 0 : r.prompt_len;
  const int64_t reserved = prompt + r.generated + tokens;
  e.in_flight[{r.tid, r.att}] = reserved;
  e.reserved += reserved;
  LoadChanged(slot, e);
  e.groups.insert(r.gid);
  r.on = On(slot);
  r.home = slot;
  GroupInfo& group = groups_[r.gid];
  group.on.insert(slot);
  group.home = slot;
  if (!r.only.valid() && (!group.oldest.valid() || e.version < group.oldest)) group.oldest = e.version;
  ++in_flight_;
  ++chunks_;
  return {r.tid, r.on, e.epoch, e.version, tokens};
}

std::vector<Dispatcher::Chunk> Dispatcher::Fill(const std::function<bool(const Version&)>& may_serve,
                                                const Version& newest, int64_t coming) {
  std::vector<Chunk> chunks;
  if (ready_[0].empty() && ready_[1].empty()) return chunks;
  SettleLoads();
  if (by_load_.empty()) return chunks;
  Round round{.may_serve = may_serve,
              .newest = newest,
              .coming = coming,
              .at = {ready_[0].begin(), ready_[1].begin()}};
  for (const auto& [version, engines] : serving_) round.older += version < newest ? engines : 0;
  const int64_t most = std::min(options_.max_concurrent, cap_);
  while (in_flight_ < most) {
    const std::optional<ReadyKey> next = NextReady(round);
    if (!next) break;
    Request& r = requests_.at(TidOf(*next));
    const int64_t tokens = std::min(options_.chunk_tokens, r.limit() - r.generated);
    const bool hopeless = r.crashes > 0 && round.suspects_wait;
    if (const SlotId slot = hopeless ? SlotId{} : ChooseEngine(r, tokens, round); slot.valid()) {
      Pass(*next, round);
      chunks.push_back(Start(r, slot, tokens));
    } else {
      NoEngineFor(r, *next, round);
    }
  }
  return chunks;
}

}  // namespace tidepool::scheduler
