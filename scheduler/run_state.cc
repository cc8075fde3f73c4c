#include "scheduler/run_state.h"

#include <algorithm>
#include <bit>

#include "core/base/hash.h"

namespace tidepool::scheduler {
namespace {

// The highest bits of a state digest name the formula that it was computed by: it is changed with the
// formula.
constexpr int kFormulaShift = 48;
constexpr uint64_t kFormula = 0x5d05;

}  // namespace

// One overload a kind, so that a new kind does not compile until somebody decided what it means.
struct RunState::Applier {
  RunState& s;

  Status operator()(const record::Config& config) {
    const record::RunTerms& r = *config;
    s.config_ = r;
    s.end_run_.reset();
    s.ledger_.SetRules(
        {.groups_per_step = r.groups_per_step,
         .group_size = r.group_size,
         .max_lag_versions = r.max_lag_versions,
         .oversample = r.oversample,
         .min_step_batch_fraction = r.min_step_batch_fraction,
         .max_reissues = r.max_reissues,
         .surplus = FromWord<OversampleMode>(r.oversample_mode).value_or(OversampleMode::kStartOrder),
         .reissue = r.on_stale == Name(OnStale::kReissue),
         .mask = r.on_stale == Name(OnStale::kMask),
         .graded = r.job == Name(JobKind::kRl)});
    return OkStatus();
  }
  Status operator()(const record::Issue& r) { return s.ledger_.ApplyIssue(r); }
  Status operator()(const record::Start&) { return OkStatus(); }
  Status operator()(const record::End& r) { return s.ledger_.ApplyEnd(r); }
  Status operator()(const record::Graded& r) { return s.ledger_.ApplyGraded(r); }
  Status operator()(const record::Enq& r) { return s.ledger_.ApplyEnq(r); }
  Status operator()(const record::Dup&) { return OkStatus(); }
  Status operator()(const record::Lease& r) {
    if (s.open_lease_ >= 0) return DataLoss("LEASE " + std::to_string(r.lease) + " while another is open");
    TP_RETURN_IF_ERROR(s.ledger_.ApplyLease(r));
    s.open_lease_ = r.lease;
    s.next_lease_ = std::max(s.next_lease_, r.lease + 1);
    return OkStatus();
  }
  Status operator()(const record::Unlease& r) {
    TP_RETURN_IF_ERROR(s.ledger_.ApplyUnlease(r));
    s.open_lease_ = -1;
    return OkStatus();
  }
  Status operator()(const record::Drop& r) { return s.ledger_.ApplyDrop(r); }
  Status operator()(const record::StepBegin& r) {
    if (s.open_step_ || s.open_lease_ < 0)
      return DataLoss("STEP_BEGIN " + std::to_string(r.step.value) + " without a lease");
    s.open_step_ = OpenStep{r.step, r.v, s.open_lease_, r.members};
    return OkStatus();
  }
  Status operator()(const record::StepCommit& r) {
    if (!s.open_step_ || s.open_step_->step != r.step || r.v.number != r.step.value) {
      return DataLoss("STEP_COMMIT " + std::to_string(r.step.value) + " is not the open step");
    }
    TP_RETURN_IF_ERROR(s.ledger_.ApplyStepCommit(r));
    s.open_step_.reset();
    s.open_lease_ = -1;
    s.version_ = r.v;
    s.versions_.Committed(r.v, r.digest);
    for (const auto& [name, value] : r.held_out) {
      constexpr std::string_view kBefore = "/before";
      const bool before = name.ends_with(kBefore);
      s.held_out_[before ? StepNumber{0} : r.step]
                 [name.substr(0, name.size() - (before ? kBefore.size() : 0))] = value;
    }
    ++s.steps_committed_;
    return OkStatus();
  }
  Status operator()(const record::StepAbort& r) {
    if (!s.open_step_)
      return DataLoss("STEP_ABORT " + std::to_string(r.step.value) + " without an open step");
    s.open_step_.reset();
    return OkStatus();
  }
  Status operator()(const record::Publish& r) {
    if (s.versions_.IsPublished(r.v)) return DataLoss("PUBLISH of " + ToString(r.v) + " a second time");
    s.versions_.Published(r.v, r.digest);
    return OkStatus();
  }
  Status operator()(const record::Loaded& r) {
    if (RunState::Serving* serving = ServingOf(PlaceOf(r))) serving->loaded = r.v;
    return OkStatus();
  }
  Status operator()(const record::Admit& r) {
    if (RunState::Serving* serving = ServingOf(PlaceOf(r))) serving->admitted = r.v;
    return OkStatus();
  }
  Status operator()(const record::Fence& r) {
    auto& w = s.workers_[r.worker.worker];
    if (w.inc == r.worker.inc) w.fenced = true;
    return OkStatus();
  }
  Status operator()(const record::Join& r) {
    s.workers_[r.worker.worker] = {.inc = r.worker.inc, .fenced = false, .spent = false, .name = r.name};
    s.next_incarnation_ = std::max(s.next_incarnation_, r.worker.inc.value + 1);
    return OkStatus();
  }
  Status operator()(const record::TransitionBegin& r) {
    for (const record::SlotPlan& p : r.slots) {
      SlotFacts& slot = s.slots_[p.slot];
      if (slot.open.valid())
        return DataLoss("T_BEGIN on slot " + std::to_string(p.slot.value) + " inside a transition");
      if (p.epoch <= slot.epoch)
        return DataLoss("T_BEGIN on slot " + std::to_string(p.slot.value) + " without a new epoch");
      slot.open = r.t;
      slot.epoch = p.epoch;
      slot.next = p.to;
      slot.committed = false;
      s.transition_slots_[r.t].push_back(p.slot);
    }
    s.next_transition_ = std::max(s.next_transition_, r.t.value + 1);
    s.transitions_[r.t] = false;
    return OkStatus();
  }
  Status operator()(const record::TransitionCommit& r) {
    s.transitions_[r.t] = true;
    for (const SlotId id : s.transition_slots_[r.t]) {
      SlotFacts& slot = s.slots_.at(id);
      if (slot.open == r.t) slot.committed = true;  // else it has left
    }
    return OkStatus();
  }
  Status operator()(const record::TransitionDone& r) { return Close(r.t); }
  Status operator()(const record::TransitionRolledBack& r) {
    for (const record::SlotPlan& p : r.slots) {
      SlotFacts& slot = s.slots_[p.slot];
      if (p.epoch <= slot.epoch)
        return DataLoss("T_ROLLED_BACK of slot " + std::to_string(p.slot.value) + " without a new epoch");
      slot.epoch = p.epoch;
    }
    return Close(r.t);
  }
  Status operator()(const record::Grant& r) {
    SlotFacts& slot = s.slots_[r.slot];
    if (slot.role != Role::kNone)
      return DataLoss("GRANT of slot " + std::to_string(r.slot.value) + " that is held");
    slot.role = r.role;
    slot.holder = r.worker;
    return OkStatus();
  }
  Status operator()(const record::Release& r) { return Free(r.slot); }
  Status operator()(const record::Quarantine& r) {
    SpendHolder(r.slot);
    return Leave(r.slot);
  }
  // The holder is fenced before, if the loss is its own; after, if that is of another part of its gang. A
  // crash may come in between.
  Status operator()(const record::SlotLost& r) {
    SpendHolder(r.slot);
    return Leave(r.slot);
  }
  Status operator()(const record::CheckpointBegin& r) {
    s.next_checkpoint_ = std::max(s.next_checkpoint_, r.ckpt + 1);
    return OkStatus();
  }
  Status operator()(const record::CheckpointCommit& r) {
    s.checkpoints_[r.ckpt] = r;
    s.next_checkpoint_ = std::max(s.next_checkpoint_, r.ckpt + 1);
    s.checkpointed_.insert(r.step);
    s.ever_checkpointed_ = true;
    return OkStatus();
  }
  Status operator()(const record::CheckpointReject& r) { return Gone(r.ckpt); }
  Status operator()(const record::CheckpointDelete& r) { return Gone(r.ckpt); }
  Status operator()(const record::Restore& r) {
    if (r.new_lineage < s.lineages_) return DataLoss("RESTORE into a used lineage");
    s.open_step_.reset();
    TP_RETURN_IF_ERROR(s.ledger_.ApplyRestore(r.step));
    const Version from{r.old_lineage, r.step.value};
    s.versions_.Fork(r.new_lineage, r.old_lineage, r.step.value);
    const uint64_t digest = s.WeightsDigest(s.versions_.Ancestor(from, r.step.value));
    s.version_ = {r.new_lineage, r.step.value};
    if (digest != 0) s.versions_.Committed(s.version_, digest);
    s.lineages_ = r.new_lineage + 1;
    // A checkpoint of an undone step holds a state that this branch never had.
    std::erase_if(s.checkpoints_, [&](const auto& item) { return item.second.step > r.step; });
    std::erase_if(s.checkpointed_, [&](const StepNumber& step) { return step > r.step; });
    std::erase_if(s.evals_, [&](const auto& item) { return item.first > r.step; });
    std::erase_if(s.held_out_, [&](const auto& item) { return item.first > r.step; });
    return OkStatus();
  }
  Status operator()(const record::Snapshot& r) {
    // A digest of another formula, by an older program, cannot be compared.
    if (r.state_digest >> kFormulaShift != kFormula || r.state_digest == s.Digest()) return OkStatus();
    return DataLoss("SNAPSHOT: the state after the records before it differs from the one that was recorded");
  }
  Status operator()(const record::Fault&) { return OkStatus(); }
  Status operator()(const record::EndRun& r) {
    s.end_run_ = r;
    return OkStatus();
  }
  Status operator()(const record::EvalResult& r) {
    s.evals_[r.step] = r;
    return OkStatus();
  }

