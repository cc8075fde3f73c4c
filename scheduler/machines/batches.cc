#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

const std::vector<GroupKey>& Batches::Choose() {
  const std::pair<int64_t, Version> of{state_.ledger().changes(), state_.version()};
  if (batch_of_ != of) {
    batch_ = state_.ledger().ChooseBatch({state_.step().value + 1}, state_.version(), state_.versions());
    batch_of_ = of;
  }
  return batch_;
}

// A batch is ready, but a group that is still generated would expire by training it: worth a short wait if
// that group is about to end (scheduler.straggler_wait of a step's time, once a batch).
bool Batches::WaitForStraggler() {
  // The decision not to wait stands for this step: slots are already on their way to it.
  if (not_waiting_ == state_.step()) return false;
  if (StragglerIsWorthIt()) return true;
  not_waiting_ = state_.step();
  return false;
}

bool Batches::StragglerIsWorthIt() {
  if (!facts_.rl || urgent_.empty() || state_.ledger().Replays(state_.step()) > 0)
    return false;  // what is trained again is not chosen
  // A group that expires has been slow, so it is usually long. If drops already lean towards long samples,
  // the step waits for urgent groups as long as they take (Q10; their own waits have deadlines); else only
  // for the configured share of a step. In the first steps nothing has been dropped yet: if drops would lean,
  // the step waits about as long as a step took so far.
  const bool filling = state_.step().value <= 2 * state_.ledger().rules().max_lag_versions;
  if (foreseen_.first != state_.step()) foreseen_ = {state_.step(), filling && WouldLean()};
  const bool leans = state_.ledger().fairness().Leans(), fair = !leans && !foreseen_.second;
  double wait_s =
      fair ? options_.batch.straggler_wait * all_.steps.seconds() : options_.fleet.stall_timeout_s / 4;
  if (!fair && !leans)
    wait_s = std::min(wait_s, Seconds(now_ - TimePoint{}) / static_cast<double>(state_.step().value + 1));
  if (wait_s <= 0 || (fair && all_.rollouts.token_s() <= 0)) return false;
  if (straggling_since_ && now_ - *straggling_since_ > FromSeconds(wait_s)) return false;
  for (const GroupId gid : urgent_) {
    const int64_t left = all_.rollouts.requests().ExpectedLeft(gid);
    if (left == 0 || (fair && static_cast<double>(left) * all_.rollouts.token_s() > wait_s)) continue;
    if (!straggling_since_) straggling_since_ = now_;
    return true;
  }
  return false;
}

// Whether drops would lean towards long samples (LengthFairness) if every urgent group that cannot end within
// the next step were dropped. The first samples of a run begin together, so their long ones would expire
// together, before any drop has been counted.
bool Batches::WouldLean() const {
  LengthFairness then = state_.ledger().fairness();
  for (const auto& [key, g] : state_.ledger().groups()) {
    if (!urgent_.contains(g.gid) ||
        static_cast<double>(all_.rollouts.requests().ExpectedLeft(g.gid)) * all_.rollouts.token_s() <=
            all_.steps.seconds())
      continue;
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Request* r = all_.rollouts.requests().Find(g.Tid(k));
      then.Dropped(r != nullptr ? r->generated + all_.rollouts.requests().LikelyLeft(*r)
                                : g.samples[k].enq.response_len);
    }
  }
  then.Step();
  return then.Leans();
}

// Groups that would expire at the next version are generated first, as long as its batch is not chosen. Once
// it is chosen without them they are too late: they get no more chunks, unless that step fails.
void Batches::MarkUrgent() {
  urgent_.clear();
  std::set<GroupId> too_late;
  const Ledger& ledger = state_.ledger();
  const VersionGraph& versions = state_.versions();
  if (facts_.rl && !ledger.rules().mask) {
    for (const auto& [key, g] : ledger.groups()) {
      if (g.phase != GroupPhase::kRunning) continue;
      for (size_t k = 0; k < g.samples.size(); ++k) {
        Version oldest = g.samples[k].enq.wv_min;
        if (const Request* r = all_.rollouts.requests().Find(g.Tid(k)); r != nullptr) oldest = r->v_min;
        if (oldest.valid() && versions.Lag(oldest, state_.version()) >= ledger.rules().max_lag_versions) {
          (state_.open_lease() >= 0 ? too_late : urgent_).insert(g.gid);
          break;
        }
      }
    }
  }
  if (ledger.rules().max_lag_versions > 0) all_.rollouts.SetUrgent(urgent_, too_late);
}

}  // namespace tidepool::scheduler
