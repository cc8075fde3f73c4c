#include "scheduler/fleet/weight_roll.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tidepool::scheduler {
namespace {

constexpr int64_t kLoadTries = 3;

}  // namespace

void WeightRoll::Set(SlotId slot, Weights& w, const Version& verified) {
  w.verified = verified;
  if (w.follows && verified != target_)
    behind_.insert(slot);
  else
    behind_.erase(slot);
}

void WeightRoll::Holds(SlotId slot, const Version& verified) {
  Set(slot, fleet_.devices.at(slot).weights_, verified);
}

void WeightRoll::Add(SlotId slot) {
  Remove(slot);
  Weights& w = fleet_.devices.at(slot).weights_;
  w.follows = true;
  ++followers_;
  Set(slot, w, w.verified);
}

void WeightRoll::Remove(SlotId slot) {
  Weights& w = fleet_.devices.at(slot).weights_;
  if (!w.follows) return;
  if (w.loading.valid()) EndLoad(w);
  --followers_;
  w = {.verified = w.verified, .source = w.source};
  behind_.erase(slot);
}

void WeightRoll::SetTarget(const Version& v, uint64_t digest, const SlotRef& from) {
  const bool other = v != target_;
  target_ = v;
  digest_ = digest;
  from_ = from;
  if (!other) return;
  for (auto& [slot, d] : fleet_.devices) Set(slot, d.weights_, d.weights_.verified);
}

void WeightRoll::EndLoad(Weights& w) {
  w.loading = {};
  --loading_;
  disturbing_ -= w.disturbs ? 1 : 0;
}

std::optional<SlotRef> WeightRoll::SourceOf(SlotId slot) const {
  const std::string& host = fleet_.HostOf(slot);
  if (fleet_.devices.at(slot).weights_.direct || host == fleet_.HostOf(from_.slot)) return from_;
  // Who brought the target to another host, or does so, and how many read from each.
  std::map<SlotId, int64_t> readers{{from_.slot, 0}};
  bool comes = false;
  for (const auto& [other, d] : fleet_.devices) {
    const Weights& w = d.weights_;
    // One pull a host at a time, of whatever version: they share memory that one writes.
    if (other != slot && w.loading.valid() && w.loading != target_ && fleet_.HostOf(other) == host &&
        w.source != fleet_.Ref(other))
      comes = true;
    if (w.verified != target_ && w.loading != target_) continue;
    const SlotRef ref = fleet_.Ref(other);
    if (!ref.worker.inc.valid() || !w.source.worker.inc.valid() || w.source == ref) continue;
    if (fleet_.HostOf(other) == host) {
      if (w.verified == target_) return ref;
      comes = true;
    } else if (fleet_.HostOf(w.source.slot) != fleet_.HostOf(other)) {  // not what its own host had already
      readers.try_emplace(other, 0);
    }
  }
  if (comes) return std::nullopt;
  for (const auto& [other, d] : fleet_.devices) {
    const auto of = readers.find(d.weights_.source.slot);
    if (d.weights_.loading == target_ && of != readers.end() &&
        fleet_.HostOf(of->first) != fleet_.HostOf(other))
      ++of->second;
  }
  const auto least = std::ranges::min_element(readers, {}, [](const auto& entry) { return entry.second; });
  return least->first == from_.slot ? from_ : fleet_.Ref(least->first);
}

std::vector<command::Load> WeightRoll::Assign(const std::function<bool(SlotId)>& serving,
                                              const std::function<bool(SlotId)>& hold,
                                              const std::function<bool(const SlotRef&)>& trained) {
  std::vector<command::Load> loads;
  // Who loads older weights is behind as well, so this many of `behind_` have to be looked at.
  if (!from_.worker.inc.valid() || static_cast<int64_t>(behind_.size()) <= loading_) return loads;
  const int64_t limit = std::max<int64_t>(1, followers_ / 4);
  for (const SlotId slot : behind_) {
    Weights& w = fleet_.devices.at(slot).weights_;
    if (w.loading.valid() || hold(slot)) continue;
    const bool disturbs = serving(slot);
    if (disturbs && disturbing_ >= limit) continue;
    const SlotRef ref = fleet_.Ref(slot);
    const std::optional<SlotRef> source = trained(ref) ? ref : SourceOf(slot);
    if (!source) continue;
    w.disturbs = disturbs;
    w.loading = target_;
    w.loading_digest = digest_;
    w.verified = {};  // its memory is torn until the digest is compared
    ++loading_;
    disturbing_ += disturbs ? 1 : 0;
    w.source = *source;
    w.relayed = *source != from_ && *source != ref;
    loads.push_back({ref.worker, slot, target_, digest_, *source});
  }
  return loads;
}

WeightRoll::Outcome WeightRoll::Loaded(const event::Loaded& e) {
  Weights& w = fleet_.devices.at(e.slot).weights_;
  if (!w.loading.valid() || w.loading != e.v) return Outcome::kRefused;
  const bool right = e.error.empty() && e.digest == w.loading_digest;
  EndLoad(w);
  // What is older than the newest version is of no use, and need not be there any more.
  if (e.v != target_ && (right || !e.error.empty())) return Outcome::kOvertaken;
  if (!right) {
    w.source.worker.inc = {};
    if (w.relayed) {
      w.direct = true;
      return Outcome::kRetry;
    }
    return ++w.tries >= kLoadTries ? Outcome::kReplace : Outcome::kRetry;
  }
  Set(e.slot, w, e.v);
  w.tries = 0;
  w.direct = false;
  return Outcome::kAdmit;
}

}  // namespace tidepool::scheduler
