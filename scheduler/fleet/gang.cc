#include "scheduler/fleet/gang.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::scheduler {

Gang::Gang(const std::vector<SlotId>& slots) {
  TP_CHECK(!slots.empty());
  for (const SlotId slot : slots) {
    TP_CHECK(Find(slot) == nullptr) << "slot " << slot.value << " twice in a gang";
    members_.push_back({.slot = slot, .worker = {}});
  }
}

const Gang::Member* Gang::Find(SlotId slot) const {
  const auto it = std::ranges::find(members_, slot, &Member::slot);
  return it == members_.end() ? nullptr : &*it;
}

Gang::Member* Gang::At(SlotId slot) {
  const auto it = std::ranges::find(members_, slot, &Member::slot);
  TP_CHECK(it != members_.end()) << "slot " << slot.value;
  return &*it;
}

void Gang::Attach(SlotId slot, const WorkerRef& worker) { At(slot)->worker = worker; }

void Gang::Detach(SlotId slot) { At(slot)->worker = {}; }

std::vector<WorkerRef> Gang::Break(SlotId slot) {
  const WorkerRef lost = At(slot)->worker;
  std::vector<WorkerRef> others;
  for (Member& m : members_) {
    if (m.worker.inc.valid() && m.worker != lost && std::ranges::find(others, m.worker) == others.end())
      others.push_back(m.worker);
    m.worker = {};
  }
  return others;
}

void Gang::Ask() {
  for (Member& m : members_) m.answered = false;
}

bool Gang::Answer(const WorkerRef& worker, SlotId slot) {
  const auto it = std::ranges::find(members_, slot, &Member::slot);
  if (it == members_.end() || it->worker != worker || it->answered) return false;
  it->answered = true;
  return true;
}

bool Gang::Answered() const { return std::ranges::all_of(members_, &Member::answered); }

WorkerRef Gang::leader() const {
  const bool whole = std::ranges::all_of(members_, [](const Member& m) { return m.worker.inc.valid(); });
  return whole && !members_.empty() ? members_.front().worker : WorkerRef{};
}

}  // namespace tidepool::scheduler
