#include "scheduler/checker.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "scheduler/length_fairness.h"

namespace tidepool::scheduler {
namespace {

enum class Where : uint8_t { kRunning, kAwaiting, kQueued, kLeased, kTrained, kDropped };

struct Row {
  Where where = Where::kRunning;
  int32_t att = 0;
  bool enqueued = false, ended = false, graded = false;
  int64_t gid = -1, lease = -1, step = -1;
  int32_t length = 0;          // response tokens, once they are known
  Version oldest, newest;
  DropReason reason = DropReason::kStale;
};

struct GroupFacts {
  int64_t ordinal = -1;
  int32_t issue = 0;
  std::vector<SampleId> tids;
  int64_t open_rows = 0;       // neither trained nor dropped
};

struct SlotState {
  Role role = Role::kNone;
  int64_t epoch = 0;
  WorkerRef holder;
  int64_t transition = -1;
  bool released = false, quarantined = false;
  Role owed = Role::kNone;     // after a rollback: what it was released from
  uint64_t taken_ns = 0;       // last left rollout in a transition of this life
  uint32_t taken_epoch = 0;
};

struct TransitionState {
  std::vector<record::SlotPlan> plan;
  bool committed = false;
  uint64_t begun_ns = 0;
  uint32_t ctl_epoch = 0;
  int64_t deadline_ms = 0;
};

struct WorkerState {
  bool fenced = false;
  Version loaded, admitted;
};

struct CheckpointState {
  int64_t step = -1, begin_lsn = -1;
  bool committed = false, rejected = false, deleted = false, undone = false;
};

std::string S(int64_t x) { return std::to_string(x); }

}  // namespace

struct Checker::State {
  CheckResult r;
  const JournalEntry* now = nullptr;
  std::optional<record::Config> config;
  std::map<SampleId, Row> rows;
  std::map<int64_t, GroupFacts> groups;                       // by gid
  std::map<int64_t, std::map<int32_t, int64_t>> ordinals;     // ordinal -> issue -> gid
  int64_t open_groups = 0;
  std::optional<record::Lease> lease;
  std::optional<record::StepBegin> step;
  std::set<int64_t> step_slots;                               // of its members
  Version current{0, 0};
  std::map<int32_t, std::vector<uint64_t>> path;              // lineage -> digest of each number, inherited ones too
  std::set<Version> published;
  std::map<int32_t, int64_t> last_published;
  std::map<Version, uint64_t> committed;                      // STEP_COMMIT and what RESTORE carried over
  std::map<WorkerRef, WorkerState> workers;
  std::map<int64_t, SlotState> slots;
  std::map<WorkerId, int64_t> slot_of;                        // that it was granted last
  std::map<int64_t, TransitionState> transitions;             // open ones
  int64_t last_transition = -1;
  std::map<int64_t, CheckpointState> checkpoints;
  int64_t last_checkpoint = -1;
  std::map<std::string, std::vector<std::pair<uint32_t, uint64_t>>> losses;  // of workers: life of the controller, time
  bool step0_committed = false, fault_seen = false;
  int64_t last_inc = -1, last_lease = -1;

  bool Violation(const char* predicate, std::string why) {
    if (!r.ok) return false;
    r.ok = false;
    r.predicate = predicate;
    r.lsn = now->lsn;
    r.why = std::string(RecordName(now->record)) + ": " + std::move(why);
    return false;
  }

  [[nodiscard]] int64_t Capacity() const {
    const auto b = static_cast<double>(config->groups_per_step);
    return config->max_lag_versions * config->groups_per_step + static_cast<int64_t>(std::ceil(config->oversample * b - 1e-9));
  }
  LengthFairness fairness;
  [[nodiscard]] bool Rl() const { return config->job == "rl"; }

  // Digest of the weights with number n on the path of v; 0: not known.
  [[nodiscard]] uint64_t At(const Version& v, int64_t n) const {
    const auto it = path.find(v.lineage);
    return it == path.end() || n < 0 || n >= static_cast<int64_t>(it->second.size()) ? 0 : it->second[static_cast<size_t>(n)];
  }
  // Lag through the last number at which both paths had the same weights. A path without a known digest
  // shares its place only with itself (the same lineage).
  [[nodiscard]] int64_t Lag(const Version& made, const Version& trained) const {
    int64_t c = std::min(made.number, trained.number);
    if (made.lineage != trained.lineage) {
      while (c > 0 && (At(made, c) == 0 || At(made, c) != At(trained, c))) --c;
    }
    return (trained.number - c) + (made.number - c);
  }
  void SetPath(const Version& v, uint64_t digest) {
    auto& p = path[v.lineage];
    if (static_cast<int64_t>(p.size()) <= v.number) p.resize(static_cast<size_t>(v.number) + 1, 0);
    p[static_cast<size_t>(v.number)] = digest;
  }

