#include <algorithm>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// Batches in a row whose bad rows were named. The next one is without them, so a few bad rows end by
// themselves; a trainer that refuses whatever it is given would go through all data.
constexpr int64_t kBadBatches = 10;

}  // namespace

void Steps::On(const event::TrainDone& e) {
  if (!fleet_.IsLive(SlotOf(e)) || !open_ || e.lease != open_->lease || e.step != open_->step ||
      !IsMember(SlotOf(e)) || open_->done.contains(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kTrain, e.slot.value});
  open_->done[SlotOf(e)] = e;
  if (open_->done.size() < open_->members.size()) return;
  if (!ReplicasAgree(e.step)) return;
  train_failures_ = bad_batches_ = 0;
  train_s_ = train_s_ == 0 ? e.seconds : 0.8 * train_s_ + 0.2 * e.seconds;
  double slowest = 0;
  for (const auto& [ref, done] : open_->done) slowest = std::max(slowest, done.seconds);
  all_.slots.StepTrained(static_cast<int64_t>(open_->members.size()), slowest, open_->tokens);
  if (!e.finite) {
    NotFinite(e);
    return;
  }
  if (e.step >= nonfinite_at_) nonfinite_ = 0;
  if (SameRows(e.step)) Commit();
}

// The step as it was computed is the run's next one.
void Steps::Commit() {
  Open t = std::move(*open_);
  open_.reset();
  t.report.dropped_stale = state_.ledger().stale_since_commit();
  t.report.filtered = state_.ledger().filtered_since_commit();
  const auto redundant = all_.samples.TakeRedundant();
  t.report.redundant = redundant.samples;
  t.report.redundant_tokens = redundant.tokens;
  t.report.signal = state_.ledger().StepSignal();
  t.report.v = {t.v.lineage, t.step.value};
  const uint64_t digest = t.done.begin()->second.weights_digest;
  auto held_out = std::move(t.done.begin()->second.held_out);
  const bool judged = !held_out.empty();
  out_.Record(record::StepCommit{t.step, t.report.v, digest, std::move(t.rows), std::move(held_out),
                                 t.done.begin()->second.replay});
  if (judged) all_.checkpoints.KeepBest();
  all_.trainer.Committed(t.step, digest, t.members);
  out_.Do(std::move(t.report));
}

bool Steps::ReplicasAgree(StepNumber step) {
  const event::TrainDone& first = open_->done.begin()->second;
  for (const auto& [ref, done] : open_->done) {
    if (done.finite == first.finite && (!done.finite || done.weights_digest == first.weights_digest))
      continue;
    all_.life.Fail("replicas_differ", ref.worker,
                   "after step " + std::to_string(step.value) + " its weights differ from those of " +
                       options_.NameOf(first.worker.worker) +
                       "; restart from the newest checkpoint, and look at this device");
    return false;
  }
  return true;
}

bool Steps::SameRows(StepNumber step) {
  std::vector<GivenTo> given;
  for (const auto& [ref, done] : open_->done) {
    for (const event::GivenRow& row : done.rows) given.push_back({row, ref.worker});
  }
  WorkerRef who = open_->members.front().worker;
  const std::string why = OtherRow(std::move(given), who);
  if (why.empty()) return true;
  all_.life.Fail("rows_differ", who,
                 "step " + std::to_string(step.value) + ": " + why + "; nothing of this step is kept");
  return false;
}

// No update was made. The batch is set aside, so that it is not what every later step trips over.
void Steps::NotFinite(const event::TrainDone& e) {
  const std::set<GroupKey> keys = Keys();
  std::string ids;
  for (const GroupKey& key : keys)
    ids += (ids.empty() ? "" : ",") + std::to_string(key.ordinal) + "." + std::to_string(key.issue);
  const StepNumber step = e.step;
  Abort("loss or gradient is not finite");
  out_.Warn("nonfinite",
            "step " + std::to_string(step.value) +
                " is not kept: its loss or gradient is not finite; its groups are dropped: " + ids,
            {{"step", std::to_string(step.value)}, {"groups", ids}});
  SetAside(keys, DropReason::kPoison);
  nonfinite_at_ = std::max(nonfinite_at_, step);
  if (++nonfinite_ >= std::max<int64_t>(options_.max_nonfinite_steps, 1)) {
    all_.life.Fail("nonfinite", e.worker,
                   std::to_string(nonfinite_) +
                       " steps in a row had a loss or gradient that is not finite; "
                       "the weights of step " +
                       std::to_string(state_.step().value) + " are kept (last groups: " + ids + ")");
  }
}

