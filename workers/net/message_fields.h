#pragma once
// The fields of every message of messages.h, in their order on the wire. The one list: the codec (wire.h),
// the check that both ends have the same lists (WireSchema) and the tests are visitors of it.
//
//   V: void operator()(const char* name, T& field, size_t most = kUnbounded) for each T below.
//
// `most` of a text: words for people, both ends cut them (bounded_text.h). Of a list: more items are refused.
// Everything else is bounded by what a message may have (FrameReader).

#include <cstddef>
#include <limits>
#include <type_traits>

#include "core/base/fields.h"
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

namespace tidepool::scheduler::event {
using workers::kNames;
using workers::kWords;
TP_FIELDS_BY(Graded, TP_EACH(tid, att, outcome, reward) v("rewards", r.rewards, kNames);
             v("why", r.why, kWords);)
TP_FIELDS(Drained, slot, epoch)
TP_FIELDS(Released, slot, epoch, free_bytes)
TP_FIELDS(Granted, slot, epoch)
TP_FIELDS_BY(Pulled, TP_EACH(slot, v, whole) v("error", r.error, kWords);)
TP_FIELDS_BY(Loaded, TP_EACH(slot, v, digest) v("error", r.error, kWords);)
TP_FIELDS_BY(StateReady, TP_EACH(slot, step, weights_digest) v("error", r.error, kWords);
             v("request", r.request); v("out_of_reach", r.out_of_reach);)
TP_FIELDS_BY(GroupFormed, TP_EACH(slot, group_epoch) v("error", r.error, kWords);)
TP_FIELDS_BY(EngineLost, v("slot", r.slot); v("why", r.why, kWords);)
TP_FIELDS(StepAborted, slot, lease, step, weights_digest, shard)
TP_FIELDS(GivenRow, tid, digest, masked)
TP_FIELDS(TrainDone, slot, step, lease, finite, weights_digest, seconds, rows, replay)
TP_FIELDS(OfferedSlot, slot, holds, holds_digest, state_step, state_digest, state_shard, done)
TP_FIELDS_BY(TrainFailed, TP_EACH(slot, step, lease) v("why", r.why, kWords);
             TP_EACH(data, torn) v("bad", r.bad, kNames);)
TP_FIELDS_BY(Published, TP_EACH(slot, v) v("error", r.error, kWords);)
TP_FIELDS_BY(RecoveryCopied, TP_EACH(slot, step) v("error", r.error, kWords);)
TP_FIELDS_BY(FinalSaved, v("error", r.error, kWords);)
TP_FIELDS(OfferedChunk, slot, tid, att, tokens, oldest, newest)
TP_FIELDS(EngineSample, slot, kv_usage, running, waiting, step_s, decode_s)
}  // namespace tidepool::scheduler::event

namespace tidepool::scheduler::command {
TP_FIELDS(CancelChunk, slot, tid, att)
TP_FIELDS(EndEpisode, tid, att)
TP_FIELDS(ForgetGroup, slot, gid)
TP_FIELDS(Drain, slot, epoch)
TP_FIELDS(Release, slot, epoch, need_bytes)
TP_FIELDS(InitState, slot, request, shard)
TP_FIELDS(RestoreState, slot, ckpt, step, weights_digest, request, shard)
TP_FIELDS(FormGroup, slot, group_epoch, rank, world, tensor)
TP_FIELDS(AbortStep, slot, epoch, lease, step, group_epoch)
TP_FIELDS(EndEvaluation, slot, epoch, lease)
TP_FIELDS(CopyRecovery, slot, step)
TP_FIELDS(Publish, slot, v, digest, copies)
TP_FIELDS(Admit, slot, v)
}  // namespace tidepool::scheduler::command

namespace tidepool::storage {
TP_FIELDS(TokenPlace, file, offset)
TP_FIELDS(PayloadRef, file, offset, bytes, digest)
}  // namespace tidepool::storage