  bool Trusted(const WorkerRef& ref, const char* what) {
    const auto it = workers.find(ref);
    if (it == workers.end()) return Violation("Q8", std::string(what) + " from " + ToString(ref) + ", which never joined");
    if (it->second.fenced) return Violation("Q8", std::string(what) + " from " + ToString(ref) + " after its FENCE");
    return true;
  }

  // --- samples

  bool On(const record::Config& c) {
    if (config && (config->groups_per_step != c.groups_per_step || config->group_size != c.group_size || config->job != c.job)) {
      return Violation("journal", "job, groups_per_step or group_size changed within a run");
    }
    if (c.groups_per_step <= 0 || c.group_size <= 0) return Violation("journal", "groups_per_step and group_size have to be positive");
    config = c;
    return true;
  }

  bool NewGroup(const record::Issue& i) {
    if (open_groups >= Capacity()) {
      return Violation("Q5", "group " + S(i.gid.value) + " is admitted with " + S(open_groups) + " open, capacity is " + S(Capacity()));
    }
    auto& issues = ordinals[i.tid.ordinal];
    const int32_t expected = issues.empty() ? 0 : issues.rbegin()->first + 1;
    if (i.tid.issue != expected) return Violation("Q9", "row " + S(i.tid.ordinal) + " is issued as " + S(i.tid.issue) + ", expected " + S(expected));
    if (i.tid.issue > config->max_reissues) return Violation("Q3", "row " + S(i.tid.ordinal) + " is issued more than max_reissues times again");
    if (expected > 0) {
      bool expired = false;
      for (const SampleId& tid : groups.at(issues.rbegin()->second).tids) {
        const Row& row = rows.at(tid);
        if (row.where != Where::kDropped) return Violation("Q9", "row " + S(i.tid.ordinal) + " is issued again while " + ToString(tid) + " is not dropped");
        expired |= row.reason == DropReason::kStale;
      }
      if (!expired) return Violation("Q9", "row " + S(i.tid.ordinal) + " is issued again, but did not expire");
    }
    issues[i.tid.issue] = i.gid.value;
    // Rows are read concurrently, so a few may be overtaken; none may stay behind for good.
    const int64_t holes = ordinals.rbegin()->first + 1 - static_cast<int64_t>(ordinals.size());
    if (holes > Capacity()) return Violation("Q9", S(holes) + " rows before " + S(i.tid.ordinal) + " were never issued");
    GroupFacts& g = groups[i.gid.value];
    g.ordinal = i.tid.ordinal;
    g.issue = i.tid.issue;
    ++open_groups;
    return true;
  }

  bool On(const record::Issue& i) {
    if (!step0_committed) return Violation("C8", "issued before a checkpoint of step 0 was committed");
    if (i.tid.sample < 0 || i.tid.sample >= config->group_size || i.tid.ordinal < 0) return Violation("Q7", ToString(i.tid) + " is outside its group");
    const auto it = rows.find(i.tid);
    if (it != rows.end()) {
      Row& row = it->second;
      if (row.where != Where::kRunning || row.enqueued) return Violation("Q2", ToString(i.tid) + " is issued again after its ENQ or end");
      if (i.att != row.att + 1) return Violation("Q1", "attempt " + S(i.att) + " of " + ToString(i.tid) + " follows " + S(row.att));
      if (row.gid != i.gid.value) return Violation("Q7", ToString(i.tid) + " changed its group");
      const int64_t gid = row.gid;
      row = Row{};
      row.gid = gid;
      row.att = i.att;
      return true;
    }
    if (i.att != 0) return Violation("Q1", ToString(i.tid) + " begins with attempt " + S(i.att));
    if (!groups.contains(i.gid.value) && !NewGroup(i)) return false;
    GroupFacts& g = groups[i.gid.value];
    if (g.ordinal != i.tid.ordinal || g.issue != i.tid.issue) return Violation("Q7", ToString(i.tid) + " joins a group of another row");
    g.tids.push_back(i.tid);
    ++g.open_rows;
    rows[i.tid].gid = i.gid.value;
    ++r.issued;
    return true;
  }

  Row* Known(const SampleId& tid) {
    const auto it = rows.find(tid);
    if (it != rows.end()) return &it->second;
    Violation("Q1", ToString(tid) + " was never issued");
    return nullptr;
  }

