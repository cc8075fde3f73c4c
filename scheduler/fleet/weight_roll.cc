#include "scheduler/fleet/weight_roll.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "scheduler/fleet/tries.h"

namespace tidepool::scheduler {

void WeightRoll::Set(SlotId slot, Weights& w, const Version& verified) {
  state_.settled = false;
  w.verified = verified;
  if (verified.valid() && !(w.newest.valid() && verified < w.newest)) w.newest = verified;
  if (w.follows && verified != state_.target.v)
    state_.behind.insert(slot);
  else
    state_.behind.erase(slot);
}

void WeightRoll::Holds(SlotId slot, const Version& verified) {
  Set(slot, fleet_.devices.at(slot).weights_, verified);
}

void WeightRoll::Add(SlotId slot) {
  Remove(slot);
  Weights& w = fleet_.devices.at(slot).weights_;
  w.follows = true;
  ++state_.followers;
  Set(slot, w, w.verified);
}

void WeightRoll::Remove(SlotId slot) {
  Weights& w = fleet_.devices.at(slot).weights_;
  if (!w.follows) return;
  state_.settled = false;
  if (w.loading.valid()) EndLoad(w);
  --state_.followers;
  w = {.verified = w.verified, .newest = w.newest};
  state_.behind.erase(slot);
}

void WeightRoll::SetTarget(const Version& v, uint64_t digest, const SlotRef& from, bool copied) {
  const bool other = v != state_.target.v;
  state_.settled = state_.settled && !other && from == state_.target.from && copied == state_.copied;
  state_.target = {v, digest, from};
  state_.copied = copied;
  if (!other) return;
  for (auto& [slot, d] : fleet_.devices) Set(slot, d.weights_, d.weights_.verified);
}

void WeightRoll::EndLoad(Weights& w) {
  state_.settled = false;
  w.loading = {};
  --state_.loading;
  state_.disturbing -= w.disturbs ? 1 : 0;
}

WeightRoll::Host& WeightRoll::HostOf(SlotId slot) {
  const auto number = static_cast<size_t>(fleet_.HostNumber(slot));
  if (number >= state_.hosts.size()) state_.hosts.resize(fleet_.hosts.size());
  return state_.hosts[number];
}

// What a process brought, or was bringing, is not served by another one.
void WeightRoll::ForgetTheDead() {
  for (Host& host : state_.hosts) {
    if (host.has.v.valid() && !fleet_.IsLive(host.has.from)) host.has = {};
    if (host.gets.v.valid() && !fleet_.IsLive(host.by)) host.gets = {};
    host.needs.reset();
  }
}

bool WeightRoll::Pulls(const SlotRef& ref) const {
  return std::ranges::any_of(state_.hosts,
                             [&](const Host& host) { return host.gets.v.valid() && host.by == ref; });
}

// A slot of its engine did not train the target.
bool WeightRoll::Lacks(SlotId slot) const {
  return std::ranges::any_of(fleet_.devices.at(slot).gang(), [&](SlotId part) {
    const SlotRef ref = fleet_.Ref(part);
    return fleet_.IsLive(ref) && !ask_.trained(ref);
  });
}

bool WeightRoll::NeedsCopy() const {
  return std::ranges::any_of(state_.behind, [&](SlotId slot) { return Lacks(slot); });
}

WeightRoll::Target WeightRoll::Available(SlotId slot) {
  const Target& target = state_.target;
  const SlotRef ref = fleet_.Ref(slot);
  if (ask_.trained(ref)) return {target.v, target.digest, ref};
  if (fleet_.HostNumber(slot) == fleet_.HostNumber(target.from.slot)) return target;
  const Host& host = HostOf(slot);
  const Version& newest = fleet_.devices.at(slot).weights_.newest;  // what it holds may be torn since
  const bool better =
      host.has.v.valid() && (host.has.v == target.v || !(newest.valid() && host.has.v <= newest));
  return better && (host.has.v == target.v || ask_.may_serve(host.has.v)) ? host.has : Target{};
}

Version WeightRoll::InSight(SlotId slot) const {
  const Target& target = state_.target;
  const auto number = static_cast<size_t>(fleet_.HostNumber(slot));
  if (number == static_cast<size_t>(fleet_.HostNumber(target.from.slot)) || number >= state_.hosts.size())
    return target.v;
  const Host& host = state_.hosts[number];
  const bool slow = host.gets.v.valid() && host.gets.v != target.v;
  return slow ? host.has.v : target.v;
}

bool WeightRoll::Follows(const Host& of, int64_t host) const {
  const Host* at = &of;
  for (size_t i = 0; i <= state_.hosts.size() && at->gets.v.valid(); ++i) {
    const int64_t source = fleet_.HostNumber(at->gets.from.slot);
    if (source == host) return true;
    if (static_cast<size_t>(source) >= state_.hosts.size()) return false;
    at = &state_.hosts[static_cast<size_t>(source)];
  }
  return false;
}

std::optional<command::Pull> WeightRoll::PullTo(int64_t number) {
  Host& host = state_.hosts[static_cast<size_t>(number)];
  const Target& target = state_.target;
  // What the others are getting, or the newest where they get nothing that is of use here: who begins a
  // version of its own has it from the trainer alone, which would have to keep it for one reader.
  Target wanted;
  for (const Host& other : state_.hosts) {
    const bool newer = other.gets.v.valid() && !(host.has.v.valid() && other.gets.v <= host.has.v) &&
                       !(wanted.v.valid() && other.gets.v <= wanted.v);
    if (&other != &host && newer && ask_.may_serve(other.gets.v)) wanted = other.gets;
  }
  if (!wanted.v.valid()) wanted = target;
  std::map<SlotRef, int64_t> readers;  // of each source
  bool is_source = false;              // this host still is one of somebody
  for (const Host& other : state_.hosts) {
    if (!other.gets.v.valid()) continue;
    ++readers[other.gets.from];
    is_source = is_source || fleet_.HostNumber(other.gets.from.slot) == number;
  }
  std::set<SlotRef> sources;
  if (wanted.v == target.v) sources.insert(target.from);
  for (const Host& other : state_.hosts) {
    if (&other == &host) continue;
    if (other.has.v == wanted.v) sources.insert(other.has.from);
    if (other.gets.v == wanted.v && !(is_source && Follows(other, number))) sources.insert(other.by);
  }
  std::erase_if(sources, [&](const SlotRef& s) { return s != target.from && host.failed.contains(s); });
  if (sources.empty()) {  // of what the others get nobody can be asked: the newest, then
    wanted = target;
    sources.insert(target.from);
  }
  // Of equals not the trainer, whose link everybody needs.
  const SlotRef source = *std::ranges::min_element(sources, {}, [&](const SlotRef& s) {
    const bool failed = host.failed.contains(s);
    return std::tuple(failed, readers.contains(s) ? readers.at(s) : 0, s == target.from);
  });
  // One that brings what is too old takes the newest instead.
  if (!host.gets.v.valid()) host.by = fleet_.Ref(*host.needs);
  host.gets = {wanted.v, wanted.digest, source};
  return command::Pull{host.by.worker, host.by.slot, wanted.v, wanted.digest, source};
}

WeightRoll::Orders WeightRoll::Assign() {
  Orders orders;
  const Target& target = state_.target;
  if (!target.from.worker.inc.valid() || state_.behind.empty() || std::exchange(state_.settled, true))
    return orders;
  ForgetTheDead();
  const int64_t limit = std::max<int64_t>(1, state_.followers / 4);
  const int64_t at_home = fleet_.HostNumber(target.from.slot);
  for (const SlotId slot : state_.behind) {
    Weights& w = fleet_.devices.at(slot).weights_;
    const SlotRef ref = fleet_.Ref(slot);
    if (!ref.worker.inc.valid()) continue;
    if (!state_.copied && Lacks(slot)) {
      state_.settled = false;
      continue;
    }
    if (fleet_.HostNumber(slot) != at_home && !ask_.trained(ref)) {
      Host& host = HostOf(slot);
      if (!host.needs) host.needs = slot;
    }
    if (w.loading.valid()) continue;
    const Target source = Available(slot);
    if (!source.v.valid()) continue;
    const bool later = ask_.hold(slot);
    const bool disturbs = !later && ask_.serving(slot);
    if (later || (disturbs && state_.disturbing >= limit)) {
      state_.settled = false;
      continue;
    }
    w.disturbs = disturbs;
    w.loading = source.v;
    w.loading_digest = source.digest;
    w.verified = {};  // its memory is torn until the digest is compared
    ++state_.loading;
    state_.disturbing += disturbs ? 1 : 0;
    const bool trained = ref == target.from || ask_.trained(ref);
    orders.loads.push_back({ref.worker, slot, source.v, source.digest, source.from, /*alias=*/trained});
  }
  for (size_t number = 0; number < state_.hosts.size(); ++number) {
    Host& host = state_.hosts[number];
    if (!host.needs || host.has.v == target.v) continue;
    if (host.gets.v.valid() && (host.gets.v == target.v || ask_.may_serve(host.gets.v))) continue;
    if (auto pull = PullTo(static_cast<int64_t>(number))) orders.pulls.push_back(*pull);
  }
  return orders;
}

WeightRoll::Outcome WeightRoll::Loaded(const event::Loaded& e) {
  Weights& w = fleet_.devices.at(e.slot).weights_;
  if (!w.loading.valid() || w.loading != e.v) return Outcome::kRefused;
  const bool right = e.error.empty() && e.digest == w.loading_digest;
  EndLoad(w);
  const bool of_use = e.v == state_.target.v || ask_.may_serve(e.v);
  if (right && of_use) {
    Set(e.slot, w, e.v);
    w.tries = 0;
    return Outcome::kDone;
  }
  // It need not be there any more where a newer one is.
  const Host& host = HostOf(e.slot);
  const bool replaced = e.v != state_.target.v && host.has.v != e.v;
  if (right || (!e.error.empty() && replaced)) return Outcome::kOvertaken;
  if (host.has.v == e.v) HostOf(e.slot).has = {};  // it is brought there again
  return ++w.tries >= kTries ? Outcome::kReplace : Outcome::kRetry;
}

WeightRoll::Outcome WeightRoll::Pulled(const event::Pulled& e) {
  const SlotRef by = SlotOf(e);
  Host& host = HostOf(e.slot);
  if (host.by != by || !host.gets.v.valid() || host.gets.v != e.v) return Outcome::kRefused;
  const Target got = std::exchange(host.gets, {});
  state_.settled = false;
  if (e.error.empty()) {
    host.has = {got.v, got.digest, by};
    host.failed.clear();
    host.tries = 0;
    return Outcome::kDone;
  }
  const bool overtaken = got.v != state_.target.v;
  host.failed.insert(got.from);
  if (overtaken) return Outcome::kOvertaken;  // the trainer keeps no more than it has to
  if (got.from != state_.target.from || ++host.tries < kTries) return Outcome::kRetry;
  host.failed.clear();
  host.tries = 0;
  return Outcome::kReplace;
}

}  // namespace tidepool::scheduler