// Notes what a trainer was given in the rows of the open step. Says which of them is not what was stored, or
// was trained twice, or with tokens that are too old, and by whom.
std::string Steps::OtherRow(std::vector<GivenTo> given, WorkerRef& who) {
  const auto tid = [](const GivenTo& g) { return g.row.tid; };
  std::ranges::sort(given, {}, tid);
  if (const auto twice = std::ranges::adjacent_find(given, {}, tid); twice != given.end()) {
    who = twice->worker;
    return "sample " + ToString(twice->row.tid) + " was given to " + options_.NameOf(twice->worker.worker) +
           " and to " + options_.NameOf((twice + 1)->worker.worker);
  }
  for (record::TrainedRow& row : open_->rows) {
    const auto it = std::ranges::lower_bound(given, row.tid, {}, tid);
    const bool there = it != given.end() && it->row.tid == row.tid;
    row.digest = there ? it->row.digest : 0;
    if (!there) return "sample " + ToString(row.tid) + " was given to no trainer";
    who = it->worker;
    const Sample* s = state_.ledger().Find(row.tid);
    if (s == nullptr || row.digest == 0 || row.digest != s->enq.digest)
      return "the trainer was given other bytes of sample " + ToString(row.tid) + " than its ENQ names";
    if (it->row.masked != row.masked) {
      return "the trainer left " + std::to_string(it->row.masked) + " tokens of sample " + ToString(row.tid) +
             " without loss, " + std::to_string(row.masked) + " are too old";
    }
  }
  if (given.size() == open_->rows.size()) return "";
  return "the trainers were given " + std::to_string(given.size()) + " rows of a batch of " +
         std::to_string(open_->rows.size());
}

void Steps::On(const event::TrainFailed& e) {
  if (!fleet_.IsLive(SlotOf(e)) || !open_ || e.lease != open_->lease || !IsMember(SlotOf(e)) ||
      open_->done.contains(SlotOf(e))) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  const std::set<GroupKey> keys = Keys();
  const std::vector<BadRow> bad = e.data ? OfStep(e.bad) : std::vector<BadRow>();
  Abort(e.why, SlotOf(e));
  if (e.torn) all_.trainer.Torn(SlotOf(e));
  out_.Say(LogLevel::kWarn, e.worker, "train_failed",
           "failed in step " + std::to_string(e.step.value) + ": " + e.why,
           {{"step", std::to_string(e.step.value)}});
  if (!bad.empty()) return BadRows(e, bad);
  if (++train_failures_ >= kTries) {
    all_.life.Fail("train", e.worker,
                   "step " + std::to_string(e.step.value) + " failed " + std::to_string(train_failures_) +
                       " times: " + e.why,
                   e.step);
    return;
  }
  if (e.data) SetAside(keys, DropReason::kDataInvalid);
}

// Their groups are never trained. The others are in the queue again, each at its place.
void Steps::BadRows(const event::TrainFailed& e, const std::vector<BadRow>& bad) {
  for (const BadRow& row : bad) {
    const std::string tid = ToString(row.tid);
    SetAside({KeyOf(row.tid)}, DropReason::kDataInvalid);
    out_.Record(record::Fault{"row", tid, {}, row.why, {}, row.tid});
    out_.Warn(Name(DropReason::kDataInvalid),
              "sample " + tid + " is dropped with its group, the trainer cannot use it: " + row.why,
              {{"tid", tid}, {"step", std::to_string(e.step.value)}});
  }
  if (++bad_batches_ < kBadBatches) return;
  all_.life.Fail("data_invalid", e.worker,
                 std::to_string(bad_batches_) + " batches in a row had rows that cannot be trained on; " +
                     "the last one: sample " + ToString(bad[0].tid) + ": " + bad[0].why,
                 e.step);
}

// The lease ends; the others of the batch are trained in another one.
void Steps::On(const event::PayloadLost& e) {
  if (!open_ || e.lease != open_->lease) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  Abort(e.why);
  out_.Record(record::Fault{"payload", ToString(e.tid), {}, e.why, {}, e.tid});
  SetAside({KeyOf(e.tid)}, DropReason::kDataInvalid);
}

bool Steps::Replays() const {
  if (!open_) return false;
  return std::ranges::any_of(Keys(), [&](const GroupKey& key) {
    const Group* g = state_.ledger().Find(key);
    return g != nullptr && g->undone_step > 0;
  });
}

std::set<GroupKey> Steps::Keys() const {
  std::set<GroupKey> keys;
  for (const record::TrainedRow& row : open_->rows) keys.insert(KeyOf(row.tid));
  return keys;
}

std::vector<BadRow> Steps::OfStep(const std::vector<BadRow>& bad) const {
  std::set<SampleId> rows;
  for (const record::TrainedRow& row : open_->rows) rows.insert(row.tid);
  std::vector<BadRow> out;
  for (const BadRow& row : bad) {
    if (rows.erase(row.tid) > 0) out.push_back(row);
  }
  return out;
}

void Steps::SetAside(const std::set<GroupKey>& keys, DropReason reason) {
  for (const GroupKey& key : keys) all_.samples.DropGroup(key, reason);
}

}  // namespace tidepool::scheduler
