// Samples on their way: rows, chunks, fragments, turns, payload, grades.

#include <algorithm>

#include "core/sample/codec.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {

void ControllerProcess::Do(const cmd::PrepareRow& c) {
  StatusOr<EncodedRow> row = rows_->Row(c.ordinal);
  if (!row.ok()) {
    Feed(ev::RowInvalid{c.ordinal, c.issue, row.status().message()});
    return;
  }
  const auto prompt_len = static_cast<int64_t>(row->prompt.size());
  samples_.PutRow(c.ordinal, /*eval=*/false, std::move(*row));
  Feed(ev::RowReady{c.ordinal, c.issue, prompt_len});
  // A supervised row is its own payload: it is read again from the data when it is needed.
  if (config_.rl() != nullptr) return;
  for (int32_t k = 0; k < (TrainsOnPairs(config_) ? 2 : 1); ++k) {
    const sample::Trajectory t = samples_.Taught({c.ordinal, c.issue, k});
    Feed(ev::PayloadStored{t.tid, 0, prompt_len, t.size(), sample::Digest(t), -1, 0, 0, {}});
  }
}

bool ControllerProcess::EnsureRow(const SampleId& tid) {
  if (samples_.FindRow(tid) != nullptr) return true;
  StatusOr<EncodedRow> row = tid.is_eval() ? rows_->HeldOut(tid.ordinal) : rows_->Row(tid.ordinal);
  if (!row.ok()) {
    Warn("row " + ToString(tid) + ": " + row.status().message());
    return false;
  }
  samples_.PutRow(tid.ordinal, tid.is_eval(), std::move(*row));
  return true;
}

void ControllerProcess::Do(const cmd::StartChunk& c) {
  if (!EnsureRow(c.tid)) {
    Feed(ev::ChunkFinished{c.worker, c.tid, c.att, ev::ChunkEnd::kDataError, "the row cannot be read"});
    return;
  }
  if (const Status whole = turns_->CheckPrefix(samples_.Get(c.tid, c.att)); !whole.ok()) {
    Feed(ev::ChunkFinished{c.worker, c.tid, c.att, ev::ChunkEnd::kDataError, whole.message()});
    return;
  }
  down::StartChunk m = samples_.StartMessage(c);
  m.greedy = c.tid.is_eval() || (greedy_first_ && c.tid.sample == 0);
  if (fragments_ != nullptr) {
    held_chunks_.push_back({c.worker, std::move(m), Clock::now()});
    return SendFragments();
  }
  Send(c.worker, std::move(m));
  metrics_->Count("dispatch/chunks");
}

// Fragments go to a device with the environment worker that hosts their instances. While there is none (its
// place is being filled again) they wait here, and go back to the dispatcher after a while, so that nobody is
// taken for hung.
void ControllerProcess::SendFragments() {
  const std::vector<const up::Hello*> hosts = places_->EnvironmentHosts();
  while (!held_chunks_.empty() && !hosts.empty()) {
    HeldChunk held = std::move(held_chunks_.front());
    held_chunks_.pop_front();
    down::StartChunk& m = held.message;
    auto starts = fragments_->Starts(m.tid);
    if (!starts.ok()) {
      // What is lost of the fragment before it stays lost.
      const bool lost = starts.status().code() == StatusCode::kDataLoss;
      Feed(ev::ChunkFinished{held.worker, m.tid, m.att,
                             lost ? ev::ChunkEnd::kDataError : ev::ChunkEnd::kError,
                             "its start: " + starts.status().message()});
      continue;
    }
    m.starts = std::move(*starts);
    const up::Hello& host = *hosts[static_cast<uint64_t>(m.tid.ordinal) % hosts.size()];
    m.environment = host.environment_address;
    m.environment_token = host.environment_token;
    Send(held.worker, std::move(m));
    metrics_->Count("dispatch/chunks");
  }
}

void ControllerProcess::GiveBackHeldChunks() {
  if (fragments_ == nullptr) return;
  SendFragments();
  while (!held_chunks_.empty() && Clock::now() - held_chunks_.front().since > std::chrono::seconds(5)) {
    const HeldChunk held = std::move(held_chunks_.front());
    held_chunks_.pop_front();
    Feed(ev::ChunkFinished{held.worker, held.message.tid, held.message.att, ev::ChunkEnd::kCancelled,
                           "no environment worker is there"});
  }
}

