#include "scheduler/machines/previews.h"

#include <algorithm>
#include <utility>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

void Previews::Advance() {
  if (!options_.batch.early_columns || !facts_.rl || !all_.life.running() || facts_.StepsDone()) return;
  if (!all_.trainer.ready() || all_.steps.open() || all_.trainer.aborting()) return;
  const Ledger& ledger = state_.ledger();
  const auto of =
      std::tuple(ledger.changes(), all_.slots.pool().generation(), all_.trainer.fetching(), state_.version());
  if (seen_ == of) return;
  seen_ = of;
  // What a worker had computed went with it.
  std::erase_if(hints_, [&](const auto& entry) {
    const Group* g = ledger.Find(entry.first);
    return g == nullptr || g->phase == GroupPhase::kTrained || !fleet_.IsLive(entry.second.to);
  });
  if (ledger.queued().empty()) return;
  const std::vector<command::GroupMember> idle = Idle();
  if (idle.empty()) return;
  const std::vector<GroupKey> next =
      ledger.LeaseOrder({state_.step().value + 1}, state_.version(), state_.versions());
  const auto batch = static_cast<size_t>(ledger.rules().groups_per_step);
  for (size_t i = 0; i < std::min(next.size(), batch); ++i) {
    if (!hints_.contains(next[i])) Send(next[i], idle);
  }
}

std::vector<command::GroupMember> Previews::Idle() const {
  std::vector<command::GroupMember> idle = all_.slots.Members();
  std::erase_if(idle, [&](const command::GroupMember& m) { return !all_.trainer.Has(SlotOf(m)); });
  return idle;
}

// To the slot with the least to do, by tokens. It need not be the one that trains the group: whoever has a
// column says it to the others.
void Previews::Send(const GroupKey& key, const std::vector<command::GroupMember>& idle) {
  std::map<SlotRef, double> load;
  for (const command::GroupMember& m : idle) load[SlotOf(m)] = 0;
  for (const auto& [hinted, hint] : hints_) {
    if (const auto it = load.find(hint.to); it != load.end()) it->second += hint.tokens;
  }
  const auto least =
      std::ranges::min_element(idle, {}, [&](const command::GroupMember& m) { return load.at(SlotOf(m)); });
  const Group& g = *state_.ledger().Find(key);
  command::Preview preview{
      .worker = least->worker, .slot = least->slot, .epoch = least->epoch, .v = state_.version(), .rows = {}};
  double tokens = 0;
  for (size_t k = 0; k < g.samples.size(); ++k) {
    const Sample& s = g.samples[k];
    if (s.phase != SamplePhase::kReady) continue;
    preview.rows.push_back(g.Tid(k));
    tokens += static_cast<double>(s.enq.prompt_len + s.enq.response_len);
  }
  hints_[key] = {SlotOf(*least), tokens};
  out_.Do(std::move(preview));
}

}  // namespace tidepool::scheduler