namespace tidepool::workers {

namespace up {
TP_FIELDS_BY(Hello, v("run_id", r.run_id, kWords);
             TP_EACH(place, kind, pid) v("weights_address", r.weights_address, kWords);
             TP_EACH(process, ctl_epoch, inc, received)
                 v("environment_address", r.environment_address, kWords);
             v("environment_token", r.environment_token, kWords); v("host", r.host, kWords);)
TP_FIELDS_BY(Offer, v("slots", r.slots, kSlots); v("chunks", r.chunks, kOfferedChunks); v("last", r.last);)
TP_FIELDS_BY(Unreachable, v("reward", r.reward); v("cause", r.cause, kWords);)
TP_FIELDS_BY(Heartbeat, v("op", r.op, kWords); v("op_seq", r.op_seq); v("engines", r.engines, kSlots);
             TP_EACH(rss_bytes, paced_steps, paced_missed, pace_scale_needed)
                 v("waits_for", r.waits_for, kNames);
             v("pages", r.pages, kWords);)
TP_FIELDS(SeesRun)
TP_FIELDS_BY(LogsNoMore, v("why", r.why, kWords);)
TP_FIELDS_BY(ChunkDelta, TP_EACH(tid, att, tokens, ended, end) v("why", r.why, kWords); TP_EACH(from, logged))
TP_FIELDS(CannotRead, tid, att)
TP_FIELDS_BY(Stored, TP_EACH(tid, att, newest, ref) v("error", r.error, kWords); v("declined", r.declined);)
TP_FIELDS(StepTokens, slot, chunks, step_s, kv_usage, running, waiting, prefill_tokens, prefix_hit_tokens)
TP_FIELDS_BY(Graded, VisitFields(As<event::Graded>(r), v); TP_EACH(seconds, retries, details, unread))
TP_FIELDS_BY(EnvStepped, TP_EACH(tid, att, turn, outcome, conversation, observation, observation_ids, logged,
                                 logged_tokens, unread, reward, done) v("rewards", r.rewards, kNames);
             TP_EACH(history, next_history, state) v("why", r.why, kWords);
             TP_EACH(seconds, timed_out, no_room, replayed))
TP_FIELDS_BY(Pulled, VisitFields(As<event::Pulled>(r), v); TP_EACH(bytes, whole_bytes))
TP_FIELDS_BY(Loaded, VisitFields(As<event::Loaded>(r), v); TP_EACH(bytes, seconds))
TP_FIELDS(PhaseChange, generates, bytes, bound_bytes, seconds)
TP_FIELDS_BY(TrainDone, VisitFields(As<event::TrainDone>(r), v);
             TP_EACH(read_bytes, change) v("metrics", r.metrics, kNames);)
TP_FIELDS_BY(CheckpointFiles, v("ckpt", r.ckpt); v("files", r.files, kNames); v("stored", r.stored, kNames);
             v("error", r.error, kWords);
             TP_EACH(seconds, weights_digest) v("instruction_set", r.instruction_set, kWords);)
}  // namespace up

namespace down {
TP_FIELDS(Attached, ctl_epoch, received)
TP_FIELDS_BY(Welcome, TP_EACH(inc, place) v("slots", r.slots, kSlots);
             TP_EACH(permit_s, config_yaml, run_dir, run_id, model_dir, shared_memory, run_clock_ns, trains,
                     operator_digest, token_proof, tokenizer, tool_format, sync_payload, together_ms,
                     base_digest, adapters))
TP_FIELDS_BY(Refuse, v("why", r.why, kWords); v("again", r.again);)
TP_FIELDS(PermitRenewal)
TP_FIELDS(ChunkSampling, given, temperature, top_k, top_p, min_p, stop, stop_token_ids)
TP_FIELDS(StartChunk, slot, epoch, tid, att, gid, version, have, have_hash, logs, stores, before, newest,
          unread, prompt, generated, chunk_tokens, max_new_tokens, greedy, sampling, starts, environment,
          environment_token, routing_bytes, adapter)
TP_FIELDS(Resend, slot, tid, att, from)
TP_FIELDS(Store, newest, what)
TP_FIELDS(Grade, tid, att, input, attempt, payload, logged)
TP_FIELDS(EnvStep, tid, att, turn, actions, said, timeout_s, action)
TP_FIELDS_BY(RestoreState, VisitFields(As<command::RestoreState>(r), v); v("dir", r.dir);)
TP_FIELDS(Grant, slot, epoch, role, rank, ranks, meeting, timeout_s)
TP_FIELDS(Train, slot, epoch, lease, step, v, rows, group_epoch, rank, world, tensor)
TP_FIELDS(Preview, slot, epoch, v, rows)
TP_FIELDS(FetchState, slot, epoch, step, weights_digest, request, address)
TP_FIELDS_BY(FormGroup, VisitFields(As<command::FormGroup>(r), v); TP_EACH(meeting, timeout_s))
TP_FIELDS(Pull, slot, v, digest, address)
TP_FIELDS(Load, slot, v, digest, address, alias)
TP_FIELDS(WriteCheckpoint, slot, ckpt, dir, part)
TP_FIELDS(SaveFinal, slot, dir)
TP_FIELDS_BY(Shutdown, v("why", r.why, kWords);)
}  // namespace down

TP_FIELDS(FromWorker, seq, ack, body)
TP_FIELDS(ToWorker, seq, ack, body)
TP_FIELDS(FetchedRows, rows, bad)
TP_FIELDS(BatchRow, gid, rank, stored, trajectory, same_prompt, without_loss, reward, components)

}  // namespace tidepool::workers