  bool On(const record::Start& x) {
    Row* row = Known(x.tid);
    if (row == nullptr || !Trusted(x.worker, "chunk")) return false;
    if (row->where != Where::kRunning || row->att != x.att || row->ended) return Violation("Q1", ToString(x.tid) + " is not being generated in attempt " + S(x.att));
    const auto held = slot_of.find(x.worker.worker);
    if (held == slot_of.end() || slots[held->second].holder != x.worker) return Violation("G8", ToString(x.worker) + " holds no slot");
    const SlotState& s = slots[held->second];
    if (s.role != Role::kRollout) return Violation("G8", "slot " + S(held->second) + " of " + ToString(x.worker) + " is held by " + Name(s.role));
    if (s.transition >= 0 && !transitions.at(s.transition).committed) return Violation("G8", ToString(x.worker) + " gets a chunk while its slot is being taken");
    if (workers.at(x.worker).admitted != x.wv) return Violation("W3", ToString(x.worker) + " is not admitted at " + ToString(x.wv));
    return true;
  }

  bool On(const record::End& x) {
    Row* row = Known(x.tid);
    if (row == nullptr) return false;
    if (row->where != Where::kRunning || row->att != x.att) return true;  // late word of an older attempt
    if (x.status == EndStatus::kOk || x.status == EndStatus::kTruncated) row->ended = true;
    return true;
  }

  bool On(const record::Enq& x) {
    Row* row = Known(x.tid);
    if (row == nullptr) return false;
    if (row->enqueued) return Violation("Q2", "a second ENQ of " + ToString(x.tid) + " is accepted");
    if (row->where != Where::kRunning || row->att != x.att) return Violation("Q1", ToString(x.tid) + " is not running in attempt " + S(x.att));
    if (!row->ended) return Violation("Q6", ToString(x.tid) + " did not end by itself");
    if (Rl() && (!x.wv_min.valid() || x.wv_max < x.wv_min)) return Violation("Q4", ToString(x.tid) + " has no valid versions");
    for (const Version& v : {x.wv_min, x.wv_max}) {
      if (Rl() && !published.contains(v)) return Violation("W3", ToString(x.tid) + " has tokens of " + ToString(v) + ", which was not published");
    }
    if (config->pin_version != 0 && x.wv_min != x.wv_max) return Violation("W6", ToString(x.tid) + " is pinned, but has tokens of " + ToString(x.wv_min) + " and " + ToString(x.wv_max));
    row->length = static_cast<int32_t>(std::clamp<int64_t>(x.response_len, 0, INT32_MAX));
    row->enqueued = true;
    row->where = Rl() ? Where::kAwaiting : Where::kQueued;
    row->oldest = x.wv_min;
    row->newest = x.wv_max;
    return true;
  }

  bool On(const record::Graded& x) {
    Row* row = Known(x.tid);
    if (row == nullptr) return false;
    if (x.outcome == GradeOutcome::kOk && !x.grader.inc.valid()) return Violation("Q6", "no grader returned the reward of " + ToString(x.tid));
    if (!Trusted(x.grader, "reward")) return false;
    if (row->where != Where::kAwaiting) return Violation("Q1", ToString(x.tid) + " does not await a reward");
    if (x.outcome != GradeOutcome::kOk) return true;
    if (!std::isfinite(x.reward)) return Violation("Q6", "reward of " + ToString(x.tid) + " is not finite");
    row->graded = true;
    row->where = Where::kQueued;
    return true;
  }

  bool On(const record::Dup& x) {
    Row* row = Known(x.tid);
    return row != nullptr && (row->enqueued || Violation("Q2", ToString(x.tid) + " is called a duplicate, but none is in"));
  }

  bool CloseRow(Row& row) {
    GroupFacts& g = groups.at(row.gid);
    if (--g.open_rows == 0 && static_cast<int64_t>(g.tids.size()) == config->group_size) --open_groups;
    return true;
  }

  bool On(const record::Drop& x) {
    Row* row = Known(x.tid);
    if (row == nullptr) return false;
    if (static_cast<int>(x.reason) > static_cast<int>(DropReason::kLostOnRestore)) return Violation("Q3", "unknown reason");
    if (row->where == Where::kTrained) return Violation("Q2", ToString(x.tid) + " was trained and is dropped");
    if (row->where == Where::kDropped) return Violation("Q1", ToString(x.tid) + " is dropped twice");
    if (row->where == Where::kLeased) return Violation("Q1", ToString(x.tid) + " is leased and dropped");
    // By choice of the ledger, of samples that were complete: must not prefer a length.
    if (row->enqueued && (x.reason == DropReason::kStale || x.reason == DropReason::kOverflowPolicy)) fairness.Dropped(row->length);
    row->where = Where::kDropped;
    row->reason = x.reason;
    ++r.dropped;
    return CloseRow(*row);
  }

  // --- steps

