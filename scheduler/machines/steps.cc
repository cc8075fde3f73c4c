#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "scheduler/balance.h"
#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

constexpr double kMinTrainSeconds = 600;  // a first step has no measured time yet
constexpr double kTrainFactor = 20;

}  // namespace

void Steps::Advance() {
  if (all_.life.over() || !all_.trainer.ready()) return;
  if (all_.checkpoints.Due()) all_.slots.CycleDisturbed();
  const bool wanted = MayTrain() && !all_.batches.Choose().empty() && !all_.batches.WaitForStraggler();
  // Members take the state and form their group as soon as their slots are theirs.
  if (!wanted && all_.trainer.Whole() && group_checked_ == all_.slots.pool().generation() &&
      !all_.trainer.fetching() && forming_.empty())
    return;
  group_checked_ = all_.slots.pool().generation();
  if (PrepareGroup() && wanted) {
    all_.batches.StepBegins();
    Begin(std::vector<GroupKey>(all_.batches.chosen()));
  }
}

bool Steps::MayTrain() const {
  if (!all_.life.running() || !all_.trainer.Idle() || facts_.StepsDone()) return false;
  if (all_.trainer.published() != state_.version() || !state_.versions().IsPublished(state_.version()))
    return false;
  if (all_.checkpoints.Due()) return false;
  // An evaluation that waits needs the newest weights; a next step would replace them.
  if (!all_.evaluations.current().waiting().empty()) return false;
  const auto& active = all_.evaluations.current().active();
  if (active && active->v == state_.version()) return all_.rollouts.Serves(state_.version());
  return true;
}

TrainerNeed Steps::DecideNeed() {
  if (open_ || all_.trainer.electing() || all_.trainer.aborting()) return TrainerNeed::kStep;
  if (!all_.trainer.ready() || !all_.trainer.Whole()) return TrainerNeed::kState;
  if (facts_.StepsDone() || !all_.life.running()) return TrainerNeed::kDone;
  if (!state_.versions().IsPublished(state_.version())) return TrainerNeed::kPublish;
  if (MayTrain() && !all_.batches.Choose().empty() && !all_.batches.WaitForStraggler())
    return TrainerNeed::kBatch;
  return TrainerNeed::kNothing;
}

// How long a step may go without a sign of progress. It is no limit on the whole step: a job with long steps
// would never get through one.
Duration Steps::Patience() const { return FromSeconds(std::max(kMinTrainSeconds, kTrainFactor * train_s_)); }

void Steps::Begin(const std::vector<GroupKey>& keys) {
  if (preparing_) all_.slots.GroupFormed(Seconds(now_ - *std::exchange(preparing_, std::nullopt)));
  SendShares(OpenStep(keys));
}

Steps::Batch Steps::OpenStep(const std::vector<GroupKey>& keys) {
  const Ledger& ledger = state_.ledger();
  Open t{.lease = state_.next_lease(),
         .step = {state_.step().value + 1},
         .v = state_.version(),
         .rows = {},
         .report = {},
         .tokens = 0,
         .members = all_.slots.Members(),
         .done = {}};
  Batch batch;
  std::vector<SampleId> tids;
  double lag_sum = 0;
  t.report.lag_hist.assign(static_cast<size_t>(ledger.rules().max_lag_versions + 1), 0);
  for (const GroupKey& key : keys) {
    const Group& g = *ledger.Find(key);
    auto& group = batch.groups.emplace_back();
    batch.costs.push_back(0);
    for (size_t k = 0; k < g.samples.size(); ++k) {
      const Sample& s = g.samples[k];
      if (s.phase != SamplePhase::kReady) continue;
      const int64_t tokens = s.enq.prompt_len + s.enq.response_len;
      group.push_back(g.Tid(k));
      t.tokens += static_cast<double>(tokens);
      batch.costs.back() += static_cast<double>(tokens);
      const auto [row, lag] = RowOf(g.Tid(k), s.enq, t.v, batch.stale);
      t.rows.push_back(row);
      ++t.report.lag_hist[static_cast<size_t>(lag)];
      t.report.lag_max = std::max(t.report.lag_max, lag);
      lag_sum += static_cast<double>(lag);
    }
    tids.insert(tids.end(), group.begin(), group.end());
  }
  t.report.step = t.step;
  t.report.members = static_cast<int64_t>(t.members.size());
  t.report.lag_mean = lag_sum / static_cast<double>(std::max<size_t>(tids.size(), 1));
  batch.rows = static_cast<int64_t>(tids.size());
  std::vector<record::SlotPlan> plan;
  for (const command::GroupMember& m : t.members)
    plan.push_back({m.slot, Role::kActor, Role::kActor, m.epoch});
  out_.Record(record::Lease{t.lease, t.step, std::move(tids), t.members.front().worker});
  out_.Record(record::StepBegin{t.step, t.v, std::move(plan)});
  all_.batches.MarkUrgent();
  open_ = std::move(t);
  return batch;
}