void ControllerProcess::Do(const cmd::CancelChunk& c) {
  std::erase_if(held_chunks_,
                [&](const HeldChunk& h) { return h.message.tid == c.tid && h.message.att == c.att; });
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::StorePayload& c) {
  if (!EnsureRow(c.tid)) return;
  storage_->Store(samples_.Finished(c.tid));
}

void ControllerProcess::Do(const cmd::DiscardTokens& c) {
  samples_.Drop(c.tid);
  turns_->Forget(c.tid);
  // Rows are shared by a group's samples and cheap to make again; the last one takes it along.
  if (c.tid.is_eval() || c.tid.sample == 0) samples_.DropRow(c.tid.ordinal, c.tid.is_eval());
}

// What a sample is now: after its ENQ what the payload file has, and never what may be left in memory.
StatusOr<sample::Trajectory> ControllerProcess::Recorded(const SampleId& tid) {
  if (const record::Enq* enq = controller_->FindPayload(tid); enq != nullptr) {
    if (enq->payload_file >= 0) return payload_reader_->Read(*enq);
    return samples_.Taught(tid);
  }
  const StoredSample* s = samples_.Find(tid);
  if (s == nullptr || s->tokens.size() == 0) return NotFound("there are no tokens of " + ToString(tid));
  return s->tokens;
}

void ControllerProcess::Do(const cmd::Grade& c) {
  const auto s = EnsureRow(c.tid) ? Recorded(c.tid) : NotFound("its row cannot be read");
  if (!s.ok()) {
    Warn("grade of " + ToString(c.tid) + ": " + s.status().message());
    Feed(ev::Graded{c.grader, c.tid, c.att, GradeOutcome::kData, 0, {}, s.status().message()});
    return;
  }
  if (fragments_ != nullptr) {  // its environments have given their verdict step by step
    const sample::Segment* played = s->Fragment();
    auto verdict =
        played == nullptr ? InvalidArgument("it is no fragment") : fragments_->Judge(c.tid, *played);
    up::Graded graded;
    graded.grader = c.grader;
    graded.tid = c.tid;
    graded.att = c.att;
    if (verdict.ok()) {
      graded.reward = verdict->reward;
      graded.rewards = std::move(verdict->rewards);
    } else {
      graded.outcome = GradeOutcome::kData;
      graded.why = verdict.status().message();
    }
    metrics_->OnGraded(graded);
    Feed(ev::Graded(std::move(graded)));
    return;
  }
  const EncodedRow& row = *samples_.FindRow(c.tid);
  down::Grade m;
  m.tid = c.tid;
  m.att = c.att;
  m.prompt = row.question.prompt;
  m.answer = row.question.answer;
  m.fields.assign(row.question.fields.begin(), row.question.fields.end());
  m.text = rows_->ResponseText(s->Ids());
  m.response_tokens = s->size();
  m.max_new_tokens = config_.rollout.max_new_tokens;
  m.ended = s->finish != sample::Finish::kLength;
  m.timeout_s = Seconds(c.timeout);
  Send(c.grader, std::move(m));
}

void ControllerProcess::Do(const cmd::EnvStep& c) {
  StoredSample stored;
  StoredSample* record = nullptr;
  if (c.turn != 0) {
    record = controller_->FindPayload(c.tid) == nullptr ? samples_.Change(c.tid) : nullptr;
    auto t = EnsureRow(c.tid) ? Recorded(c.tid) : NotFound("its row cannot be read");
    if (!t.ok()) {
      Feed(ev::EnvStepped{.worker = c.worker,
                          .tid = c.tid,
                          .att = c.att,
                          .turn = c.turn,
                          .outcome = GradeOutcome::kData,
                          .why = t.status().message()});
      return;
    }
    if (record == nullptr) {  // a finished one, for its reward
      stored.tokens = std::move(*t);
      record = &stored;
    }
  }
  Send(c.worker, turns_->Step(c, record));
}

void ControllerProcess::Do(const cmd::AppendObservation& c) { turns_->Append(c); }

}  // namespace tidepool::workers