  bool On(const record::Lease& x) {
    if (lease) return Violation("Q1", "lease " + S(lease->lease) + " is still open");
    if (x.lease <= last_lease) return Violation("Q1", "lease numbers have to increase");
    if (!Trusted(x.holder, "lease")) return false;
    last_lease = x.lease;
    for (const SampleId& tid : x.tids) {
      Row* row = Known(tid);
      if (row == nullptr) return false;
      if (row->where != Where::kQueued) return Violation("Q1", ToString(tid) + " is leased, but not queued");
      row->where = Where::kLeased;
      row->lease = x.lease;
    }
    lease = x;
    return true;
  }

  void Return() {
    for (const SampleId& tid : lease->tids) {
      rows.at(tid).where = Where::kQueued;
      rows.at(tid).lease = -1;
    }
    lease.reset();
  }

  bool On(const record::Unlease& x) {
    if (!lease || lease->lease != x.lease) return Violation("Q1", "lease " + S(x.lease) + " is not open");
    if (step) return Violation("Q1", "lease " + S(x.lease) + " is returned inside its step");
    Return();
    return true;
  }

  bool On(const record::StepBegin& x) {
    if (step || !lease || lease->step != x.step) return Violation("Q1", "step " + S(x.step.value) + " begins without its lease");
    if (x.step.value != current.number + 1 || x.v != current) return Violation("W5", "step " + S(x.step.value) + " on " + ToString(x.v) + ", current is " + ToString(current));
    if (!published.contains(x.v)) return Violation("W5", ToString(x.v) + " is trained before it was published");
    bool holds = false;
    for (const auto& [id, s] : slots) holds |= s.holder == lease->holder && s.role == Role::kActor;
    if (!holds) return Violation("G8", "the actor " + ToString(lease->holder) + " does not hold its slot");
    for (const record::SlotPlan& m : x.members) {
      const SlotState& s = slots[m.slot.value];
      if (s.role != Role::kActor) return Violation("G8", "slot " + S(m.slot.value) + " of step " + S(x.step.value) + " is held by " + Name(s.role));
      if (s.epoch != m.epoch.value) return Violation("G2", "step " + S(x.step.value) + " uses slot " + S(m.slot.value) + " under epoch " + S(m.epoch.value) + ", current is " + S(s.epoch));
      if (s.transition >= 0 && !transitions.at(s.transition).committed) return Violation("G8", "slot " + S(m.slot.value) + " trains while it is being taken");
    }
    step = x;
    step_slots.clear();
    for (const record::SlotPlan& m : x.members) step_slots.insert(m.slot.value);
    return true;
  }

  bool On(const record::StepAbort& x) {
    if (!step || step->step != x.step) return Violation("Q1", "step " + S(x.step.value) + " is not open");
    step.reset();
    return true;
  }

  bool On(const record::StepCommit& x) {
    if (!step || step->step != x.step || !lease) return Violation("Q1", "step " + S(x.step.value) + " is not open");
    if (x.digest == 0) return Violation("W5", "step " + S(x.step.value) + " has no weights (its gradient was not finite?)");
    if (x.v != Version{current.lineage, x.step.value}) return Violation("W1", "step " + S(x.step.value) + " makes " + ToString(x.v));
    if (x.rows.size() != lease->tids.size()) return Violation("Q7", S(static_cast<int64_t>(x.rows.size())) + " rows trained, " + S(static_cast<int64_t>(lease->tids.size())) + " leased");
    std::map<int64_t, int64_t> per_group;
    for (const record::TrainedRow& t : x.rows) {
      Row* row = Known(t.tid);
      if (row == nullptr) return false;
      if (row->where == Where::kTrained) return Violation("Q2", ToString(t.tid) + " is trained twice");
      if (row->where != Where::kLeased || row->lease != lease->lease) return Violation("Q2", ToString(t.tid) + " is trained without a lease");
      if (Rl() && !row->graded) return Violation("Q6", ToString(t.tid) + " has no reward of a grader");
      if (!RightAge(t, *row)) return false;
      row->where = Where::kTrained;
      row->lease = -1;
      row->step = x.step.value;
      fairness.Trained(row->length);
      ++per_group[row->gid];
      ++r.trained;
      CloseRow(*row);
    }
    for (const auto& [gid, count] : per_group) {
      const GroupFacts& g = groups.at(gid);
      if (static_cast<int64_t>(g.tids.size()) != config->group_size) return Violation("Q7", "group " + S(gid) + " was never issued whole");
      for (const SampleId& tid : g.tids) {
        const Row& row = rows.at(tid);
        const bool here = row.where == Where::kTrained && row.step == x.step.value;
        if (!here && row.where != Where::kDropped) return Violation("Q7", ToString(tid) + " is missing in the step of its group");
      }
      if (config->group_size >= 2 && count < 2) return Violation("Q7", "group " + S(gid) + " is trained with one sample");
    }
    lease.reset();
    step.reset();
    current = x.v;
    fairness.Step();
    committed[x.v] = x.digest;
    SetPath(x.v, x.digest);
    ++r.steps;
    return true;
  }