bool Steps::MayCommit(const RunState::OpenStep& step, const std::vector<SampleId>& rows,
                      const std::map<SlotRef, event::TrainDone>& finished) const {
  if (rows.empty() || step.step.value != state_.step().value + 1 || step.v != state_.version()) return false;
  // The same slots train, and all of them have made it alike.
  const std::vector<command::GroupMember> members = all_.slots.Members();
  if (members.size() != step.members.size() || finished.size() != members.size()) return false;
  for (size_t i = 0; i < members.size(); ++i) {
    const auto done = finished.find(SlotOf(members[i]));
    if (members[i].slot != step.members[i].slot || done == finished.end() || !done->second.finite ||
        done->second.weights_digest != finished.begin()->second.weights_digest)
      return false;
  }
  // Its groups wait with the rows that they had, and nothing has become too old.
  std::map<GroupKey, size_t> of_group;
  for (const SampleId& tid : rows) ++of_group[KeyOf(tid)];
  for (const auto& [key, n] : of_group) {
    const Group* g = state_.ledger().Find(key);
    if (g == nullptr || g->phase != GroupPhase::kQueued) return false;
    const auto ready = std::ranges::count(g->samples, SamplePhase::kReady, &Sample::phase);
    if (static_cast<size_t>(ready) != n) return false;
  }
  return true;
}

void Steps::CommitFinished(const std::vector<SampleId>& rows, std::map<SlotRef, event::TrainDone> finished) {
  std::set<GroupKey> keys;
  for (const SampleId& tid : rows) keys.insert(KeyOf(tid));
  (void)OpenStep({keys.begin(), keys.end()});
  open_->done = std::move(finished);
  if (SameRows(open_->step)) Commit();
}

// A sample as it is trained by weights `v`, and the lag of its oldest token that has a loss. Adds to `stale`
// the versions whose tokens have none (on_stale: mask): their lag is beyond the bound.
std::pair<record::TrainedRow, int64_t> Steps::RowOf(const SampleId& tid, const record::Enq& enq,
                                                    const Version& v, std::set<Version>& stale) const {
  const VersionGraph& versions = state_.versions();
  const int64_t eta = state_.ledger().rules().max_lag_versions;
  record::TrainedRow row{tid, enq.wv_min, 0, 0};
  int64_t lag = std::max(versions.Lag(enq.wv_min, v), versions.Lag(enq.wv_max, v));
  if (lag <= eta) return {row, lag};
  // What is not known run by run has its oldest version between the two that are.
  row.oldest = enq.versions.empty() ? versions.FirstWithin(enq.wv_min, enq.wv_max, v, eta) : Version{};
  lag = enq.versions.empty() ? eta : 0;
  for (const record::VersionTokens& run : enq.versions) {
    const int64_t behind = versions.Lag(run.v, v);
    if (behind > eta) {
      stale.insert(run.v);
      row.masked += run.tokens;
    } else if (!row.oldest.valid() || behind > lag) {
      row.oldest = run.v;
      lag = behind;
    }
  }
  return {row, lag};
}

// Every member of the open step gets its share of the batch.
void Steps::SendShares(Batch batch) {
  const auto world = static_cast<int64_t>(open_->members.size());
  const int64_t tensor = options_.fleet.tensor;
  const auto shares = BalancedPartition(batch.costs, world / tensor);
  for (int64_t rank = 0; rank < world; ++rank) {
    const command::GroupMember& m = open_->members[static_cast<size_t>(rank)];
    command::Train train{.worker = m.worker,
                         .slot = m.slot,
                         .epoch = m.epoch,
                         .lease = open_->lease,
                         .step = open_->step,
                         .v = open_->v,
                         .share = {},
                         .group_epoch = world > 1 ? group_epoch_ : 0,
                         .rank = rank,
                         .world = world,
                         .tensor = tensor,
                         .total_rows = batch.rows};
    if (rank % tensor == 0)
      for (const int64_t i : shares[static_cast<size_t>(rank / tensor)])
        train.share->groups.push_back(std::move(batch.groups[static_cast<size_t>(i)]));
    all_.rollouts.Forget(m.slot);
    train.share->stale.assign(batch.stale.begin(), batch.stale.end());
    out_.Do(std::move(train));
    waits_.Begin({WaitKind::kTrain, m.slot.value},
                 {m.worker, now_, now_ + Patience(), "step=" + std::to_string(open_->step.value)});
  }
}

// `but`: the member that is known to be out of the step already (lost, or it said so).
void Steps::Abort(const std::string& why, const SlotRef& but) {
  if (!open_) return;
  const Open t = std::move(*open_);
  open_.reset();
  all_.slots.CycleDisturbed();
  out_.Record(record::StepAbort{t.step, why});
  out_.Record(record::Unlease{t.lease, why});
  all_.batches.MarkUrgent();
  for (const command::GroupMember& m : t.members) waits_.End({WaitKind::kTrain, m.slot.value});
  if (t.members.size() < 2 || t.done.size() == t.members.size()) return;  // nobody is inside it any more
  // Its communicators are unusable once one member has left.
  group_.clear();
  for (const command::GroupMember& m : t.members) {
    const bool out = m.worker == but.worker && (m.slot == but.slot || !but.slot.valid());
    if (out || !fleet_.IsLive(m.worker)) continue;
    all_.trainer.LeaveStep(m, t.lease, t.step, group_epoch_);
  }
  all_.trainer.StepAborted();
}

void Steps::EndEvaluation() {
  if (!open_) return;
  for (const command::GroupMember& m : open_->members) {
    if (!open_->done.contains({m.worker, m.slot}))
      out_.Do(command::EndEvaluation{m.worker, m.slot, m.epoch, open_->lease});
  }
}

}  // namespace tidepool::scheduler
