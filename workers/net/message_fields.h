#pragma once
// The fields of every message of messages.h, in their order on the wire. The one list: the codec (wire.h),
// the check that both ends have the same lists (WireSchema) and the tests are visitors of it.
//
//   V: void operator()(const char* name, T& field, size_t most = kUnbounded) for each T below.
//
// `most` of a text: words for people, both ends cut them (bounded_text.h). Of a list: more items are refused.
// Everything else is bounded by the size of a frame (security.max_control_bytes).

#include <cstddef>
#include <limits>
#include <type_traits>

#include "workers/net/messages.h"

namespace tidepool::workers {

inline constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();
inline constexpr size_t kWords = 4096;  // bytes
inline constexpr size_t kNames = 4096;  // named numbers of one message

// `message` as the scheduler's struct that it extends.
template <typename Base, typename R>
auto& As(R& message) {
  return static_cast<std::conditional_t<std::is_const_v<R>, const Base, Base>&>(message);
}

}  // namespace tidepool::workers

#define TP_FIELDS(Type, ...)                            \
  template <typename V, typename R>                     \
  requires std::is_same_v<std::remove_const_t<R>, Type> \
  void VisitFields([[maybe_unused]] R& r, [[maybe_unused]] V&& v) { __VA_ARGS__ }

namespace tidepool::scheduler::event {
using workers::kNames;
using workers::kWords;
TP_FIELDS(Graded, v("tid", r.tid); v("att", r.att); v("outcome", r.outcome); v("reward", r.reward);
          v("rewards", r.rewards, kNames); v("why", r.why, kWords);)
TP_FIELDS(Drained, v("slot", r.slot); v("epoch", r.epoch);)
TP_FIELDS(Released, v("slot", r.slot); v("epoch", r.epoch); v("free_bytes", r.free_bytes);)
TP_FIELDS(Granted, v("slot", r.slot); v("epoch", r.epoch);)
TP_FIELDS(Loaded, v("v", r.v); v("digest", r.digest); v("error", r.error, kWords);)
TP_FIELDS(StateReady, v("step", r.step); v("weights_digest", r.weights_digest); v("error", r.error, kWords);
          v("request", r.request);)
TP_FIELDS(GroupFormed, v("group_epoch", r.group_epoch); v("error", r.error, kWords);)
TP_FIELDS(StepAborted, v("lease", r.lease); v("step", r.step); v("weights_digest", r.weights_digest);)
TP_FIELDS(GivenRow, v("tid", r.tid); v("digest", r.digest); v("masked", r.masked);)
TP_FIELDS(TrainDone, v("step", r.step); v("lease", r.lease); v("finite", r.finite);
          v("weights_digest", r.weights_digest); v("seconds", r.seconds); v("rows_digest", r.rows_digest);
          v("rows", r.rows);)
TP_FIELDS(TrainFailed, v("step", r.step); v("lease", r.lease); v("why", r.why, kWords); v("data", r.data);
          v("torn", r.torn);)
TP_FIELDS(Published, v("v", r.v); v("error", r.error, kWords);)
TP_FIELDS(RecoveryCopied, v("step", r.step); v("error", r.error, kWords);)
TP_FIELDS(FinalSaved, v("error", r.error, kWords);)
}  // namespace tidepool::scheduler::event

namespace tidepool::scheduler::command {
TP_FIELDS(CancelChunk, v("tid", r.tid); v("att", r.att);)
TP_FIELDS(ForgetGroup, v("gid", r.gid);)
TP_FIELDS(Drain, v("slot", r.slot); v("epoch", r.epoch);)
TP_FIELDS(Release, v("slot", r.slot); v("epoch", r.epoch); v("need_bytes", r.need_bytes);)
TP_FIELDS(Grant, v("slot", r.slot); v("epoch", r.epoch); v("role", r.role);)
TP_FIELDS(InitState, v("request", r.request);)
TP_FIELDS(RestoreState, v("ckpt", r.ckpt); v("step", r.step); v("weights_digest", r.weights_digest);
          v("request", r.request);)
TP_FIELDS(FetchState, v("slot", r.slot); v("epoch", r.epoch); v("step", r.step);
          v("weights_digest", r.weights_digest); v("request", r.request);)
TP_FIELDS(FormGroup, v("group_epoch", r.group_epoch); v("rank", r.rank); v("world", r.world);)
TP_FIELDS(AbortStep, v("slot", r.slot); v("epoch", r.epoch); v("lease", r.lease); v("step", r.step);
          v("group_epoch", r.group_epoch);)
TP_FIELDS(CopyRecovery, v("step", r.step);)
TP_FIELDS(Publish, v("v", r.v); v("digest", r.digest);)
TP_FIELDS(Load, v("v", r.v); v("digest", r.digest);)
TP_FIELDS(Admit, v("v", r.v);)
}  // namespace tidepool::scheduler::command