  bool RightAge(const record::TrainedRow& t, const Row& row) {
    if (!Rl()) return true;
    const int64_t eta = config->max_lag_versions;
    const bool mask = config->on_stale == "mask";
    if (mask && !t.oldest.valid()) return true;                       // no token with loss
    if (!mask && t.oldest != row.oldest) return Violation("Q4", ToString(t.tid) + " is trained from " + ToString(t.oldest) + ", its ENQ says " + ToString(row.oldest));
    for (const Version& v : {t.oldest, row.newest}) {
      const int64_t lag = Lag(v, step->v);
      if (lag < 0 || lag > eta) return Violation("Q4", ToString(t.tid) + " has tokens of " + ToString(v) + ", lag " + S(lag) + " at " + ToString(step->v) + ", allowed 0.." + S(eta));
    }
    return true;
  }

  // --- versions

  bool On(const record::Publish& x) {
    if (!published.insert(x.v).second) return Violation("W1", ToString(x.v) + " is published twice");
    const auto last = last_published.find(x.v.lineage);
    if (last != last_published.end() && x.v.number <= last->second) return Violation("W1", ToString(x.v) + " follows number " + S(last->second));
    last_published[x.v.lineage] = x.v.number;
    if (x.v != current) return Violation("W5", ToString(x.v) + " is published, committed is " + ToString(current));
    const auto c = committed.find(x.v);
    if (c == committed.end() && x.v.number != 0) return Violation("W5", ToString(x.v) + " was not committed");
    if (c != committed.end() && c->second != x.digest) return Violation("W5", ToString(x.v) + " is published with other weights than were committed");
    SetPath(x.v, x.digest);
    return true;
  }

  bool On(const record::Loaded& x) {
    if (!Trusted(x.worker, "load")) return false;
    WorkerState& w = workers.at(x.worker);
    if (!published.contains(x.v)) return Violation("W3", ToString(x.v) + " is loaded, but not published");
    if (w.loaded.valid() && !(w.loaded < x.v)) return Violation("W2", ToString(x.worker) + " loads " + ToString(x.v) + " after " + ToString(w.loaded));
    if (At(x.v, x.v.number) != x.digest) return Violation("W3", ToString(x.worker) + " loaded other weights than " + ToString(x.v));
    w.loaded = x.v;
    return true;
  }

  bool On(const record::Admit& x) {
    if (!Trusted(x.worker, "admission")) return false;
    WorkerState& w = workers.at(x.worker);
    if (w.loaded != x.v) return Violation("W3", ToString(x.worker) + " is admitted at " + ToString(x.v) + " without having loaded it");
    w.admitted = x.v;
    return true;
  }

  // --- workers and slots

  bool On(const record::Fence& x) {
    const auto it = workers.find(x.worker);
    if (it == workers.end()) return Violation("Q8", ToString(x.worker) + " never joined");
    it->second.fenced = true;
    return true;
  }

  bool On(const record::Join& x) {
    if (x.worker.inc.value <= last_inc) return Violation("Q8", "incarnation " + S(x.worker.inc.value) + " follows " + S(last_inc));
    last_inc = x.worker.inc.value;
    for (const auto& [ref, w] : workers) {
      if (ref.worker == x.worker.worker && !w.fenced) return Violation("Q8", ToString(x.worker) + " joins beside the live " + ToString(ref));
    }
    workers[x.worker] = {};
    // A new process has none of the memory that the old one kept.
    if (const auto slot = slot_of.find(x.worker.worker); slot != slot_of.end()) slots[slot->second].quarantined = false;
    return true;
  }

