#include "scheduler/fleet/weight_roll.h"

#include <algorithm>
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

WeightRoll::Sources WeightRoll::LookAround() const {
  Sources sources;
  sources.hosts.resize(fleet_.hosts.size());
  sources.pulls.insert(from_.slot);
  for (const auto& [slot, d] : fleet_.devices) Note(slot, sources);
  return sources;
}

void WeightRoll::Note(SlotId slot, Sources& sources) const {
  const Weights& w = fleet_.devices.at(slot).weights_;
  // One pull a host at a time, of whatever version: its slots share memory, which one of them writes.
  if (w.loading.valid() && w.loading != target_ && w.source != fleet_.Ref(slot))
    sources.hosts[static_cast<size_t>(fleet_.HostNumber(slot))].comes = true;
  if (w.verified != target_ && w.loading != target_) return;
  const bool from_afar = fleet_.HostNumber(w.source.slot) != fleet_.HostNumber(slot);
  if (from_afar && w.loading == target_) ++sources.readers[w.source.slot];
  const SlotRef ref = fleet_.Ref(slot);
  if (!ref.worker.inc.valid() || !w.source.worker.inc.valid() || w.source == ref) return;
  Sources::Host& host = sources.hosts[static_cast<size_t>(fleet_.HostNumber(slot))];
  if (w.verified != target_)
    host.comes = true;
  else if (!host.has.worker.inc.valid())
    host.has = ref;
  if (from_afar) sources.pulls.insert(slot);  // not what its own host had already
}

std::optional<SlotRef> WeightRoll::SourceOf(SlotId slot, std::optional<Sources>& sources) const {
  const int64_t number = fleet_.HostNumber(slot);
  if (fleet_.devices.at(slot).weights_.direct || number == fleet_.HostNumber(from_.slot)) return from_;
  if (!sources) sources = LookAround();
  const Sources::Host& host = sources->hosts[static_cast<size_t>(number)];
  if (host.has.worker.inc.valid()) return host.has;
  if (host.comes) return std::nullopt;
  const SlotId least = *std::ranges::min_element(sources->pulls, {}, [&](SlotId pull) {
    const auto of = sources->readers.find(pull);
    return of == sources->readers.end() ? 0 : of->second;
  });
  return least == from_.slot ? from_ : fleet_.Ref(least);
}

std::vector<command::Load> WeightRoll::Assign(const std::function<bool(SlotId)>& serving,
                                              const std::function<bool(SlotId)>& hold,
                                              const std::function<bool(const SlotRef&)>& trained) {
  std::vector<command::Load> loads;
  // Who loads older weights is behind as well, so this many of `behind_` have to be looked at.
  if (!from_.worker.inc.valid() || static_cast<int64_t>(behind_.size()) <= loading_) return loads;
  const int64_t limit = std::max<int64_t>(1, followers_ / 4);
  std::optional<Sources> sources;
  for (const SlotId slot : behind_) {
    Weights& w = fleet_.devices.at(slot).weights_;
    if (w.loading.valid() || hold(slot)) continue;
    const bool disturbs = serving(slot);
    if (disturbs && disturbing_ >= limit) continue;
    const SlotRef ref = fleet_.Ref(slot);
    const std::optional<SlotRef> source = trained(ref) ? ref : SourceOf(slot, sources);
    if (!source) continue;
    w.disturbs = disturbs;
    w.loading = target_;
    w.loading_digest = digest_;
    w.verified = {};  // its memory is torn until the digest is compared
    ++loading_;
    disturbing_ += disturbs ? 1 : 0;
    w.source = *source;
    w.relayed = *source != from_ && *source != ref;
    if (sources) Note(slot, *sources);
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