  RunState::Serving* ServingOf(const SlotRef& place) {  // nullptr: of an earlier life of that worker
    if (s.workers_[place.worker.worker].inc != place.worker.inc) return nullptr;
    RunState::Serving& serving = s.slots_[place.slot].serving;
    if (serving.by != place.worker) serving = {.by = place.worker, .loaded = {}, .admitted = {}};
    return &serving;
  }
  Status Close(TransitionId t) {
    s.transitions_.erase(t);
    for (const SlotId id : s.transition_slots_[t]) {
      SlotFacts& slot = s.slots_.at(id);
      if (slot.open == t) slot.open = TransitionId{};
    }
    s.transition_slots_.erase(t);
    return OkStatus();
  }
  Status Free(SlotId id) {
    SlotFacts& slot = s.slots_[id];
    slot.role = Role::kNone;
    slot.holder = {};
    return OkStatus();
  }
  void SpendHolder(SlotId id) {
    const WorkerRef holder = s.slots_[id].holder;
    const auto worker = s.workers_.find(holder.worker);
    if (worker != s.workers_.end() && worker->second.inc == holder.inc && !worker->second.fenced)
      worker->second.spent = true;
  }
  Status Leave(SlotId id) {
    s.slots_[id].open = {};  // its transition goes on, or back, without it
    return Free(id);
  }
  Status Gone(int64_t ckpt) {
    s.checkpoints_.erase(ckpt);
    if (!s.checkpoints_.empty()) {
      int64_t oldest = INT64_MAX;
      for (const auto& [id, c] : s.checkpoints_) oldest = std::min(oldest, c.step.value);
      s.ledger_.Forget({oldest});
    }
    return OkStatus();
  }
};

uint64_t RunState::Digest() const {
  uint64_t h = 0x736e6170;
  const auto mix = [&h](int64_t x) { h = Mix64(h ^ static_cast<uint64_t>(x)); };
  const auto version = [&mix](const Version& v) { mix(v.lineage), mix(v.number); };
  const auto real = [&mix](double x) { mix(static_cast<int64_t>(std::bit_cast<uint64_t>(x))); };
  mix(version_.lineage), mix(version_.number), mix(lineages_), mix(open_lease_), mix(next_lease_),
      mix(next_checkpoint_);
  mix(next_transition_), mix(next_incarnation_), mix(steps_committed_), mix(ever_checkpointed_ ? 1 : 0);
  mix(static_cast<int64_t>(WeightsDigest(version_)));
  mix(open_step_ ? 1 : 0);
  if (open_step_) {
    mix(open_step_->step.value), version(open_step_->v), mix(open_step_->lease);
    for (const record::SlotPlan& m : open_step_->members) mix(m.slot.value), mix(m.epoch.value);
  }
  for (const auto& [lineage, branch] : versions_.branches())
    mix(lineage), mix(branch.parent), mix(branch.number);
  for (const auto& [v, digest] : versions_.digests())
    version(v), mix(static_cast<int64_t>(digest)), mix(versions_.IsPublished(v) ? 1 : 0);
  for (const auto& [id, committed] : transitions_) mix(id.value), mix(committed ? 1 : 0);
  for (const auto& [id, slots] : transition_slots_) {
    mix(id.value);
    for (const SlotId slot : slots) mix(slot.value);
  }
  mix(end_run_ ? 1 + end_run_->code : 0);
  for (const auto& [step, e] : evals_) {
    mix(step.value), version(e.v), mix(e.correct), mix(e.total);
    // Journals of before have neither these fields nor another digest for want of them.
    if (e.graded != 0 || e.mean != 0) mix(e.graded), real(e.mean);
  }
  for (const auto& [step, figures] : held_out_) {
    mix(step.value);
    for (const auto& [name, value] : figures) real(value);
  }
  const auto groups = [&](const std::map<GroupKey, Group>& all) {
    for (const auto& [key, g] : all) {
      mix(key.ordinal), mix(key.issue), mix(g.gid.value), mix(static_cast<int64_t>(g.phase)), mix(g.start);
      mix(g.lease), mix(g.step.value), mix(g.undone_step);
      for (const Sample& x : g.samples) {
        mix(static_cast<int64_t>(x.phase)), mix(x.att), mix(x.ended ? 1 : 0),
            mix(static_cast<int64_t>(x.end));
        mix(static_cast<int64_t>(x.reason)), mix(static_cast<int64_t>(x.enq.digest)), mix(x.enq.response_len);
        version(x.enq.wv_min), version(x.enq.wv_max), mix(x.enq.payload_file), real(x.reward);
        for (const auto& [v, tokens] : x.enq.versions) version(v), mix(tokens);
        for (const auto& [name, value] : x.rewards) real(value);
      }
    }
  };
  groups(ledger_.groups());
  for (const auto& [step, trained] : ledger_.trained()) groups(trained);
  mix(ledger_.open()), mix(ledger_.issued_samples()), mix(ledger_.trained_samples()), mix(ledger_.next_gid());
  for (const auto& [ordinal, issue] : ledger_.reissues()) mix(ordinal), mix(issue);
  for (const auto& [id, c] : checkpoints_)
    mix(id), mix(c.step.value), mix(c.cut.value), mix(static_cast<int64_t>(c.manifest_digest)),
        mix(static_cast<int64_t>(c.weights_digest));
  for (const auto& [id, w] : workers_)
    mix(id.value), mix(w.inc.value), mix(w.fenced ? 1 : 0), mix(w.spent ? 1 : 0);
  for (const auto& [id, x] : slots_)
    mix(id.value), mix(static_cast<int64_t>(x.role)), mix(x.epoch.value), mix(x.holder.worker.value),
        mix(x.holder.inc.value), mix(x.open.value), mix(x.committed ? 1 : 0),
        mix(static_cast<int64_t>(x.next)), mix(x.serving.by.inc.value), version(x.serving.loaded),
        version(x.serving.admitted);
  return (h & ((uint64_t{1} << kFormulaShift) - 1)) | (kFormula << kFormulaShift);
}

Status RunState::Apply(const JournalEntry& e) {
  if (e.lsn.valid() && e.lsn != next_lsn()) {
    return DataLoss("journal: record " + std::to_string(e.lsn.value) + " where " +
                    std::to_string(next_lsn().value) + " was expected");
  }
  return Apply(e.record);
}

Status RunState::Apply(const JournalRecord& r) {
  const Status applied = std::visit(Applier{*this}, r);
  if (!applied.ok())
    return applied.At("journal record " + std::to_string(records_) + " (" + RecordName(r) + ")");
  ++records_;
  return OkStatus();
}

}  // namespace tidepool::scheduler