  bool On(const record::TransitionBegin& x) {
    if (x.t.value <= last_transition) return Violation("G4", "transition numbers have to increase");
    last_transition = x.t.value;
    for (const record::SlotPlan& p : x.slots) {
      SlotState& s = slots[p.slot.value];
      if (s.transition >= 0) return Violation("G4", "slot " + S(p.slot.value) + " is already inside transition " + S(s.transition));
      if (p.from != s.role) return Violation("G3", "slot " + S(p.slot.value) + " is planned from " + Name(p.from) + ", but held by " + Name(s.role));
      if (p.epoch.value <= s.epoch) return Violation("G2", "epoch " + S(p.epoch.value) + " of slot " + S(p.slot.value) + " follows " + S(s.epoch));
      if (p.from == Role::kRollout) {
        if (x.dwell_ms > 1 && s.taken_epoch == now->ctl_epoch && now->mono_ns - s.taken_ns + 1000000 < static_cast<uint64_t>(x.dwell_ms) * 1000000) {
          return Violation("G7", "slot " + S(p.slot.value) + " is taken from rollout twice within " + S(x.dwell_ms) + " ms");
        }
        s.taken_ns = now->mono_ns;
        s.taken_epoch = now->ctl_epoch;
      }
      if (step && step_slots.contains(p.slot.value)) return Violation("G8", "slot " + S(p.slot.value) + " trains step " + S(step->step.value) + " and is taken");
      s.epoch = p.epoch.value;
      s.transition = x.t.value;
      s.owed = Role::kNone;
      s.released = p.from == Role::kNone;
    }
    transitions[x.t.value] = {x.slots, false, now->mono_ns, now->ctl_epoch, x.deadline_ms};
    return true;
  }

  TransitionState* Open(TransitionId t) {
    const auto it = transitions.find(t.value);
    if (it != transitions.end()) return &it->second;
    Violation("G4", "transition " + S(t.value) + " is not open");
    return nullptr;
  }

  bool On(const record::TransitionCommit& x) {
    TransitionState* t = Open(x.t);
    if (t == nullptr) return false;
    if (t->committed) return Violation("G4", "transition " + S(x.t.value) + " is committed twice");
    for (const record::SlotPlan& p : t->plan) {
      if (!slots[p.slot.value].released) return Violation("G5", "slot " + S(p.slot.value) + " was not released before the commit");
    }
    t->committed = true;
    return true;
  }

  // Only inside one life of the controller the clock is one. 5 s: deadlines are looked at in ticks.
  [[nodiscard]] bool Late(const TransitionState& t) const {
    return t.ctl_epoch == now->ctl_epoch && t.deadline_ms > 0 && now->mono_ns > t.begun_ns &&
           static_cast<int64_t>((now->mono_ns - t.begun_ns) / 1000000) > t.deadline_ms + 5000;
  }
  bool EndTransition(TransitionId id, bool done) {
    TransitionState* t = Open(id);
    if (t == nullptr) return false;
    if (done != t->committed) return Violation("G4", "transition " + S(id.value) + (done ? " is done, but was not committed" : " is rolled back after its commit"));
    for (const record::SlotPlan& p : t->plan) {
      SlotState& s = slots[p.slot.value];
      if (s.transition == id.value) s.transition = -1;
    }
    transitions.erase(id.value);
    return true;
  }
  bool On(const record::TransitionDone& x) { return EndTransition(x.t, true); }
  bool On(const record::TransitionRolledBack& x) {
    TransitionState* t = Open(x.t);
    if (t == nullptr) return false;
    for (const record::SlotPlan& p : x.slots) {
      SlotState& s = slots[p.slot.value];
      const auto was = std::find_if(t->plan.begin(), t->plan.end(), [&](const record::SlotPlan& q) { return q.slot == p.slot; });
      if (was == t->plan.end()) return Violation("G4", "slot " + S(p.slot.value) + " is rolled back, but was not in transition " + S(x.t.value));
      if (p.to != was->from) return Violation("G4", "slot " + S(p.slot.value) + " goes back to " + Name(p.to) + ", it held " + Name(was->from));
      if (p.epoch.value <= s.epoch) return Violation("G2", "epoch " + S(p.epoch.value) + " of slot " + S(p.slot.value) + " follows " + S(s.epoch));
      s.epoch = p.epoch.value;
      s.owed = p.to;  // a slot that has released, or still does, is granted it again
      s.taken_epoch = 0;  // it was not taken after all
    }
    // Whoever is not named is out of use now; a slot that still held its role would be half changed.
    for (const record::SlotPlan& p : t->plan) {
      const bool named = std::any_of(x.slots.begin(), x.slots.end(), [&](const record::SlotPlan& q) { return q.slot == p.slot; });
      const SlotState& s = slots[p.slot.value];
      if (!named && p.from != Role::kNone && s.role != Role::kNone && t->ctl_epoch == now->ctl_epoch) {
        return Violation("G4", "slot " + S(p.slot.value) + " is left half changed by the rollback of " + S(x.t.value));
      }
    }
    return EndTransition(x.t, false);
  }

