#pragma once
// What the controller is told. Every event is a fact reported by the caller (controller process or
// simulator); payload bytes (tokens, log-probs, text) stay with the caller, only sizes and versions
// come here. An event from a fenced (worker, inc) or with an old epoch of its slot is ignored and counted.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/bad_row.h"
#include "core/base/hash.h"
#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/rng.h"
#include "core/base/shard.h"
#include "core/base/time.h"

namespace tidepool::scheduler {

// What a worker process offers.
enum class WorkerKind : uint8_t { kDevice = 0, kReward = 1, kEnvironment = 2 };
constexpr auto WordsOf(WorkerKind) { return std::to_array<const char*>({"device", "reward", "environment"}); }

namespace event {

// The run begins, or goes on after the journal was folded. First event of every process.
struct Started {};
// What a trainer says of a row that it was given: the digest of its trajectory, and how many of its tokens it
// left without loss because they are too old (on_stale: mask).
struct GivenRow {
  SampleId tid;
  uint64_t digest = 0;
  int64_t masked = 0;
};
// From every member of the training group: the weights_digest of all of them has to be one, and their `rows`,
// those of its share from each, have to be the batch: every row once.
struct TrainDone {
  WorkerRef worker;
  SlotId slot;
  StepNumber step;
  int64_t lease = 0;
  bool finite = true;
  uint64_t weights_digest = 0;
  double seconds = 0;
  std::vector<GivenRow> rows;
  std::vector<std::pair<std::string, double>> held_out = {};  // as record::StepCommit has it
  uint64_t replay = 0;                                        // the same
};
// What a slot of a returning worker holds. `holds`: the weights in its memory, with the digest that the
// worker verified when it had loaded them; invalid when there are none, or when a load was under way (its
// memory is torn). Never trusted without the digest. `state_step`: the step whose training state is there,
// and the digest of that state's weights; invalid: none.
struct OfferedSlot {
  SlotId slot;
  Version holds;
  uint64_t holds_digest = 0;
  StepNumber state_step;
  uint64_t state_digest = 0;
  Shard state_shard = {};
  std::vector<TrainDone> done =
      {};  // what it said of the step that led to that state, if it made it; one at most
};
// What is left of an attempt on a slot of a returning worker, without its tokens. The versions are those of
// its tokens; invalid where it has none.
struct OfferedChunk {
  SlotId slot;
  SampleId tid;
  int32_t att = 0;
  int64_t tokens = 0;
  Version oldest, newest;
};
// A process connected. `restored_inc`: it was attached to this run before (controller restart with
// reattach_grace_s > 0) and holds what is listed; else invalid.
struct WorkerJoined {
  WorkerId worker;
  uint64_t process = 0;  // the answer names it: by then another process may have the place
  std::string name;
  WorkerKind kind = WorkerKind::kDevice;
  Incarnation restored_inc;
  std::vector<OfferedSlot> slots;
  std::vector<OfferedChunk> chunks;
  std::string host;  // by which others reach it: workers with the same one share memory
};
// Socket closed, process exit.
struct WorkerLost {
  WorkerRef worker;
  std::string why;
  bool by_exit = false;
  std::string blames;     // the plug-in that it was in, as it reported; empty: none
  bool for_good = false;  // another process at its place would end so again
};
// The slots of one engine cannot reach each other any more, says one of them: a process of theirs is gone, or
// is too late. It generates nothing.
struct EngineLost {
  WorkerRef worker;
  SlotId slot;
  std::string why;
};
// Exec failed, died before Hello.
struct WorkerStartFailed {
  WorkerId worker;
  std::string why;
  bool for_good = false;  // it would again
};
// step_s and decode_s are of the last step; decode_s of the last one without prefill.
struct EngineSample {
  SlotId slot;
  double kv_usage = 0;
  int64_t running = 0, waiting = 0;
  double step_s = 0;
  double decode_s = 0;
};
// An operation's name: what the worker was told has not begun, since others compute on its device.
inline constexpr const char* kAwaitTurn = "await_turn";
struct Heartbeat {
  WorkerRef worker;
  std::vector<EngineSample> engines;  // of its slots that have made a step
  std::string op;
  int64_t op_seq = 0;
};
// One message per engine step and chunk: tokens are stored by the caller before this is handed in.
struct ChunkProgress {
  WorkerRef worker;
  SlotId slot;
  SampleId tid;
  int32_t att = 0;
  int64_t new_tokens = 0;
  Version version;
};
enum class ChunkEnd : uint8_t {
  kChunkLimit,
  kEos,
  kStop,
  kLength,
  kCancelled,
  kDrained,
  kDataError,
  kError,
  kEnvError,  // the environment of a fragment is lost, or fails
};
constexpr auto WordsOf(ChunkEnd) {
  return std::to_array<const char*>(
      {"chunk_limit", "eos", "stop", "length", "cancelled", "drained", "data_error", "error", "env_error"});
}
// An attempt does not go on with what was generated before a chunk that ended so.
constexpr bool LosesWork(ChunkEnd end) { return end == ChunkEnd::kCancelled || end >= ChunkEnd::kDataError; }
struct ChunkFinished {
  WorkerRef worker;
  SlotId slot;
  SampleId tid;
  int32_t att = 0;
  ChunkEnd end = ChunkEnd::kEos;
  std::string why;
};
// Payload bytes of a finished sample are on disk (or, for sft, derived from the data row: file -1).
struct PayloadStored {
  SampleId tid;
  int32_t att = 0;
  int64_t prompt_len = 0, response_len = 0;
  uint64_t digest = 0;
  int64_t file = -1, offset = 0, bytes = 0;
  std::vector<record::VersionTokens> versions;  // of the tokens with loss; empty: not known
};
// What was generated of a running attempt cannot be read any more: the sample begins again. data: it can be
// read, and nothing can have generated it; the sample is dropped.
struct TokensLost {
  SampleId tid;
  int32_t att = 0;
  std::string why;
  bool data = false;
};
// The data row of a newly issued group could be read and tokenised / could not.
struct RowReady {
  int64_t ordinal = 0;
  int32_t issue = 0;
  int64_t prompt_len = 0;
};
struct RowInvalid {
  int64_t ordinal = 0;
  int32_t issue = 0;
  std::string why;
};
struct Graded {
  WorkerRef grader;
  SampleId tid;
  int32_t att = 0;
  GradeOutcome outcome = GradeOutcome::kOk;
  double reward = 0;
  std::vector<std::pair<std::string, double>> rewards;
  std::string why;
};
// Answer to EnvStep. observation_tokens: of what the policy reads next (the caller has tokenised it and keeps
// it until AppendObservation). reward: of the episode so far. kData: a reply that breaks the record (another
// observation at a replay). no_room: with kInfra; as many games are open as may be, and the turn was not
// begun.
struct EnvStepped {
  WorkerRef worker;
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
  GradeOutcome outcome = GradeOutcome::kOk;
  int64_t observation_tokens = 0;
  bool done = false;
  double reward = 0;
  std::vector<std::pair<std::string, double>> rewards;
  std::string why;
  bool no_room = false;
};
// After its last ChunkFinished.
struct Drained {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
};
struct Released {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
  int64_t free_bytes = 0;
};
struct Granted {
  WorkerRef worker;
  SlotId slot;
  SlotEpoch epoch;
};
// Weights `v` are on the host of the slot, as its worker has compared (`whole`), or have come further.
// `error` set: they do not come.
struct Pulled {
  WorkerRef worker;
  SlotId slot;
  Version v;
  bool whole = false;
  std::string error;
};
// Weights `v` are in the slot's memory; its worker computed their digest. `error` set: could not load.
struct Loaded {
  WorkerRef worker;
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  std::string error;
};
// The slot holds the training state of `step` (fresh from the model, restored, or fetched from a peer: the
// answer to the InitState, RestoreState or FetchState with that `request`). `error` set: could not;
// out_of_reach: because the store of the checkpoint is, so that nothing is known of the checkpoint.
struct StateReady {
  WorkerRef worker;
  SlotId slot;
  StepNumber step;
  uint64_t weights_digest = 0;
  std::string error;
  int64_t request = 0;
  bool out_of_reach = false;
};
// The communicator of the training group `group_epoch` is up on this member. `error` set: could not.
struct GroupFormed {
  WorkerRef worker;
  SlotId slot;
  int64_t group_epoch = 0;
  std::string error;
};
// Answer to AbortStep: the member is out of its collectives and holds the state of `step` (the one before
// the aborted step, or that step if it had finished it; invalid: none that can be relied on).
struct StepAborted {
  WorkerRef worker;
  SlotId slot;
  int64_t lease = 0;
  StepNumber step;
  uint64_t weights_digest = 0;
  Shard shard = {};  // of the optimizer's state
};
// The step was not made. `torn`: the worker does not hold the state before it, because some of its updates
// were made, or it never had it; else nothing has changed. `data`: the rows are at fault, those in `bad`;
// empty: the batch as a whole.
struct TrainFailed {
  WorkerRef worker;
  SlotId slot;
  StepNumber step;
  int64_t lease = 0;
  std::string why;
  bool data = false;
  bool torn = false;
  std::vector<BadRow> bad = {};
};
// What is stored of `tid` is not what its ENQ says. The step of `lease` was sent to nobody.
struct PayloadLost {
  int64_t lease = 0;
  SampleId tid;
  std::string why;
};
// Bytes can be fetched by others.
struct Published {
  WorkerRef worker;
  SlotId slot;
  Version v;
  std::string error;
};
// The state of `step` was copied to the host. `error` set: it was not, and the run goes on without that copy.
struct RecoveryCopied {
  WorkerRef worker;
  SlotId slot;
  StepNumber step;
  std::string error;
};
// Committed by rename, read back.
struct CheckpointWritten {
  int64_t ckpt = 0;
  StepNumber step;
  uint64_t manifest_digest = 0;
  uint64_t weights_digest = 0;
};
struct CheckpointFailed {
  int64_t ckpt = 0;
  std::string why;
};
// Reply to VerifyCheckpoint; "" = every digest right (of files in a store: every size; the worker that takes
// them looks at the digests). out_of_reach: as of StateReady.
struct CheckpointVerified {
  int64_t ckpt = 0;
  std::string error;
  bool out_of_reach = false;
};
struct FinalSaved {
  std::string error;
};
// To KeepBest. `error` set: best/ has what it had.
struct BestKept {
  StepNumber step;
  double value = 0;
  std::string error;
};
// SIGTERM, Ctrl-C; now: the second one.
struct StopRequested {
  std::string why;
  bool now = false;
};
// Journal or payload write failed: the run must end.
struct StorageFailed {
  std::string what;
};
// The caller did nothing for so long (it was stopped): workers that heard nothing of it may have ended
// themselves. `now` does not count that time.
struct StoodStill {
  Duration time{0};
};
struct Tick {};

}  // namespace event

using Event = std::variant<
    event::Started, event::WorkerJoined, event::WorkerLost, event::EngineLost, event::WorkerStartFailed,
    event::Heartbeat, event::ChunkProgress, event::ChunkFinished, event::PayloadStored, event::TokensLost,
    event::RowReady, event::RowInvalid, event::Graded, event::EnvStepped, event::Drained, event::Released,
    event::Granted, event::Pulled, event::Loaded, event::StateReady, event::GroupFormed, event::StepAborted,
    event::TrainDone, event::TrainFailed, event::PayloadLost, event::Published, event::RecoveryCopied,
    event::CheckpointWritten, event::CheckpointFailed, event::CheckpointVerified, event::FinalSaved,
    event::BestKept, event::StopRequested, event::StorageFailed, event::StoodStill, event::Tick>;

}  // namespace tidepool::scheduler
