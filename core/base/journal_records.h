#pragma once
// What happened in a run: the kinds of journal record (docs/journal.md has the same list).
//
// Each record is a plain struct with a fixed schema. `VisitFields` names its fields in their order
// on disk: encoder, decoder and `tidepool journal --json` are three visitors of one list. A kind's
// number and its fields never change meaning; new fields go at the end, new kinds at the end.
// The checker proves its predicates from these fields alone. Value types; thread-compatible.

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/boxed.h"
#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/words.h"

namespace tidepool {

// How an attempt of a sample ended.
// Nothing writes kWorkerLost: the sample goes on in another attempt.
enum class EndStatus : uint8_t { kOk = 0, kTruncated = 1, kCancelled = 2, kWorkerLost = 3, kError = 4 };
// What came of grading a sample. 0 is a reward only when a grader returned it.
enum class GradeOutcome : uint8_t { kOk = 0, kData = 1, kInfra = 2 };
// Closed list; each has a budget.
enum class DropReason : uint8_t {
  kStale = 0,
  kDataInvalid = 1,
  kRewardInfra = 2,
  kEnvInfra = 3,
  kPoison = 4,
  kFiltered = 5,
  kOverflowPolicy = 6,
  kOperator = 7,
  kLostOnRestore = 8,
};
enum class Role : uint8_t { kNone = 0, kRollout = 1, kActor = 2, kReward = 3, kEnvironment = 4 };
constexpr auto WordsOf(EndStatus) {
  return std::to_array<const char*>({"ok", "truncated", "cancelled", "worker_lost", "error"});
}
constexpr auto WordsOf(GradeOutcome) { return std::to_array<const char*>({"ok", "data", "infra"}); }
constexpr auto WordsOf(DropReason) {
  return std::to_array<const char*>({"stale", "data_invalid", "reward_infra", "env_infra", "poison",
                                     "filtered", "overflow_policy", "operator", "lost_on_restore"});
}
constexpr auto WordsOf(Role) {
  return std::to_array<const char*>({"none", "rollout", "actor", "reward", "environment"});
}

namespace record {

struct RunTerms {
  std::string run_id, job, digest;  // digest: of the resolved config
  int64_t groups_per_step = 0, group_size = 0, max_lag_versions = 0;
  std::string on_stale;
  double oversample = 1, min_step_batch_fraction = 1;
  int64_t max_reissues = 2, steps = 0, data_size = 0;  // data_size: rows of an epoch
  // Since there are transactions over several slots: how many there are, the bound on lost steps (0: not
  // promised) and whether runs repeat bit by bit.
  int64_t slots = 0, recovery_steps = 0;
  int32_t deterministic = 0;
  std::string oversample_mode;
  int32_t pin_version = 0;  // 1: a sample has tokens of one version only
  // Bounds in time and steps: slots that generate at all times (0: the policy may train on all of them),
  // after how long without progress the run ends, steps between checkpoints. 0: not known (older programs did
  // not write them).
  int64_t rollout_floor = 0, stall_ms = 0, checkpoint_steps = 0;
  int32_t row_digests = 0;  // 1: STEP_COMMIT says of every row what the trainer was given
  int64_t min_slots = 0;    // nothing is granted before so many have a worker; 0: it does not wait
  int64_t redundancy = 0;   // of group_size samples so many may be dropped when the others are graded
};
// First record of a run, again after a resume that changed it. Boxed: all others are less than half as large.
struct Config : Boxed<RunTerms> {
  using Boxed::Boxed;
};
// att > 0: generated again.
struct Issue {
  SampleId tid;
  GroupId gid;
  int32_t att = 0;
  int64_t prompt_len = 0, max_new = 0;
};
// A chunk was sent.
struct Start {
  SampleId tid;
  int32_t att = 0;
  WorkerRef worker;
  Version wv;
  SlotId slot;
};
// The attempt is over.
struct End {
  SampleId tid;
  int32_t att = 0;
  EndStatus status = EndStatus::kOk;
};
struct Graded {
  SampleId tid;
  GradeOutcome outcome = GradeOutcome::kOk;
  WorkerRef grader;
  double reward = 0;
  std::vector<std::pair<std::string, double>> rewards;
};
struct VersionTokens {
  Version v;
  int64_t tokens = 0;
  friend bool operator==(const VersionTokens&, const VersionTokens&) = default;
};
// Payload bytes are on disk: file number, offset, length in payload/; digest Hash64 of the bytes, which is
// that of the trajectory (core/sample). versions: run lengths over the tokens with loss; empty: not known.
struct Enq {
  SampleId tid;
  int32_t att = 0;
  Version wv_min, wv_max;
  int64_t prompt_len = 0, response_len = 0;
  uint64_t digest = 0;
  int64_t payload_file = -1, payload_offset = 0, payload_bytes = 0;
  std::vector<VersionTokens> versions;
};
// A later result of a sample that is already in.
struct Dup {
  SampleId tid;
  int32_t att = 0;
};
struct Lease {
  int64_t lease = 0;
  StepNumber step;
  std::vector<SampleId> tids;
  WorkerRef holder;
};
struct Unlease {
  int64_t lease = 0;
  std::string why;
};
struct Drop {
  SampleId tid;
  DropReason reason = DropReason::kStale;
};
struct SlotPlan {
  SlotId slot;
  Role from = Role::kNone, to = Role::kNone;
  SlotEpoch epoch;
};
// Trains version v. members: the training group by rank, with the epochs under which it holds its slots.
struct StepBegin {
  StepNumber step;
  Version v;
  std::vector<SlotPlan> members;
};
// oldest: version among its tokens with loss that is furthest behind. digest: of the trajectory that the
// trainer was given, computed by the trainer. masked: tokens that were too old and were left without loss.
struct TrainedRow {
  SampleId tid;
  Version oldest;
  uint64_t digest = 0;
  int64_t masked = 0;
};
// v: the new version. held_out: what the trainer said of held-out rows in this step, by names of
// metrics.jsonl; of most steps nothing. Those that end in /before are of the weights before training.
// replay: of a trainer with a replay store, what the store has taken in up to this step
// (core/base/replay_digest.h); what is drawn from it follows from (seed, step, replay). 0: there is none.
struct StepCommit {
  StepNumber step;
  Version v;
  uint64_t digest = 0;
  std::vector<TrainedRow> rows;
  std::vector<std::pair<std::string, double>> held_out = {};
  uint64_t replay = 0;
};
struct StepAbort {
  StepNumber step;
  std::string why;
};
struct Publish {
  Version v;
  uint64_t digest = 0;
};
struct Loaded {
  WorkerRef worker;
  Version v;
  uint64_t digest = 0;
  SlotId slot;
};
struct Admit {
  WorkerRef worker;
  Version v;
  SlotId slot;
};
// Where START, LOADED and ADMIT were. Programs that did not name the slot gave worker i slot i.
template <typename Record>
SlotRef PlaceOf(const Record& r) {
  return {r.worker, r.slot.valid() ? r.slot : SlotId{r.worker.worker.value}};
}
// Nothing more is accepted from it.
struct Fence {
  WorkerRef worker;
};
// Role kNone: a device worker, with these slots (none: written before they were named, when worker i had
// slot i).
struct Join {
  WorkerRef worker;
  std::string name;
  Role role = Role::kNone;
  std::vector<SlotId> slots;
};
// dwell_ms: no slot of it was taken from rollout so shortly before (0: the policy promises nothing).
struct TransitionBegin {
  TransitionId t;
  std::vector<SlotPlan> slots;
  int64_t deadline_ms = 0;
  std::string why;
  int64_t dwell_ms = 0;
};
struct TransitionCommit {
  TransitionId t;
};
struct TransitionDone {
  TransitionId t;
};
// slots: which go back to `to` under a new epoch (a GRANT follows where the old role had been released);
// those that are lost or quarantined are not in it.
struct TransitionRolledBack {
  TransitionId t;
  std::string why;
  std::vector<SlotPlan> slots;
};
struct Grant {
  SlotId slot;
  Role role = Role::kNone;
  SlotEpoch epoch;
  WorkerRef worker;
};
// need: of the next role.
struct Release {
  SlotId slot;
  SlotEpoch epoch;
  int64_t free_bytes = 0;
  int64_t need_bytes = 0;
};
struct Quarantine {
  SlotId slot;
  std::string why;
};
struct SlotLost {
  SlotId slot;
  std::string why;
};
struct CheckpointBegin {
  int64_t ckpt = 0;
  StepNumber step;
};
struct CheckpointCommit {
  int64_t ckpt = 0;
  StepNumber step;
  Lsn cut;
  uint64_t manifest_digest = 0;
  uint64_t weights_digest = 0;
};
struct CheckpointReject {
  int64_t ckpt = 0;
  std::string why;
};
struct CheckpointDelete {
  int64_t ckpt = 0;
};
// Everything after step `step` is undone; versions go on as (new_lineage, step).
struct Restore {
  int64_t ckpt = 0;
  StepNumber step;
  int32_t old_lineage = 0, new_lineage = 0;
};
// Of the fold of all records before: a fold that differs is refused.
struct Snapshot {
  uint64_t state_digest = 0;
};
// actor: who it was, as people call it. worker: where that is one; programs that did not write it left it
// to the actor: "w3". tid: the sample that it is about, if it is about one.
struct Fault {
  std::string kind;
  std::string actor;
  Incarnation inc;
  std::string what;
  WorkerId worker = {};
  SampleId tid = {};
};
// finished 1: all steps, final evaluation and model done.
struct EndRun {
  int32_t code = 0;
  std::string why;
  int32_t finished = 0;
};
// One reward over the answers of an evaluation; deviation: of a sample (n - 1).
struct EvalScore {
  std::string name;
  double mean = 0, deviation = 0;
};
// correct: answers whose first reward is above 0.5. graded 1: some first reward was neither 0 nor 1, so that
// `correct` says little. mean, deviation: of the whole reward. lost: answers that are not in `total`, because
// they could not be graded; why_lost: the last of them. Of programs that did not write them, the fields from
// `graded` on are missing.
struct EvalResult {
  StepNumber step;
  Version v;
  int64_t correct = 0, total = 0;
  int32_t graded = 0;
  double mean = 0, deviation = 0;
  std::vector<EvalScore> rewards;
  int64_t lost = 0;
  std::string why_lost;
};

}  // namespace record

// The order is the kind's number on disk: append only.
using JournalRecord =
    std::variant<record::Config, record::Issue, record::Start, record::End, record::Graded, record::Enq,
                 record::Dup, record::Lease, record::Unlease, record::Drop, record::StepBegin,
                 record::StepCommit, record::StepAbort, record::Publish, record::Loaded, record::Admit,
                 record::Fence, record::Join, record::TransitionBegin, record::TransitionCommit,
                 record::TransitionDone, record::TransitionRolledBack, record::Grant, record::Release,
                 record::Quarantine, record::SlotLost, record::CheckpointBegin, record::CheckpointCommit,
                 record::CheckpointReject, record::CheckpointDelete, record::Restore, record::Snapshot,
                 record::Fault, record::EndRun, record::EvalResult>;

// Upper-case name as the docs use it: ISSUE, STEP_COMMIT, T_BEGIN, ...
const char* RecordName(const JournalRecord& r);
// START and END may be written lazily; all others are durable before their effect is visible.
bool IsLazy(const JournalRecord& r);

// A record with its envelope, as stored.
struct JournalEntry {
  Lsn lsn;
  uint32_t ctl_epoch = 0;  // raised each time a controller opens the journal
  uint64_t mono_ns = 0;    // of the controller's clock, which counts from its start
  JournalRecord record;
  int64_t unix_ms = 0;  // the time of day; 0: not known (programs did not write when a controller began)
};

// --- fields, in their order on disk ---
namespace record {
// A field of a list's items that older formats of the journal do not have. A visitor that reads an older
// format has a member `format`; all others see the newest.
template <typename V, typename T>
void Since(V& v, uint32_t format, const char* name, T& field) {
  if constexpr (requires { v.format; }) {
    if (v.format < format) return;
  }
  v(name, field);
}
TP_FIELDS(RunTerms, run_id, job, digest, groups_per_step, group_size, max_lag_versions, on_stale, oversample,
          min_step_batch_fraction, max_reissues, steps, data_size, slots, recovery_steps, deterministic,
          oversample_mode, pin_version, rollout_floor, stall_ms, checkpoint_steps, row_digests, min_slots,
          redundancy)
TP_FIELDS_BY(Config, VisitFields(*r, v);)
TP_FIELDS(Issue, tid, gid, att, prompt_len, max_new)
TP_FIELDS(Start, tid, att, worker, wv, slot)
TP_FIELDS(End, tid, att, status)
TP_FIELDS(Graded, tid, outcome, grader, reward, rewards)
TP_FIELDS(Enq, tid, att, wv_min, wv_max, prompt_len, response_len, digest, payload_file, payload_offset,
          payload_bytes, versions)
TP_FIELDS(VersionTokens, v, tokens)
TP_FIELDS(Dup, tid, att)
TP_FIELDS(Lease, lease, step, tids, holder)
TP_FIELDS(Unlease, lease, why)
TP_FIELDS(Drop, tid, reason)
TP_FIELDS(SlotPlan, slot, from, to, epoch)
TP_FIELDS(StepBegin, step, v, members)
TP_FIELDS_BY(TrainedRow, v("tid", r.tid); v("oldest", r.oldest); Since(v, 3, "digest", r.digest);
             Since(v, 3, "masked", r.masked);)
TP_FIELDS(StepCommit, step, v, digest, rows, held_out, replay)
TP_FIELDS(StepAbort, step, why)
TP_FIELDS(Publish, v, digest)
TP_FIELDS(Loaded, worker, v, digest, slot)
TP_FIELDS(Admit, worker, v, slot)
TP_FIELDS(Fence, worker)
TP_FIELDS(Join, worker, name, role, slots)
TP_FIELDS(TransitionBegin, t, slots, deadline_ms, why, dwell_ms)
TP_FIELDS(TransitionCommit, t)
TP_FIELDS(TransitionDone, t)
TP_FIELDS(TransitionRolledBack, t, why, slots)
TP_FIELDS(Grant, slot, role, epoch, worker)
TP_FIELDS(Release, slot, epoch, free_bytes, need_bytes)
TP_FIELDS(Quarantine, slot, why)
TP_FIELDS(SlotLost, slot, why)
TP_FIELDS(CheckpointBegin, ckpt, step)
TP_FIELDS(CheckpointCommit, ckpt, step, cut, manifest_digest, weights_digest)
TP_FIELDS(CheckpointReject, ckpt, why)
TP_FIELDS(CheckpointDelete, ckpt)
TP_FIELDS(Restore, ckpt, step, old_lineage, new_lineage)
TP_FIELDS(Snapshot, state_digest)
TP_FIELDS_BY(Fault, TP_EACH(kind, actor, inc, what) v("w", r.worker); v("tid", r.tid);)
TP_FIELDS(EndRun, code, why, finished)
TP_FIELDS(EvalScore, name, mean, deviation)
TP_FIELDS(EvalResult, step, v, correct, total, graded, mean, deviation, rewards, lost, why_lost)
}  // namespace record

}  // namespace tidepool