namespace tidepool::workers {

namespace up {
TP_FIELDS(Hello, v("run_id", r.run_id, kWords); v("place", r.place); v("kind", r.kind); v("pid", r.pid);
          v("device_bytes", r.device_bytes); v("weights_address", r.weights_address, kWords);
          v("process", r.process); v("ctl_epoch", r.ctl_epoch); v("inc", r.inc); v("received", r.received);
          v("environment_address", r.environment_address, kWords);
          v("environment_token", r.environment_token, kWords);)
TP_FIELDS(OfferedAttempt, v("tid", r.tid); v("att", r.att); v("tokens", r.tokens); v("oldest", r.oldest);
          v("newest", r.newest);)
TP_FIELDS(Offer, v("holds", r.holds); v("holds_digest", r.holds_digest); v("state_step", r.state_step);
          v("state_digest", r.state_digest); v("attempts", r.attempts, kOfferedAttempts); v("last", r.last);)
TP_FIELDS(Heartbeat, v("op", r.op, kWords); v("op_seq", r.op_seq); v("kv_usage", r.kv_usage);
          v("running", r.running); v("waiting", r.waiting); v("step_s", r.step_s); v("decode_s", r.decode_s);
          v("rss_bytes", r.rss_bytes); v("has_engine", r.has_engine); v("paced_steps", r.paced_steps);
          v("paced_missed", r.paced_missed); v("pace_scale_needed", r.pace_scale_needed);)
TP_FIELDS(ChunkDelta, v("tid", r.tid); v("att", r.att); v("tokens", r.tokens); v("ended", r.ended);
          v("end", r.end); v("why", r.why, kWords); v("from", r.from);)
TP_FIELDS(StepTokens, v("chunks", r.chunks); v("step_s", r.step_s); v("kv_usage", r.kv_usage);
          v("running", r.running); v("waiting", r.waiting); v("prefill_tokens", r.prefill_tokens);
          v("prefix_hit_tokens", r.prefix_hit_tokens);)
TP_FIELDS(Graded, VisitFields(As<event::Graded>(r), v); v("seconds", r.seconds);)
TP_FIELDS(EnvStepped, v("tid", r.tid); v("att", r.att); v("turn", r.turn); v("outcome", r.outcome);
          v("observation", r.observation); v("reward", r.reward); v("done", r.done);
          v("rewards", r.rewards, kNames); v("history", r.history); v("state", r.state);
          v("why", r.why, kWords); v("seconds", r.seconds); v("timed_out", r.timed_out);
          v("replayed", r.replayed);)
TP_FIELDS(Loaded, VisitFields(As<event::Loaded>(r), v); v("bytes", r.bytes); v("seconds", r.seconds);)
TP_FIELDS(TrainDone, VisitFields(As<event::TrainDone>(r), v); v("metrics", r.metrics, kNames);)
TP_FIELDS(CheckpointFiles, v("ckpt", r.ckpt); v("files", r.files, kNames); v("error", r.error, kWords);
          v("seconds", r.seconds); v("weights_digest", r.weights_digest);
          v("instruction_set", r.instruction_set, kWords);)
}  // namespace up

namespace down {
TP_FIELDS(Attached, v("ctl_epoch", r.ctl_epoch); v("received", r.received);)
TP_FIELDS(Welcome, v("inc", r.inc); v("place", r.place); v("slot", r.slot); v("lease_s", r.lease_s);
          v("config_yaml", r.config_yaml); v("run_dir", r.run_dir); v("run_id", r.run_id);
          v("model_dir", r.model_dir); v("run_clock_ns", r.run_clock_ns);)
TP_FIELDS(Refuse, v("why", r.why, kWords); v("again", r.again);)
TP_FIELDS(LeaseRenewal, )
TP_FIELDS(StartChunk, v("slot", r.slot); v("epoch", r.epoch); v("tid", r.tid); v("att", r.att);
          v("gid", r.gid); v("version", r.version); v("prompt", r.prompt); v("generated", r.generated);
          v("chunk_tokens", r.chunk_tokens); v("max_new_tokens", r.max_new_tokens); v("greedy", r.greedy);
          v("starts", r.starts); v("environment", r.environment); v("environment_token", r.environment_token);
          v("routing_bytes", r.routing_bytes);)
TP_FIELDS(Resend, v("tid", r.tid); v("att", r.att); v("from", r.from);)
TP_FIELDS(Grade, v("tid", r.tid); v("att", r.att); v("prompt", r.prompt); v("answer", r.answer);
          v("fields", r.fields); v("text", r.text); v("response_tokens", r.response_tokens);
          v("max_new_tokens", r.max_new_tokens); v("ended", r.ended); v("timeout_s", r.timeout_s);)
TP_FIELDS(EnvStep, v("tid", r.tid); v("att", r.att); v("turn", r.turn); v("actions", r.actions);
          v("timeout_s", r.timeout_s);)
TP_FIELDS(RestoreState, VisitFields(As<command::RestoreState>(r), v); v("dir", r.dir);)
TP_FIELDS(Train, v("slot", r.slot); v("epoch", r.epoch); v("lease", r.lease); v("step", r.step); v("v", r.v);
          v("rows", r.rows); v("group_epoch", r.group_epoch); v("rank", r.rank); v("world", r.world);
          v("groups", r.groups);)
TP_FIELDS(FetchState, VisitFields(As<command::FetchState>(r), v); v("address", r.address);)
TP_FIELDS(FormGroup, VisitFields(As<command::FormGroup>(r), v); v("store", r.store);
          v("timeout_s", r.timeout_s);)
TP_FIELDS(Load, VisitFields(As<command::Load>(r), v); v("address", r.address); v("alias", r.alias);)
TP_FIELDS(WriteCheckpoint, v("ckpt", r.ckpt); v("dir", r.dir);)
TP_FIELDS(SaveFinal, v("dir", r.dir);)
TP_FIELDS(Shutdown, v("why", r.why, kWords);)
}  // namespace down

TP_FIELDS(FromWorker, v("seq", r.seq); v("ack", r.ack); v("body", r.body);)
TP_FIELDS(ToWorker, v("seq", r.seq); v("ack", r.ack); v("body", r.body);)
TP_FIELDS(BatchRow, v("gid", r.gid); v("trajectory", r.trajectory); v("without_loss", r.without_loss);
          v("reward", r.reward); v("components", r.components);)
#undef TP_FIELDS

}  // namespace tidepool::workers
