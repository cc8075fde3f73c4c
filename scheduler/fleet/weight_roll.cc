#include "scheduler/fleet/weight_roll.h"

#include <algorithm>

namespace tidepool::scheduler {
namespace {

constexpr int64_t kLoadTries = 3;

}  // namespace

void WeightRoll::Add(const WorkerRef& ref, const Version& loaded) {
  Remove(ref.worker);
  places_[ref.worker] = {ref, loaded, {}, 0, false};
  if (loaded != target_)
    behind_.insert(ref.worker);
  else
    behind_.erase(ref.worker);
}

void WeightRoll::Remove(WorkerId worker) {
  const auto it = places_.find(worker);
  if (it == places_.end()) return;
  if (it->second.loading.valid()) EndLoad(it->second);
  places_.erase(worker);
  behind_.erase(worker);
}

void WeightRoll::SetTarget(const Version& v, uint64_t digest, const WorkerRef& from) {
  if (v != target_) {
    behind_.clear();
    for (const auto& [id, p] : places_) {
      if (p.loaded != v) behind_.insert(id);
    }
  }
  target_ = v;
  digest_ = digest;
  from_ = from;
}

void WeightRoll::EndLoad(Place& p) {
  p.loading = {};
  --loading_;
  disturbing_ -= p.disturbs ? 1 : 0;
}

const WeightRoll::Place* WeightRoll::Find(WorkerId worker) const {
  const auto it = places_.find(worker);
  return it == places_.end() ? nullptr : &it->second;
}

std::vector<command::Load> WeightRoll::Assign(const std::function<bool(const Place&)>& serving,
                                              const std::function<bool(const Place&)>& hold,
                                              const std::function<bool(const WorkerRef&)>& trained) {
  std::vector<command::Load> loads;
  // Who loads older weights is behind as well, so this many of `behind_` have to be looked at.
  if (!from_.inc.valid() || static_cast<int64_t>(behind_.size()) <= loading_) return loads;
  const int64_t limit = std::max<int64_t>(1, static_cast<int64_t>(places_.size()) / 4);
  for (const WorkerId id : behind_) {
    Place& p = places_.at(id);
    if (p.loading.valid() || hold(p)) continue;
    const bool disturbs = serving(p);
    if (disturbs && disturbing_ >= limit) continue;
    p.disturbs = disturbs;
    p.loading = target_;
    ++loading_;
    disturbing_ += disturbs ? 1 : 0;
    loads.push_back({p.ref, target_, digest_, trained(p.ref) ? p.ref : from_});
  }
  return loads;
}

WeightRoll::Outcome WeightRoll::Loaded(const event::Loaded& e) {
  const auto it = places_.find(e.worker.worker);
  if (it == places_.end() || it->second.ref != e.worker || it->second.loading != e.v)
    return Outcome::kRefused;
  Place& p = it->second;
  EndLoad(p);
  if (e.error.empty() && (e.digest == digest_ || e.v != target_)) {
    // A newer target may have come while this one loaded: what was loaded is still verified only
    // against its own digest, so it is loaded again rather than trusted.
    if (e.v != target_) {
      p.loaded = {};
      behind_.insert(e.worker.worker);
      return Outcome::kRetry;
    }
    p.loaded = e.v;
    behind_.erase(e.worker.worker);
    p.tries = 0;
    return Outcome::kAdmit;
  }
  p.loaded = {};  // what is in its memory now is nothing that anyone verified
  behind_.insert(e.worker.worker);
  return ++p.tries >= kLoadTries ? Outcome::kReplace : Outcome::kRetry;
}

}  // namespace tidepool::scheduler
