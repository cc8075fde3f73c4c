#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

bool Steps::PrepareGroup() {
  if (!all_.trainer.ready() || open_ || all_.trainer.aborting()) return false;
  if (all_.slots.pool().Coming(Role::kActor)) return false;
  const std::vector<command::GroupMember> members = all_.slots.Members();
  if (members.empty()) {
    preparing_.reset();
    return false;
  }
  if (all_.slots.OneSize() && members.size() < all_.slots.Trainers().size()) return false;
  bool ready = true;
  for (const command::GroupMember& m : members) {
    if (all_.trainer.Has(SlotOf(m))) continue;
    ready = false;
    all_.trainer.Fetch(m);
    if (!all_.trainer.ready()) return false;  // its part is nowhere in memory: all go back to a checkpoint
  }
  if (!ready && !preparing_) preparing_ = now_;
  if (members.size() == 1) return ready;
  const bool same = std::equal(members.begin(), members.end(), group_.begin(), group_.end(),
                               [](const auto& x, const auto& y) { return SlotOf(x) == SlotOf(y); });
  if (!same) {
    if (!preparing_) preparing_ = now_;
    FormGroup(members);
  }
  return ready && forming_.empty();
}

// Members of an older group that left are gone with their slots; those that stay hear of the newest group.
void Steps::FormGroup(const std::vector<command::GroupMember>& members) {
  StopForming();
  group_ = members;
  ++group_epoch_;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const SlotRef ref = SlotOf(members[rank]);
    forming_.insert(ref);
    out_.Do(command::FormGroup{ref.worker, ref.slot, group_epoch_, static_cast<int64_t>(rank),
                               static_cast<int64_t>(members.size()), options_.fleet.tensor});
    waits_.Begin({WaitKind::kGroup, ref.slot.value}, {ref.worker, now_, In(options_.fleet.start_timeout_s),
                                                      "epoch " + std::to_string(group_epoch_)});
  }
}

void Steps::StopForming() {
  for (const SlotRef& ref : forming_) waits_.End({WaitKind::kGroup, ref.slot.value});
  forming_.clear();
  group_.clear();
}

void Steps::Lost(const WorkerRef& ref, const std::string& why) {
  const auto is_its = [&](const command::GroupMember& m) { return m.worker == ref; };
  for (const SlotId slot : fleet_.workers.at(ref.worker).slots()) {
    for (const WaitKind kind : {WaitKind::kTrain, WaitKind::kGroup}) waits_.End({kind, slot.value});
  }
  all_.slots.CycleDisturbed();
  if (std::ranges::any_of(group_, is_its)) StopForming();
  if (open_ && std::ranges::any_of(open_->members, is_its)) Abort("actor lost: " + why, {ref, {}});
}

bool Steps::IsMember(const SlotRef& ref) const {
  return std::ranges::any_of(open_->members, [&](const auto& m) { return SlotOf(m) == ref; });
}

void Steps::On(const event::GroupFormed& e) {
  if (!fleet_.IsLive(SlotOf(e)) || e.group_epoch != group_epoch_ || forming_.erase(SlotOf(e)) == 0) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kGroup, e.slot.value});
  if (e.error.empty()) {
    if (forming_.empty()) group_tries_ = 0;
    return;
  }
  out_.Say(LogLevel::kWarn, e.worker, "group_failed",
           "could not join training group " + std::to_string(e.group_epoch) + ": " + e.error,
           {{"group", std::to_string(e.group_epoch)}});
  StopForming();
  if (++group_tries_ >= kTries) {
    group_tries_ = 0;
    all_.workers.Replace(e.worker, "it could not join the training group: " + e.error);
  }
}

}  // namespace tidepool::scheduler
