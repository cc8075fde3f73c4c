#pragma once
// What controller and workers say to each other, as plain structs: generated protobuf types stop at
// workers/net/wire.h, which turns them into these. proto/control.proto gives units and meaning of every
// field. Value types; thread-compatible.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "scheduler/events.h"

namespace tidepool::workers {

inline constexpr int32_t kWireSchema = 2;

// What an engine adds to a sample: a segment of tokens, or a whole fragment.
using TokenRecord = sample::Segment;

namespace up {  // worker -> controller
// First on every connection, and the only message without a session (docs/worker_protocol.md).
struct Hello {
  int32_t schema = kWireSchema;
  std::string build, run_id;
  int64_t place = -1;
  scheduler::WorkerKind kind = scheduler::WorkerKind::kDevice;
  int64_t device_bytes = 0, pid = 0;
  std::string weights_address;
  uint64_t process = 0;   // drawn by the process when it begins
  int64_t ctl_epoch = 0;  // of the controller that it was attached to last; 0: none yet
  Incarnation inc;        // that it was given by that controller; invalid: none yet
  int64_t received = 0;   // the last command that it took in that epoch
  std::string host;
  std::string environment_address,
      environment_token;  // of an environment worker that hosts vectorised environments
};
// What is left of an attempt on a worker, without its tokens.
struct OfferedAttempt {
  SampleId tid;
  int32_t att = 0;
  int64_t tokens = 0;
  Version oldest, newest;  // invalid where there are no tokens
};
// What a process holds, said once to each controller epoch, in frames of at most kOfferedAttempts attempts;
// the first one speaks for the device, the last one says so.
inline constexpr size_t kOfferedAttempts = 1024;
struct Offer {
  SlotId slot;
  LeaseEpoch epoch;
  Role role = Role::kNone;
  Version holds;  // weights that are whole in memory, by their digest; invalid: none are
  uint64_t holds_digest = 0;
  StepNumber state_step;  // whose training state is whole; invalid: none is
  uint64_t state_digest = 0;
  std::vector<OfferedAttempt> attempts;
  bool last = false;
};
struct Heartbeat {
  std::string op;
  int64_t op_seq = 0;
  double kv_usage = 0;
  int64_t running = 0, waiting = 0;
  double step_s = 0;
  int64_t rss_bytes = 0;
  bool has_engine = false;
  int64_t paced_steps = 0, paced_missed = 0;
  double pace_scale_needed = 0;
  double decode_s = 0;
};
struct ChunkDelta {
  SampleId tid;
  int32_t att = 0;
  TokenRecord tokens;
  bool ended = false;
  scheduler::event::ChunkEnd end = scheduler::event::ChunkEnd::kEos;
  std::string why;
  int64_t from = 0;  // tokens of the attempt that go before these
};
struct StepTokens {
  std::vector<ChunkDelta> chunks;
  double step_s = 0, kv_usage = 0;
  int64_t running = 0, waiting = 0, prefill_tokens = 0, prefix_hit_tokens = 0;
};
struct Graded {
  SampleId tid;
  int32_t att = 0;
  GradeOutcome outcome = GradeOutcome::kOk;
  double reward = 0;
  std::vector<std::pair<std::string, double>> rewards;
  std::string why;
  double seconds = 0;
};
struct EnvStepped {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
  GradeOutcome outcome = GradeOutcome::kOk;
  std::string observation;
  double reward = 0;
  bool done = false;
  std::vector<std::pair<std::string, double>> rewards;
  uint64_t history = 0, state = 0;
  std::string why;
  double seconds = 0;
  bool timed_out = false;
  int64_t replayed = 0;
};
struct Drained {
  SlotId slot;
  LeaseEpoch epoch;
};
struct Released {
  SlotId slot;
  LeaseEpoch epoch;
  int64_t free_bytes = 0;
};
struct Granted {
  SlotId slot;
  LeaseEpoch epoch;
};
struct Loaded {
  Version version;
  uint64_t digest = 0;
  std::string error;
  int64_t bytes = 0;
  double seconds = 0;
};
struct StateReady {
  StepNumber step;
  uint64_t weights_digest = 0;
  std::string error;
};
struct TrainDone {
  StepNumber step;
  int64_t lease = 0;
  bool finite = true;
  uint64_t weights_digest = 0;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<std::pair<SampleId, uint64_t>> rows;  // of the whole batch: sample::Digest of what was given
};
struct TrainFailed {
  StepNumber step;
  int64_t lease = 0;
  std::string why;
  bool data = false;
};
struct Published {
  Version version;
  std::string error;
};
struct RecoveryCopied {
  StepNumber step;
  std::string error;
};
struct CheckpointFiles {
  int64_t ckpt = 0;
  std::vector<std::string> files;
  std::string error;
  double seconds = 0;
  uint64_t weights_digest = 0;
  std::string instruction_set;
};
struct GroupFormed {
  int64_t group_epoch = 0;
  std::string error;
};
// step: whose state is here now; invalid: none that can be relied on.
struct StepAborted {
  int64_t lease = 0;
  StepNumber step;
  uint64_t weights_digest = 0;
};
struct FinalSaved {
  std::string error;
};
}  // namespace up

using FromWorkerBody =
    std::variant<up::Hello, up::Heartbeat, up::StepTokens, up::Graded, up::Drained, up::Released, up::Granted,
                 up::Loaded, up::StateReady, up::TrainDone, up::TrainFailed, up::Published,
                 up::RecoveryCopied, up::CheckpointFiles, up::FinalSaved, up::GroupFormed, up::StepAborted,
                 up::EnvStepped, up::Offer>;
struct FromWorker {
  int64_t seq = 0;  // counts the messages of a session from 1; 0: not of the session (Hello, Heartbeat)
  int64_t ack = 0;  // all commands up to this one were taken
  FromWorkerBody body;
};

namespace down {  // controller -> worker
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
  SlotId slot;
  double lease_s = 0;
  std::string config_yaml, run_dir, run_id, model_dir;
  int64_t run_clock_ns = 0;
};
struct Refuse {
  std::string why;
};
struct LeaseRenewal {};
struct StartChunk {
  SlotId slot;
  LeaseEpoch epoch;
  SampleId tid;
  int32_t att = 0;
  GroupId gid;
  Version version;
  std::vector<int32_t> prompt, generated;
  int64_t chunk_tokens = 0, max_new_tokens = 0;
  bool greedy = false;
  std::string starts, environment, environment_token;  // of a fragment
  int64_t routing_bytes = 0;
};
struct CancelChunk {
  SampleId tid;
  int32_t att = 0;
};
struct ForgetGroup {
  GroupId gid;
};
// The deltas of an attempt again that begin at token `from` or later.
struct Resend {
  SampleId tid;
  int32_t att = 0;
  int64_t from = 0;
};
struct Grade {
  SampleId tid;
  int32_t att = 0;
  std::string prompt, answer;
  std::vector<std::pair<std::string, std::string>> fields;
  std::string text;
  int64_t response_tokens = 0, max_new_tokens = 0;
  bool ended = false;
  double timeout_s = 0;
};
struct EnvStep {
  SampleId tid;
  int32_t att = 0;
  int64_t turn = 0;
  std::vector<std::string> actions;
  double timeout_s = 0;
};
struct Drain {
  SlotId slot;
  LeaseEpoch epoch;
};
struct Release {
  SlotId slot;
  LeaseEpoch epoch;
  int64_t need_bytes = 0;
};
struct Grant {
  SlotId slot;
  LeaseEpoch epoch;
  Role role = Role::kNone;
};
struct InitState {};
struct RestoreState {
  int64_t ckpt = -1;
  StepNumber step;
  uint64_t weights_digest = 0;
  std::string dir;
};
// rows: of the whole batch, which every rank reads, so that counts and statistics are global; groups:
// BatchRow::gid of those that this rank computes (world > 1). group_epoch 0: a group of one.
struct Train {
  SlotId slot;
  LeaseEpoch epoch;
  int64_t lease = 0;
  StepNumber step;
  Version version;
  int64_t rows = 0;
  int64_t group_epoch = 0, rank = 0, world = 1;
  std::vector<int64_t> groups;
};
struct AbortStep {
  SlotId slot;
  LeaseEpoch epoch;
  int64_t lease = 0;
  StepNumber step;
  int64_t group_epoch = 0;
};
struct FetchState {
  SlotId slot;
  LeaseEpoch epoch;
  StepNumber step;
  uint64_t weights_digest = 0;
  std::string address;
};
struct FormGroup {
  int64_t group_epoch = 0, rank = 0, size = 1;
  std::string store;
  double timeout_s = 0;
};
struct CopyRecovery {
  StepNumber step;
};
struct Publish {
  Version version;
  uint64_t digest = 0;
};
struct Load {
  Version version;
  uint64_t digest = 0;
  std::string address;
  bool alias = false;
};
struct Admit {
  Version version;
};
struct WriteCheckpoint {
  int64_t ckpt = 0;
  StepNumber step;
  std::string dir;
};
struct SaveFinal {
  std::string dir;
};
struct Shutdown {
  std::string why;
};
}  // namespace down

using ToWorkerBody =
    std::variant<down::Welcome, down::Refuse, down::LeaseRenewal, down::StartChunk, down::CancelChunk,
                 down::ForgetGroup, down::Grade, down::Drain, down::Release, down::Grant, down::InitState,
                 down::RestoreState, down::Train, down::AbortStep, down::FetchState, down::FormGroup,
                 down::CopyRecovery, down::Publish, down::Load, down::Admit, down::WriteCheckpoint,
                 down::SaveFinal, down::Shutdown, down::EnvStep, down::Attached, down::Resend>;
struct ToWorker {
  int64_t seq =
      0;  // counts the commands of a session from 1; 0: not of the session (Attached, Refuse, LeaseRenewal)
  int64_t ack = 0;  // the effects of all messages up to this one are durable, or there are none
  ToWorkerBody body;
};

// One row of a leased batch.
struct BatchRow {
  GroupId gid;
  sample::Trajectory trajectory;      // as its ENQ named it
  std::vector<Version> without_loss;  // tokens of these versions are too old to be trained (on_stale: mask)
  double reward = 0;
  std::vector<double> components;  // scores of the reward functions in their order, or empty
};

}  // namespace tidepool::workers
