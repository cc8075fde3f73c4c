#include "scheduler/fleet/weight_roll.h"

#include <algorithm>

namespace tidepool::scheduler {
namespace {

constexpr int64_t kLoadTries = 3;

}  // namespace

void WeightRoll::Set(WorkerId worker, Weights& w, const Version& verified) {
  w.verified = verified;
  if (w.follows && verified != target_)
    behind_.insert(worker);
  else
    behind_.erase(worker);
}

void WeightRoll::Holds(WorkerId worker, const Version& verified) {
  Set(worker, fleet_.at(worker).weights_, verified);
}

void WeightRoll::Add(WorkerId worker) {
  Remove(worker);
  Weights& w = fleet_.at(worker).weights_;
  w.follows = true;
  ++followers_;
  Set(worker, w, w.verified);
}

void WeightRoll::Remove(WorkerId worker) {
  Weights& w = fleet_.at(worker).weights_;
  if (!w.follows) return;
  if (w.loading.valid()) EndLoad(w);
  --followers_;
  w = {.verified = w.verified};
  behind_.erase(worker);
}

void WeightRoll::SetTarget(const Version& v, uint64_t digest, const WorkerRef& from) {
  const bool other = v != target_;
  target_ = v;
  digest_ = digest;
  from_ = from;
  if (!other) return;
  for (auto& [id, worker] : fleet_) Set(id, worker.weights_, worker.weights_.verified);
}

void WeightRoll::EndLoad(Weights& w) {
  w.loading = {};
  --loading_;
  disturbing_ -= w.disturbs ? 1 : 0;
}

std::vector<command::Load> WeightRoll::Assign(const std::function<bool(const Worker&)>& serving,
                                              const std::function<bool(const Worker&)>& hold,
                                              const std::function<bool(const WorkerRef&)>& trained) {
  std::vector<command::Load> loads;
  // Who loads older weights is behind as well, so this many of `behind_` have to be looked at.
  if (!from_.inc.valid() || static_cast<int64_t>(behind_.size()) <= loading_) return loads;
  const int64_t limit = std::max<int64_t>(1, followers_ / 4);
  for (const WorkerId id : behind_) {
    Worker& worker = fleet_.at(id);
    Weights& w = worker.weights_;
    if (w.loading.valid() || hold(worker)) continue;
    const bool disturbs = serving(worker);
    if (disturbs && disturbing_ >= limit) continue;
    w.disturbs = disturbs;
    w.loading = target_;
    w.verified = {};  // its memory is torn until the digest is compared
    ++loading_;
    disturbing_ += disturbs ? 1 : 0;
    loads.push_back({worker.ref(), target_, digest_, trained(worker.ref()) ? worker.ref() : from_});
  }
  return loads;
}

WeightRoll::Outcome WeightRoll::Loaded(const event::Loaded& e) {
  Weights& w = fleet_.at(e.worker.worker).weights_;
  if (!w.loading.valid() || w.loading != e.v) return Outcome::kRefused;
  EndLoad(w);
  if (e.error.empty() && (e.digest == digest_ || e.v != target_)) {
    // A newer target may have come while this one loaded: what was loaded is still verified only
    // against its own digest, so it is loaded again rather than trusted.
    if (e.v != target_) return Outcome::kRetry;
    Set(e.worker.worker, w, e.v);
    w.tries = 0;
    return Outcome::kAdmit;
  }
  return ++w.tries >= kLoadTries ? Outcome::kReplace : Outcome::kRetry;
}

}  // namespace tidepool::scheduler