  bool On(const record::Grant& x) {
    if (!Trusted(x.worker, "grant")) return false;
    SlotState& s = slots[x.slot.value];
    if (s.role != Role::kNone) return Violation("G1", "slot " + S(x.slot.value) + " is still held by " + Name(s.role));
    if (s.epoch != x.epoch.value) return Violation("G2", "grant with epoch " + S(x.epoch.value) + ", current is " + S(s.epoch));
    if (s.quarantined) return Violation("G5", "slot " + S(x.slot.value) + " is quarantined");
    const auto t = transitions.find(s.transition);
    const bool back = s.transition < 0 && s.owed != Role::kNone && s.owed == x.role;
    if (back && !s.released) return Violation("G5", "slot " + S(x.slot.value) + " is given back before it was released");
    s.owed = Role::kNone;
    if (back) {
      s.role = x.role;
      s.holder = x.worker;
      slot_of[x.worker.worker] = x.slot.value;
      return true;
    }
    if (t == transitions.end() || !t->second.committed) return Violation("G4", "slot " + S(x.slot.value) + " is granted outside a committed transition");
    s.role = x.role;
    s.holder = x.worker;
    slot_of[x.worker.worker] = x.slot.value;
    return true;
  }
  bool On(const record::Release& x) {
    SlotState& s = slots[x.slot.value];
    if (s.epoch != x.epoch.value) return Violation("G2", "release with epoch " + S(x.epoch.value) + ", current is " + S(s.epoch));
    if (x.need_bytes > 0 && x.free_bytes < x.need_bytes) return Violation("G5", "slot " + S(x.slot.value) + " proved " + S(x.free_bytes) + " of " + S(x.need_bytes) + " bytes free");
    s.role = Role::kNone;
    s.released = true;
    return true;
  }
  bool On(const record::Quarantine& x) {
    slots[x.slot.value].role = slots[x.slot.value].owed = Role::kNone;
    slots[x.slot.value].quarantined = true;
    slots[x.slot.value].transition = -1;  // it goes on, or back, without this slot
    return true;
  }
  bool On(const record::SlotLost& x) {
    slots[x.slot.value].role = slots[x.slot.value].owed = Role::kNone;
    slots[x.slot.value].holder = {};
    slots[x.slot.value].transition = -1;
    return true;
  }

  // --- checkpoints

  bool On(const record::CheckpointBegin& x) {
    if (x.ckpt <= last_checkpoint) return Violation("C8", "checkpoint numbers have to increase");
    if (x.step.value != current.number) return Violation("C3", "checkpoint of step " + S(x.step.value) + " at step " + S(current.number));
    if (step) return Violation("C3", "a checkpoint begins inside a step");
    last_checkpoint = x.ckpt;
    checkpoints[x.ckpt] = {x.step.value, now->lsn.value, false, false, false, false};
    return true;
  }
  CheckpointState* Commits(int64_t ckpt, const char* predicate) {
    const auto it = checkpoints.find(ckpt);
    if (it != checkpoints.end() && it->second.committed && !it->second.rejected && !it->second.deleted) return &it->second;
    Violation(predicate, "checkpoint " + S(ckpt) + " is not committed, or rejected, or deleted");
    return nullptr;
  }
  bool On(const record::CheckpointCommit& x) {
    const auto it = checkpoints.find(x.ckpt);
    if (it == checkpoints.end() || it->second.committed) return Violation("C8", "checkpoint " + S(x.ckpt) + " was not begun, or is committed twice");
    if (x.manifest_digest == 0) return Violation("C8", "checkpoint " + S(x.ckpt) + " is committed without a manifest that was read back");
    if (it->second.step != x.step.value || x.cut.value > now->lsn.value || x.cut.value < it->second.begin_lsn) {
      return Violation("C3", "step or cut of checkpoint " + S(x.ckpt) + " differ from its CK_BEGIN");
    }
    const uint64_t weights = At(current, x.step.value);
    if (x.step.value > 0 && weights != 0 && weights != x.weights_digest) return Violation("C3", "weights of checkpoint " + S(x.ckpt) + " are not those of step " + S(x.step.value));
    it->second.committed = true;
    if (x.step.value == 0) step0_committed = true;
    return true;
  }
  bool On(const record::CheckpointReject& x) {
    CheckpointState* c = Commits(x.ckpt, "C5");
    if (c == nullptr) return false;
    c->rejected = true;
    return true;
  }
  bool On(const record::CheckpointDelete& x) {
    CheckpointState* c = Commits(x.ckpt, "C2");
    if (c == nullptr) return false;
    const bool newer = std::any_of(checkpoints.upper_bound(x.ckpt), checkpoints.end(), [](const auto& item) {
      return item.second.committed && !item.second.rejected && !item.second.deleted && !item.second.undone;
    });
    if (!newer) return Violation("C2", "checkpoint " + S(x.ckpt) + " is deleted without a newer one");
    c->deleted = true;
    return true;
  }

