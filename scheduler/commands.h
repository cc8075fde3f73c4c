#pragma once
// What the controller wants done, in order. The caller makes all `Append` records of one batch durable
// (but the lazy ones) before it executes any other command of that batch. Commands to a worker carry
// its incarnation, those about a slot its epoch; the worker refuses older ones.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/boxed.h"
#include "core/base/choices.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/shard.h"
#include "core/base/time.h"
#include "scheduler/group_signal.h"

namespace tidepool::scheduler {
namespace command {

struct Append {
  JournalRecord record;
};
// Processes. Delay: back-off, not before that long from now. Kill: SIGKILL of a process we started, close of
// any other.
struct StartWorker {
  WorkerId worker;
  Duration delay{0};
};
struct KillWorker {
  WorkerRef worker;
  std::string why;
};
// Answers to WorkerJoined, for that process alone.
struct Welcome {
  WorkerId worker;
  uint64_t process = 0;
  Incarnation inc;
  std::vector<SlotId> slots;  // of a device worker
};
struct RefuseWorker {
  WorkerId worker;
  uint64_t process = 0;
  std::string why;
};
// Data. PrepareRow: read, tokenise (and for sft store) row `ordinal`; answered by RowReady / RowInvalid, for
// sft also PayloadStored.
struct PrepareRow {
  int64_t ordinal = 0;
  int32_t issue = 0;
  GroupId gid;
};
// Rollout. The caller adds prompt and tokens so far. eval: greedy, held-out question tid.ordinal.
struct StartChunk {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  SampleId tid;
  int32_t att = 0;
  GroupId gid;
  Version v;
  int64_t generated = 0, chunk_tokens = 0, max_new_tokens = 0;
};
struct CancelChunk {
  WorkerRef worker;
  SlotId slot;
  SampleId tid;
  int32_t att = 0;
};
// Its KV will not be needed in this slot.
struct ForgetGroup {
  WorkerRef worker;
  SlotId slot;
  GroupId gid;
};
// Answered by PayloadStored.
struct StorePayload {
  SampleId tid;
  int32_t att = 0;
};
// The caller may free the tokens in memory.
struct DiscardTokens {
  SampleId tid;
  int32_t att = 0;
};
// Environments. EnvStep: plays what sample `tid` has said so far (`turn` times; 0: the reset alone;
// kWholeEpisode: all that is on record, for its reward) -> EnvStepped. AppendObservation: what that reply
// said becomes part of the record, without loss; turn 0: it is the prompt.
inline constexpr int64_t kWholeEpisode = -1;
struct EnvStep {
  WorkerRef worker;
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
  Duration timeout{0};
};
// Nobody plays this attempt there any more: what the worker holds of it is free.
struct EndEpisode {
  WorkerRef worker;
  SampleId tid;
  int32_t att = 0;
};
struct AppendObservation {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
};
struct Grade {
  WorkerRef grader;
  SampleId tid;
  int32_t att = 0;
  int32_t attempt = 0;
  Duration timeout{0};
};
// Pool.
struct Drain {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
};
struct Release {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  int64_t need_bytes = 0;
};
// The worker holds the slot in this role from now on -> Granted. If it holds that role already (its drain was
// called off), it goes on with what it has under the new epoch. `gang`: where slots hold the role together,
// the workers of all of them, in order; this slot's is that of `rank`.
struct Grant {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  Role role = Role::kNone;
  int64_t rank = 0;
  std::vector<WorkerRef> gang = {};
};
// Training. InitState: make step 0 (model of the config). RestoreState: from a checkpoint (ckpt >= 0) or the
// recovery copy (ckpt -1). -> StateReady with the same `request`, a number of this life of the controller.
// shard: the part of the optimizer's state that is to be there.
struct InitState {
  WorkerRef worker;
  SlotId slot;
  int64_t request = 0;
  Shard shard = {};
};
struct RestoreState {
  WorkerRef worker;
  SlotId slot;
  int64_t ckpt = -1;
  StepNumber step;
  uint64_t weights_digest = 0;
  int64_t request = 0;
  Shard shard = {};
};
// From the peer that holds it, bytes compared by digest -> StateReady.
struct FetchState {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  SlotRef from;
  StepNumber step;
  uint64_t weights_digest = 0;
  int64_t request = 0;
};
// The training group as it is to be from now on. Ranks are in the order of the members' slots. The list of
// members is not sent: one of thousands to each of them would be the largest thing that a controller makes.
// Sent to every member, only for two or more -> GroupFormed.
struct GroupMember {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
};
struct FormGroup {
  WorkerRef worker;
  SlotId slot;
  int64_t group_epoch = 0;
  int64_t rank = 0, world = 1, tensor = 1;  // tensor: as in Train
};
// One to each member: its share of the batch by whole groups; the totals are the batch's
// (denominators of the loss are global). -> TrainDone | TrainFailed, each.
struct BatchShare {
  std::vector<std::vector<SampleId>> groups;  // rows of a group together; payload by Enq
  std::vector<Version> stale;  // on_stale mask: tokens of these versions of the batch have no loss
};
struct Train {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  int64_t lease = 0;
  StepNumber step;
  Version v;
  Boxed<BatchShare> share;                       // boxed: all other commands are smaller
  int64_t group_epoch = 0, rank = 0, world = 1;  // group_epoch 0: a group of one
  // Ranks beside each other that have parts of one model, and the same share: the first of them has it.
  int64_t tensor = 1;
  int64_t total_rows = 0;
};
// A group that is queued, for a slot that trains and has nothing to do: what a step at `v` will need of these
// rows beside the loss may be computed now. A hint, given once: no answer, and nothing depends on it.
struct Preview {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  Version v;
  std::vector<SampleId> rows;  // payload by Enq
};
// Leave the collectives of this step and forget what was not finished -> StepAborted within 30 s.
struct AbortStep {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  int64_t lease = 0;
  StepNumber step;
  int64_t group_epoch = 0;
};
// The step's result is wanted now: what is left of its evaluation of held-out rows is left out. No answer but
// the step's own.
struct EndEvaluation {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  int64_t lease = 0;
};
// Answered by RecoveryCopied.
struct CopyRecovery {
  WorkerRef worker;
  SlotId slot;
  StepNumber step;
};
// Answered by Published. copies: into memory that others read. Without it nobody needs them: each slot
// trained these weights, and loads them as an alias.
struct Publish {
  WorkerRef worker;
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  bool copies = true;
};
// The worker brings these weights from `from` to its host, whatever its slot does meanwhile, and passes them
// on while they come; what it was told to bring before is called off. -> Pulled.
struct Pull {
  WorkerRef worker;
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  SlotRef from;
};
// From `from`, which is on the same host. alias: it trained them, and has them in its memory. -> Loaded.
struct Load {
  WorkerRef worker;
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  SlotRef from;
  bool alias = false;
};
// It may serve v from now on.
struct Admit {
  WorkerRef worker;
  SlotId slot;
  Version v;
};
// Checkpoints. The caller gathers the trainer's files and its own state, commits by rename, reads back. ->
// CheckpointWritten / Failed
struct WriteCheckpoint {
  WorkerRef worker;
  SlotId slot;
  int64_t ckpt = 0;
  StepNumber step;
  Version v;
  std::vector<SlotRef> others = {};  // which have the other parts of the optimizer's state (train.zero)
};
struct VerifyCheckpoint {
  int64_t ckpt = 0;
  StepNumber step;
  uint64_t manifest_digest = 0;
};
struct DeleteCheckpoint {
  int64_t ckpt = 0;
  StepNumber step;
};
// best/ is to hold the model of this checkpoint, which is there. Before any DeleteCheckpoint of it. Answered
// by BestKept.
struct KeepBest {
  int64_t ckpt = 0;
  StepNumber step;
  double value = 0;  // of checkpoint.keep_best
};
// Writes final/; answered by FinalSaved.
struct SaveFinal {
  WorkerRef worker;
  SlotId slot;
};
// To people and files: metrics of a committed step are written when this comes.
struct StepReport {
  StepNumber step;
  Version v;
  int64_t lag_max = 0;
  double lag_mean = 0;
  std::vector<int64_t> lag_hist;
  int64_t dropped_stale = 0, filtered = 0, members = 1;
  int64_t redundant = 0, redundant_tokens = 0;  // samples that were not awaited, and what they had generated
  GroupSignal signal;
};
struct EvalReport {
  record::EvalResult result;
};
// For people. event: its name in the log (docs/operating.md has the list), where the fields follow it. text:
// the same as a sentence; the terminal shows that of the newest warning. about: the worker that the sentence
// is of, if any; the text goes on behind its name, which is for the reader to put there.
struct Log {
  LogLevel level = LogLevel::kWarn;
  std::string event;
  std::string text;
  std::vector<std::pair<std::string, std::string>> fields;
  WorkerRef about;
};
// End the children, exit with this code.
struct Finish {
  int code = 0;
  std::string why;
  bool complete = false;  // all steps, the last evaluation and final/ are done
};

}  // namespace command

using Command =
    std::variant<command::Append, command::StartWorker, command::KillWorker, command::Welcome,
                 command::RefuseWorker, command::PrepareRow, command::StartChunk, command::CancelChunk,
                 command::ForgetGroup, command::StorePayload, command::DiscardTokens, command::EnvStep,
                 command::EndEpisode, command::AppendObservation, command::Grade, command::Drain,
                 command::Release, command::Grant, command::InitState, command::RestoreState,
                 command::FetchState, command::FormGroup, command::Train, command::Preview,
                 command::AbortStep, command::EndEvaluation, command::CopyRecovery, command::Publish,
                 command::Pull, command::Load, command::Admit, command::WriteCheckpoint,
                 command::VerifyCheckpoint, command::DeleteCheckpoint, command::KeepBest, command::SaveFinal,
                 command::StepReport, command::EvalReport, command::Log, command::Finish>;

}  // namespace tidepool::scheduler
