#pragma once
// What controller and workers say to each other, as plain structs. A message that says what a command or an
// event of the scheduler says is that struct; its `worker` does not travel, the connection says who it is.
// message_fields.h lists the fields, and wire.h makes bytes of them. Value types; thread-compatible.
//
// To add a field: here (or in scheduler/), and in its list. To add a message: here, its list, and where it is
// handled. Nothing else knows the fields, and builds with other lists refuse each other.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/own_weights.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "core/storage/manifest_file.h"
#include "core/storage/payload.h"
#include "core/storage/token_log.h"
#include "core/tasks/reward.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"

namespace tidepool::workers {

// What an engine adds to a sample: a segment of tokens, or a whole fragment.
using TokenRecord = sample::Segment;

inline constexpr size_t kSlots = 1024;  // the most of one worker

namespace up {  // worker -> controller

namespace event = scheduler::event;

// First on every connection, and the only message without a session (docs/worker_protocol.md).
struct Hello {
  std::string run_id;  // of the run to join
  int64_t place = -1;  // of workers; -1: any free one
  scheduler::WorkerKind kind = scheduler::WorkerKind::kDevice;
  int64_t pid = 0;
  std::string weights_address;  // of this worker's Weights service; empty: none
  uint64_t process = 0;         // drawn by the process when it begins
  int64_t ctl_epoch = 0;        // of the controller that it was attached to last; 0: none yet
  Incarnation inc;              // that it was given by that controller; invalid: none yet
  int64_t received = 0;         // the last command that it took in that epoch
  // Of an environment worker's VectorEnvironments service, empty: none; and what its callers have to bring,
  // drawn anew by every process.
  std::string environment_address, environment_token;
  std::string host;  // name of its host
};
// What a process holds, said once to each controller epoch, in frames of at most kOfferedChunks chunks; the
// last one says so.
inline constexpr size_t kOfferedChunks = 1024;
struct Offer {
  std::vector<event::OfferedSlot> slots;
  std::vector<event::OfferedChunk> chunks;
  bool last = false;
};
// A server outside the run that nobody answers at; reward: its place in reward.functions. cause: in words.
struct Unreachable {
  int64_t reward = -1;
  std::string cause;
};
struct Heartbeat {
  std::string op;                            // what the device thread is doing
  int64_t op_seq = 0;                        // counts operations; a hang shows as no change
  std::vector<event::EngineSample> engines;  // of its slots that have made a step
  int64_t rss_bytes = 0;                     // resident memory of the process, peak
  // cluster.pace: steps so far, those that took longer than their pace, and the pace_scale at which hardly
  // any would have.
  int64_t paced_steps = 0, paced_missed = 0;
  double pace_scale_needed = 0;
  std::vector<Unreachable> waits_for;  // what keeps it from its work
  std::string pages;                   // address of its pages (watch_pages.h); empty: it shows none
};
// The first message of a worker that sees the run's folder (Welcome::token_proof): a device writes what it
// samples there, a grader reads it.
struct SeesRun {};
// A device cannot write there any more: what it samples comes with its messages from now on.
struct LogsNoMore {
  std::string why;
};
// The tokens that a chunk was to go on behind (StartChunk::unread); its end comes next.
struct CannotRead {
  SampleId tid;
  int32_t att = 0;
};
// What engine steps made of an attempt.
struct ChunkDelta {
  SampleId tid;
  int32_t att = 0;
  TokenRecord tokens;  // an outline, where they are in a token log
  bool ended = false;
  event::ChunkEnd end = event::ChunkEnd::kEos;  // where it has ended
  std::string why;
  int64_t from = 0;            // tokens of the attempt that go before these
  storage::TokenPlace logged;  // of the newest entry of the attempt; not valid: `tokens` has them
};
// Ends of a sample: of its own, not of a chunk.
constexpr bool EndsSample(event::ChunkEnd end) {
  return end == event::ChunkEnd::kEos || end == event::ChunkEnd::kStop || end == event::ChunkEnd::kLength;
}
constexpr sample::Finish FinishOf(event::ChunkEnd end) {
  return end == event::ChunkEnd::kLength ? sample::Finish::kLength
         : end == event::ChunkEnd::kStop ? sample::Finish::kStop
                                         : sample::Finish::kEos;
}
struct StepTokens {
  SlotId slot;
  std::vector<ChunkDelta> chunks;
  double step_s = 0;    // of all steps together
  double kv_usage = 0;  // the largest, as are the next two
  int64_t running = 0, waiting = 0, prefill_tokens = 0, prefix_hit_tokens = 0;
};
// A logged attempt that has ended is a payload file's, or cannot be. newest: the entry of its last tokens.
struct Stored {
  SampleId tid;
  int32_t att = 0;
  storage::TokenPlace newest;
  storage::PayloadRef ref;
  std::string error;
  bool declined = false;  // it was asked to and has not the sample's prompt any more, which is no fault
};
struct Graded : event::Graded {
  double seconds = 0;
  int64_t retries = 0;  // calls of reward servers that were made again, because nobody answered there
  std::map<std::string, std::string> details;  // what a function says besides its score, by its name
  bool unread = false;                         // no verdict: what was to be graded could not be read
};
struct EnvStepped {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
  GradeOutcome outcome = GradeOutcome::kOk;
  bool conversation = false;  // the observation is messages (core/environments/text_game.h)
  std::string observation;    // what the policy reads next; empty where it is in a token log:
  // The same as token ids, where whoever says it has tokenised it: then these are the record.
  std::vector<int32_t> observation_ids;
  storage::TokenPlace logged;
  int64_t logged_tokens = 0;
  bool unread = false;  // the actions could not be read
  double reward = 0;    // of the episode so far
  bool done = false;
  std::vector<std::pair<std::string, double>> rewards;  // the first is the verdict of an evaluation
  uint64_t history = 0;       // of all observations before this one: a replay arrives at the same
  uint64_t next_history = 0;  // and with this one
  uint64_t state =
      0;  // hash of the state that the policy acts in next; equal states of a group have equal ones
  std::string why;
  double seconds = 0;
  bool timed_out = false;
  bool no_room = false;  // as many games are open as may be; it was not begun
  int64_t replayed = 0;  // actions that had to be played again
};
using event::Drained;
using event::EngineLost;
using event::FinalSaved;
using event::Granted;
using event::GroupFormed;
using event::Published;
using event::RecoveryCopied;
using event::Released;
using event::StateReady;
using event::StepAborted;
using event::TrainFailed;
struct Pulled : event::Pulled {
  int64_t bytes = 0;        // that came from the other host; at the end alone
  int64_t whole_bytes = 0;  // of the weights
};
struct Loaded : event::Loaded {
  int64_t bytes = 0;  // that were copied
  double seconds = 0;
};
// What the changes of phases since a slot's last step moved there, of slots that train and generate: new
// weights on their way from how they are trained to how they are served, and the state of training that was
// put aside and taken back. bound_bytes: what of that could not have been there already.
struct PhaseChange {
  bool generates = false;  // else there are none
  int64_t bytes = 0, bound_bytes = 0;
  double seconds = 0;  // of these moves
};
inline constexpr const char* kColumnsEarly = "timing_s/columns_early";  // one of its metrics
struct TrainDone : event::TrainDone {
  int64_t read_bytes = 0;  // of payloads, of this rank's rows
  PhaseChange change;
  std::vector<std::pair<std::string, double>> metrics;
};
struct CheckpointFiles {
  int64_t ckpt = 0;
  std::vector<std::string> files;             // in the checkpoint's folder
  std::vector<storage::ManifestFile> stored;  // or in the store, and read back
  std::string error;
  double seconds = 0;
  uint64_t weights_digest = 0;
  std::string instruction_set;  // that computed the weights: "amx_bf16", or a GPU's name
};
}  // namespace up

using FromWorkerBody =
    std::variant<up::Hello, up::Heartbeat, up::StepTokens, up::Graded, up::Drained, up::Released, up::Granted,
                 up::Loaded, up::StateReady, up::TrainDone, up::TrainFailed, up::Published,
                 up::RecoveryCopied, up::CheckpointFiles, up::FinalSaved, up::GroupFormed, up::StepAborted,
                 up::EnvStepped, up::Offer, up::Pulled, up::SeesRun, up::Stored, up::CannotRead,
                 up::LogsNoMore, up::EngineLost>;
struct FromWorker {
  int64_t seq = 0;  // counts the messages of a session from 1; 0: not of the session (Hello, Heartbeat)
  int64_t ack = 0;  // all commands up to this one were taken
  FromWorkerBody body;
};

namespace down {  // controller -> worker

namespace command = scheduler::command;

// Answer to Hello, first on every connection: the session with this process goes on, or begins.
struct Attached {
  int64_t ctl_epoch = 0;
  int64_t received = 0;  // the last message that the controller took in the session
};
// The decision about what was offered: the process is this incarnation. One that it was before: it goes on
// with what it has; any other: it begins anew.
struct Welcome {
  Incarnation inc;
  int64_t place = 0;
  std::vector<SlotId> slots;  // of a device worker
  double permit_s = 0;        // serve nothing when no message came for so long
  std::string config_yaml;    // the resolved job
  std::string run_dir;        // for files on the same host
  std::string run_id;
  std::string
      model_dir;  // Hugging Face folder of the start (tokenizer, config; weights unless made from the config)
  std::string shared_memory;    // folder of weights and recovery copies on the same host
  int64_t run_clock_ns = 0;     // the run's clock when this was sent, for one time line of traces
  bool trains = true;           // whether a slot of this worker may ever hold the actor's role
  std::string operator_digest;  // SHA-256 of the token that its pages are read with
  std::string token_proof;      // who reads it in tokens/ may write there and into payload/; empty: nobody
  uint64_t tokenizer = 0;       // digest of model_dir's, as the controller has it; 0: it has none
  int32_t tool_format = 0;      // text::ToolFormat that a policy writes calls in
  bool sync_payload = true;     // a payload is on the disk before it is said to be stored
  int64_t together_ms = 100;    // tokens of steps are said together for so long
  std::string base_digest;      // SafetensorsFolder::Digest of model_dir, below an adapter; empty: not known
  // Folders of adapters on model_dir's model, which chunks may name; of who drives one worker without a run.
  std::vector<std::string> adapters;
};
struct Refuse {
  std::string why;
  bool again = false;  // it may come again later; else its process ends
};
struct PermitRenewal {};
// How tokens are drawn (engine::SamplingParams) where a request says so itself and not the job's config.
struct ChunkSampling {
  bool given = false;  // else nothing else counts here
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1, min_p = 0;
  std::vector<std::string> stop = {};
  std::vector<int32_t> stop_token_ids = {};
};
struct StartChunk {
  SlotId slot;
  SlotEpoch epoch;
  SampleId tid;
  int32_t att = 0;
  GroupId gid;
  Version version;
  // Where `have` is above 0, the prompt and so many tokens of the response are with the worker, from a chunk
  // of before, and are not sent again (HeldTokens::Complete); have_hash: sample::HashOfIds of them, where
  // they are not in a token log.
  int64_t have = 0;
  uint64_t have_hash = 0;
  // The tokens of this attempt go into the worker's token log; stores: and the worker writes its payload when
  // it has ended. before: the entry that has the last of `generated`. Behind it are `unread` more tokens in
  // token logs, up to the entry `newest`, which the worker reads there.
  bool logs = false, stores = false;
  storage::TokenPlace before, newest;
  int64_t unread = 0;
  std::vector<int32_t> prompt, generated;
  int64_t chunk_tokens = 0;    // at most so many new tokens now
  int64_t max_new_tokens = 0;  // of the sample
  bool greedy = false;         // evaluation
  ChunkSampling sampling = {};
  // Of a fragment: the start states of its environments (core/policy/fragment.h EncodeStates), the
  // environment worker that hosts them, and the token that it takes calls with.
  std::string starts, environment, environment_token;
  int64_t routing_bytes = 0;      // of the routing of `generated` that the controller has
  int32_t adapter = kOwnWeights;  // of Welcome::adapters, from 0 on; the attempt tells them apart
};
using command::CancelChunk;
using command::EndEpisode;
using command::ForgetGroup;
// The deltas of an attempt again that begin at token `from` or later.
struct Resend {
  SlotId slot;
  SampleId tid;
  int32_t att = 0;
  int64_t from = 0;
};
// Write the payload of an attempt that is whole in token logs, up to the entry `newest`, and say Stored.
// what: its outline; the prompt is an outline, too, where the worker has it from the attempt's last chunk.
struct Store {
  storage::TokenPlace newest;
  sample::Trajectory what;
};
struct Grade {
  SampleId tid;
  int32_t att = 0;
  tasks::RewardInput input;
  int32_t attempt = 0;  // above 0: it failed so often before
  // What the worker reads itself, in place of input.text: this payload (file below 0: none); or the response
  // that token logs have of the attempt, up to this entry (not valid: none).
  record::Enq payload;
  storage::TokenPlace logged;
};
// Environment workers. Plays all `actions` of the episode named by tid (sample -2: of its group, for the
// prompt) and says what the last one led to: a worker that holds the episode plays only what is new, any
// other replays.
struct EnvStep {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;  // how many actions; -1: all of a finished episode, for its reward
  std::vector<std::string> actions;
  // Where this is valid, the actions are what the policy has said in token logs, up to this entry, and what
  // the environment answers goes into its worker's own log, behind it.
  storage::TokenPlace said;
  double timeout_s = 0;  // for this turn
  // rollout.endpoint: the tokens of the last action, where `said` names none.
  TokenRecord action;
};
using command::Admit;
using command::Drain;
using command::InitState;
using command::Release;
struct RestoreState : command::RestoreState {
  std::string dir;  // of the checkpoint
};
// rows: of the whole batch, which every rank lists, so that counts and statistics are global.
// group_epoch 0: a group of one.
struct Train {
  SlotId slot;
  SlotEpoch epoch;
  int64_t lease = 0;
  StepNumber step;
  Version v;
  int64_t rows = 0;
  int64_t group_epoch = 0, rank = 0, world = 1, tensor = 1;
};
// A group of rows that will be trained before long: what a step at `v` needs of them beside the loss may be
// computed by now.
struct Preview {
  SlotId slot;
  SlotEpoch epoch;
  Version v;
  std::vector<record::Enq> rows;  // with payload
};
using command::AbortStep;
using command::EndEvaluation;
struct FetchState {
  SlotId slot;
  SlotEpoch epoch;
  StepNumber step;
  uint64_t weights_digest = 0;
  int64_t request = 0;
  std::string address;  // of the Weights service of the peer
};
// `ranks` above 1: the slot is `rank` of an engine's, which meet at the rendezvous of this name, unless they
// have met there before.
struct Grant {
  SlotId slot;
  SlotEpoch epoch;
  Role role = Role::kNone;
  int64_t rank = 0, ranks = 1;
  std::string meeting;
  double timeout_s = 0;
};
// Meet the others at the rendezvous of this name, which the controller has (Control.Meet).
struct FormGroup : command::FormGroup {
  std::string meeting;
  double timeout_s = 0;
};
using command::CopyRecovery;
using command::Publish;
struct Pull {
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  std::string address;  // of the source's Weights service
};
struct Load {
  SlotId slot;
  Version v;
  uint64_t digest = 0;
  std::string address;  // of the Weights service of who has them on this host; empty: shared memory
  bool alias = false;   // the weights are here: those of this slot's trainer
};
struct WriteCheckpoint {
  SlotId slot;
  int64_t ckpt = 0;
  std::string dir;
  bool part = false;  // only what of the optimizer's state this slot alone has: another one writes the rest
};
struct SaveFinal {
  SlotId slot;
  std::string dir;
};
struct Shutdown {
  std::string why;
};
}  // namespace down

using ToWorkerBody =
    std::variant<down::Welcome, down::Refuse, down::PermitRenewal, down::StartChunk, down::CancelChunk,
                 down::ForgetGroup, down::Grade, down::Drain, down::Release, down::Grant, down::InitState,
                 down::RestoreState, down::Train, down::Preview, down::AbortStep, down::EndEvaluation,
                 down::FetchState, down::FormGroup, down::CopyRecovery, down::Publish, down::Load,
                 down::Admit, down::WriteCheckpoint, down::SaveFinal, down::Shutdown, down::EnvStep,
                 down::Attached, down::Resend, down::Pull, down::Store, down::EndEpisode>;
struct ToWorker {
  // Counts the commands of a session from 1; 0: not of the session (Attached, Refuse, PermitRenewal).
  int64_t seq = 0;
  int64_t ack = 0;  // the effects of all messages up to this one are durable, or there are none
  ToWorkerBody body;
};

// One row of a leased batch. Its trajectory is with the controller only where it has no payload of its own:
// then the rank whose row it is gets it whole, the others its outline. Else that rank reads the payload
// (workers/data/stored_rows.h) and says the outline to the others.
struct BatchRow {
  GroupId gid;
  int64_t rank = 0;    // that computes it
  record::Enq stored;  // what it is, and where; payload_file below 0: it has no payload
  sample::Trajectory trajectory;
  bool same_prompt = false;  // on the wire: its prompt is that of the row before it, and is not sent again
  std::vector<Version> without_loss;  // tokens of these versions are too old to be trained (on_stale: mask)
  double reward = 0;
  std::vector<double> components;  // scores of the reward functions in their order, or empty
};
// The whole batch as a rank trains on it: its own rows, outlines of the others. Or, where there are some, the
// rows that keep it from being trained.
struct FetchedRows {
  std::vector<BatchRow> rows;
  std::vector<BadRow> bad;
};

}  // namespace tidepool::workers