  bool On(const record::Restore& x) {
    if (lease || step) return Violation("Q1", "restore with an open lease or step");
    if (x.old_lineage != current.lineage || x.new_lineage <= current.lineage) return Violation("W1", "lineage " + S(x.new_lineage) + " follows " + S(current.lineage));
    if (x.step.value > current.number) return Violation("C1", "step " + S(x.step.value) + " is restored, but was never committed");
    if (x.ckpt >= 0) {
      CheckpointState* c = Commits(x.ckpt, "C1");
      if (c == nullptr) return false;
      if (c->step != x.step.value) return Violation("C1", "checkpoint " + S(x.ckpt) + " holds step " + S(c->step));
      for (const auto& [id, other] : checkpoints) {
        if (id > x.ckpt && other.committed && !other.rejected && !other.deleted && !other.undone) return Violation("C5", "the newer checkpoint " + S(id) + " was not rejected");
      }
    } else if (current.number - x.step.value > 1) {
      return Violation("C6", "a recovery copy " + S(current.number - x.step.value) + " steps behind");
    }
    for (auto& [id, c] : checkpoints) c.undone = c.undone || c.step > x.step.value;
    for (auto& [tid, row] : rows) {
      if (row.where != Where::kTrained || row.step <= x.step.value) continue;
      row.where = Where::kQueued;
      row.step = -1;
      --r.trained;
      if (groups.at(row.gid).open_rows++ == 0) ++open_groups;
    }
    const std::vector<uint64_t>& old = path[x.old_lineage];
    path[x.new_lineage] = {old.begin(), old.begin() + std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(old.size()), x.step.value + 1)};
    current = {x.new_lineage, x.step.value};
    const uint64_t weights = At(current, x.step.value);
    if (weights != 0) committed[current] = weights;
    return true;
  }

  bool On(const record::Snapshot&) { return true; }
  bool On(const record::Fault& x) {
    if (x.kind.empty()) return Violation("L3", "a fault without a kind");
    fault_seen = true;
    if (x.kind == "retired") {
      // 5 restarts within 10 minutes; 30 s: a death is noticed later than it happens.
      const auto& lost = losses[x.actor];
      const auto inside = std::count_if(lost.begin(), lost.end(), [&](const auto& at) {
        return at.first != now->ctl_epoch || now->mono_ns - at.second <= uint64_t{630} * 1000000000;
      });
      if (inside < 5) return Violation("L5", x.actor + " is retired after " + S(inside) + " failures in 10 minutes");
    }
    if (x.kind == "worker_lost") losses[x.actor].emplace_back(now->ctl_epoch, now->mono_ns);
    return true;
  }
  bool On(const record::EvalResult& x) {
    if (x.correct < 0 || x.correct > x.total) return Violation("journal", S(x.correct) + " of " + S(x.total) + " right");
    return true;
  }

  bool On(const record::EndRun& x) {
    if (x.code != 0 && !fault_seen) return Violation("L3", "code " + S(x.code) + " without a FAULT that names why");
    fault_seen = false;
    if (!transitions.empty()) return Violation("G4", "transition " + S(transitions.begin()->first) + " is still open");
    if (x.code != 0 || current.number < config->steps) return true;
    if (const auto unfair = fairness.Unfair()) return Violation("Q10", *unfair);
    for (const auto& [tid, row] : rows) {
      if (row.where != Where::kTrained && row.where != Where::kDropped) return Violation("Q1", ToString(tid) + " is neither trained nor dropped at the end");
    }
    return true;
  }
};

Checker::Checker() : s_(std::make_unique<State>()) {}
Checker::~Checker() = default;
Checker::Checker(Checker&&) noexcept = default;
Checker& Checker::operator=(Checker&&) noexcept = default;

bool Checker::Feed(const JournalEntry& entry) {
  State& s = *s_;
  const int64_t expected = s.r.records++;
  if (!s.r.ok) return false;
  s.now = &entry;
  if (entry.lsn.valid() && entry.lsn.value != expected) return s.Violation("journal", "expected record number " + S(expected));
  if (!s.config && !std::holds_alternative<record::Config>(entry.record)) return s.Violation("journal", "the first record is not CONFIG");
  for (const auto& [id, t] : s.transitions) {
    if (s.Late(t)) return s.Violation("G4", "transition " + std::to_string(id) + " is still open after its deadline");
  }
  return std::visit([&](const auto& r) { return s.On(r); }, entry.record) && s.r.ok;
}

CheckResult Checker::result() const {
  CheckResult r = s_->r;
  r.open = s_->open_groups;
  return r;
}

CheckResult Check(std::span<const JournalEntry> journal) {
  Checker checker;
  for (const JournalEntry& e : journal) checker.Feed(e);
  return checker.result();
}

}  // namespace tidepool::scheduler
