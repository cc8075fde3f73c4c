// Which request is next, and which engine gets it.

#include <algorithm>
#include <array>
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

Worker* Dispatcher::Place(const Request& r, int64_t tokens,
                          const std::function<bool(const Version&)>& may_serve, const Version& newest) {
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
  const auto ok = [&](const Worker& w) {
    const Engine& e = *w.engine();
    if (fresh && (e.version < least_version || (e.version == newest && older_ > 0 && e.load() >= share)))
      return false;
    if (coming_ > 0 && !r.only.valid() && e.load() >= share) return false;
    if (r.crashes > 0 && HasSuspect(w)) return false;
    if (r.taken_back && e.in_flight.contains({r.tid, r.att}))
      return false;  // its cancelled chunk is not over there yet
    if (options_.pin && !r.only.valid() && r.v_min.valid() && e.version != r.v_min) return false;
    return e.open() && (r.only.valid() ? e.version == r.only : may_serve(e.version)) && Fits(e, r, tokens);
  };
  // What has just ended a chunk goes on there or not at all for now: under KV pressure there is nearly always
  // a little more room elsewhere, and everything would move, and be computed again, at every chunk.
  if (r.warm) {
    const Engine* home = FindEngine(r.home);
    if (home != nullptr && home->open() && home->load() < share + share / kSlack && !Fits(*home, r, tokens))
      return nullptr;
  }
  std::optional<std::pair<int64_t, int64_t>> end;
  if (coming_ > 0 && !r.only.valid()) end = {share, INT64_MIN};  // nobody behind has less than a share
  // The heap's key holds the reserved tokens, so engines without room are skipped before the full check
  // (Fits).
  const int64_t room = Room(r, tokens);
  const auto* first = by_load_.FirstThat(
      [&](const auto& next) {
        const auto& [load, reserved] = next.first;
        return (load == 0 || reserved <= room) && ok(fleet_.at({next.second}));
      },
      end);
  if (first == nullptr) return nullptr;
  Worker* least = &fleet_.at({first->second});
  const int64_t fewest = least->engine_->load();
  for (const WorkerId home : {r.home, group == groups_.end() ? WorkerId{} : group->second.home}) {
    Worker* w = WithEngine(home);
    if (w != nullptr && ok(*w) && w->engine_->load() < share + share / kSlack &&
        w->engine_->load() - fewest <= kUneven)
      return w;
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
    Worker* w = suspect && suspects_wait ? nullptr : Place(r, tokens, may_serve, newest);
    if (w == nullptr) {
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
    Engine* e = &*w->engine_;
    chunks.push_back({r.tid, w->ref(), e->version, tokens});
    if (suspect) e->suspect = r.tid;
    const int64_t prompt = e->groups.contains(r.gid) ? 0 : r.prompt_len;
    const int64_t reserved = prompt + r.generated + tokens;
    e->in_flight[{r.tid, r.att}] = reserved;
    e->reserved += reserved;
    LoadChanged(*w);
    e->groups.insert(r.gid);
    r.on = w->ref();
    r.home = w->ref().worker;
    GroupInfo& group = groups_[r.gid];
    group.on.insert(w->ref().worker);
    group.home = w->ref().worker;
    if (!r.only.valid() && (!group.oldest.valid() || e->version < group.oldest)) group.oldest = e->version;
    ++in_flight_;
    ++chunks_;
  }
  return chunks;
}

}  // namespace tidepool::scheduler
