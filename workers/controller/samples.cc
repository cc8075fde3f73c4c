// Samples on their way: rows, chunks, fragments, turns, payload, grades.

#include "core/sample/codec.h"
#include "core/storage/run_directory.h"
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
    Feed(ev::ChunkFinished{c.worker, c.slot, c.tid, c.att, ev::ChunkEnd::kDataError,
                           "the row cannot be read"});
    return;
  }
  if (const Status whole = turns_->CheckPrefix(samples_.Get(c.tid, c.att)); !whole.ok()) {
    Feed(ev::ChunkFinished{c.worker, c.slot, c.tid, c.att, ev::ChunkEnd::kDataError, whole.message()});
    return;
  }
  const bool greedy = c.tid.is_eval() || (greedy_first_ && c.tid.sample == 0);
  if (fragments_ == nullptr) return logged_->Start(c, greedy);
  const bool logs = logged_->Sees(c.worker);
  down::StartChunk m = samples_.StartMessage(c, logs);
  m.stores = logs && !c.tid.is_eval();
  m.greedy = greedy;
  waiting_fragments_->Add(c.worker, std::move(m));
  const auto know = [this, tid = c.tid, att = c.att](const StatusOr<std::string>& starts) {
    waiting_fragments_->Starts(tid, att, starts, Now());
  };
  const record::Enq* before = fragments_->Before(c.tid);
  if (before == nullptr) return know(fragments_->Starts(c.tid, nullptr));
  recorded_->Read(std::vector{*before}, [this, tid = c.tid, know](const Trajectories& read) {
    const StatusOr<sample::Trajectory>& t = read.front();
    know(t.ok() ? fragments_->Starts(tid, &*t) : StatusOr<std::string>(t.status()));
  });
}

void ControllerProcess::Do(const cmd::CancelChunk& c) {
  if (waiting_fragments_ != nullptr) waiting_fragments_->Cancel(c.tid, c.att);
  logged_->Cancel(c);
  samples_.Forgotten(c.tid);
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::ForgetGroup& c) {
  samples_.Forgotten(c.gid, c.worker);
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::StorePayload& c) {
  if (!EnsureRow(c.tid) || logged_->Store(c, Now())) return;
  storage_->Store(samples_.Finished(c.tid));
}

void ControllerProcess::Do(const cmd::DiscardTokens& c) {
  samples_.Discard(c.tid);
  turns_->Forget(c.tid);
  logged_->Forget(c.tid);
}

StatusOr<sample::Trajectory> ControllerProcess::InMemory(const SampleId& tid) {
  // The row of a supervised sample is its payload.
  if (controller_->FindPayload(tid) != nullptr) {
    if (!EnsureRow(tid)) return DataLoss("row " + ToString(tid) + " cannot be read");
    return samples_.Taught(tid);
  }
  const StoredSample* s = samples_.Find(tid);
  if (s == nullptr || s->tokens.size() == 0 || s->logged.valid())
    return NotFound("there are no tokens of " + ToString(tid));
  return s->tokens;
}

void ControllerProcess::Do(const cmd::Grade& c) {
  if (logged_->Grade(c)) return;
  const record::Enq* payload = controller_->FindPayload(c.tid);
  if (payload == nullptr || !EnsureRow(c.tid) || !logged_->Reads(c)) return GradeHere(c);
  down::Grade m = Message(c, {}, false);
  m.payload = *payload;
  Send(c.grader, std::move(m));
}

down::Grade ControllerProcess::Message(const cmd::Grade& c, const std::vector<int32_t>& ids,
                                       bool ended) const {
  down::Grade m{.tid = c.tid, .att = c.att, .input = {}, .attempt = c.attempt, .payload = {}, .logged = {}};
  if (fragments_ == nullptr) m.input = rows_->InputOf(c.tid, *samples_.FindRow(c.tid), ids, ended);
  return m;
}

// Of a grader that does not see the run's folder, or, `unread`, could not read there what this host can.
void ControllerProcess::GradeHere(const cmd::Grade& c, bool unread) {
  recorded_->Read(std::vector{c.tid}, [this, c, unread](const Trajectories& recorded) {
    if (unread && recorded.front().ok()) logged_->Blind(c.grader);
    Grade(c, recorded.front());
  });
}

void ControllerProcess::Grade(const cmd::Grade& c, const StatusOr<sample::Trajectory>& recorded) {
  Status sound = recorded.status();
  if (sound.ok() && fragments_ == nullptr && !token_proof_.empty())  // a worker's word alone so far
    sound = recorded->CheckSampled(rows_->tokenizer().vocab_size());
  if (!sound.ok() || !EnsureRow(c.tid)) {
    const std::string why = sound.ok() ? "its row cannot be read" : sound.message();
    // A sample that was dropped as its grading was given out has no tokens any more, and needs none.
    if (controller_->ExpectsGrade(c.grader, c.tid, c.att)) Warn("grade of " + ToString(c.tid) + ": " + why);
    // What cannot be read now may be read at the next try; what was read and is not sound stays so.
    const StatusCode code = recorded.status().code();
    const bool lost = !recorded.ok() && code != StatusCode::kInvalidArgument && code != StatusCode::kDataLoss;
    Feed(ev::Graded{c.grader, c.tid, c.att, lost ? GradeOutcome::kInfra : GradeOutcome::kData, 0, {}, why});
    return;
  }
  if (fragments_ != nullptr) {  // its environments have given their verdict step by step
    up::Graded graded = fragments_->judge().Grade(c.tid, c.att, *recorded);
    graded.grader = c.grader;
    if (controller_->ExpectsGrade(c.grader, c.tid, c.att)) metrics_->OnGraded(graded);
    Feed(ev::Graded(std::move(graded)));
    return;
  }
  Send(c.grader, Message(c, recorded->Ids(), recorded->finish != sample::Finish::kLength));
}

void ControllerProcess::Do(const cmd::EnvStep& c) {
  if (c.turn == 0) return Send(c.worker, turns_->Step(c, nullptr));
  if (controller_->FindPayload(c.tid) == nullptr && EnsureRow(c.tid)) {
    if (logged_->Play(c, *turns_)) return;
  }
  recorded_->Read(std::vector{c.tid}, [this, c](Trajectories recorded) {
    StatusOr<sample::Trajectory>& t = recorded.front();
    // Of a finished episode the actions are all that is needed.
    if (!t.ok() || (c.turn >= 0 && !EnsureRow(c.tid))) {
      Feed(ev::EnvStepped{.worker = c.worker,
                          .tid = c.tid,
                          .att = c.att,
                          .turn = c.turn,
                          .outcome = GradeOutcome::kData,
                          .why = t.ok() ? "its row cannot be read" : t.status().message()});
      return;
    }
    StoredSample finished;  // for its reward
    StoredSample* record = controller_->FindPayload(c.tid) == nullptr ? samples_.Change(c.tid) : nullptr;
    if (record == nullptr) {
      finished.tokens = *std::move(t);
      record = &finished;
    }
    Send(c.worker, turns_->Step(c, record));
  });
}

// A first observation that programs outside have said is said anew in each life of the run; what was stored
// of the group in an earlier one has to have the same prompt.
void ControllerProcess::OnTurn(const WorkerRef& worker, up::EnvStepped reply) {
  const record::Enq* before = nullptr;
  const EnvironmentConfig* e = config_.environment();
  if (e != nullptr && e->is_endpoint() && reply.turn == 0 && reply.outcome == GradeOutcome::kOk) {
    for (int32_t k = 0; k < SamplesPerRow(config_) && before == nullptr; ++k)
      before = controller_->FindPayload({reply.tid.ordinal, reply.tid.issue, k});
  }
  if (before == nullptr) return Feed(turns_->Take(worker, std::move(reply)));
  recorded_->Read(std::vector{*before}, [this, worker, reply](const Trajectories& read) mutable {
    const StatusOr<sample::Trajectory>& t = read.front();
    const bool same = t.ok() && t->prompt != nullptr && t->prompt->ids == reply.observation_ids;
    if (!same) {
      reply.outcome = GradeOutcome::kInfra;
      reply.why = t.ok() ? "its first request is another one than that of the samples of its group that were "
                           "played before the run was resumed"
                         : "what was played of its group before cannot be read: " + t.status().message();
    }
    Feed(turns_->Take(worker, std::move(reply)));
  });
}

void ControllerProcess::Do(const cmd::AppendObservation& c) { turns_->Append(c); }

// --- samples whose tokens are in token logs

// By a thread of its own: a disk that does not answer holds up neither the loop nor the journal.
void ControllerProcess::ReadTokens(const LoggedAttempt& a, std::function<void(LoggedSamples::Chain)> then) {
  // What another host has written may take a moment to be seen here. All that is asked for together has that
  // moment together.
  const auto until = Clock::now() + std::chrono::seconds(EndsWithTheMachine() ? 0 : 5);
  token_files_.Do("read of tokens/", [fs = fs_, dir = storage::RunPaths(request_.run_dir).tokens(), a, until,
                                      post = Post(), then = std::move(then)](const DiskThread::Say&) {
    auto chain = storage::AwaitTokenChain(*fs, dir, a.tid, a.att, a.newest, until);
    post([chain = std::move(chain), then] { then(chain); });
  });
}

Status ControllerProcess::CheckTokens(const sample::Trajectory& t) const {
  const int64_t vocabulary = rows_->tokenizer().vocab_size();
  for (const sample::Segment& s : t.segments) {
    if (s.kind == sample::SegmentKind::kTokens) TP_RETURN_IF_ERROR(s.CheckSampled(vocabulary));
    for (const int32_t id : s.ids) {
      if (id < 0 || id >= vocabulary)
        return InvalidArgument("id " + std::to_string(id) + " is outside the vocabulary of " +
                               std::to_string(vocabulary));
    }
  }
  return OkStatus();
}

void ControllerProcess::MakeLoggedSamples() {
  LoggedSamples::Ends ends;
  ends.expects = [this](const SlotRef& on, const SampleId& tid, int32_t att) {
    return controller_->Expects(on, tid, att);
  };
  ends.read = [this](const LoggedAttempt& a, std::function<void(LoggedSamples::Chain)> then) {
    ReadTokens(a, std::move(then));
  };
  ends.send = [this](const WorkerRef& w, down::StartChunk m) {
    Send(w, std::move(m));
    metrics_->Count("dispatch/chunks");
  };
  ends.ask_to_store = [this](const WorkerRef& w, down::Store m) { Send(w, std::move(m)); };
  ends.store = [this](const LoggedAttempt& a) {
    ReadTokens(a, [this, a](LoggedSamples::Chain chain) {
      auto whole = Whole(a, std::move(chain));
      // What a grader would look at otherwise.
      const Status sound = !whole.ok() ? whole.status() : environment_ ? CheckTokens(*whole) : OkStatus();
      if (sound.ok()) return storage_->Store(*std::move(whole));
      Feed(ev::TokensLost{a.tid, a.att, sound.message(), sound.code() == StatusCode::kInvalidArgument});
    });
  };
  ends.check = [this](const sample::Trajectory& t) { return CheckTokens(t); };
  ends.play = [this](const WorkerRef& w, down::EnvStep m) { Send(w, std::move(m)); };
  ends.grade = [this](const cmd::Grade& c) { Do(c); };
  ends.grade_logged = [this](const cmd::Grade& c, const StoredSample& s) {
    if (!EnsureRow(c.tid)) return GradeHere(c);
    down::Grade m = Message(c, {}, s.tokens.finish != sample::Finish::kLength);
    m.input.response_tokens = s.tokens.size();
    m.input.ended = s.tokens.finish != sample::Finish::kLength;
    m.logged = s.logged;
    Send(c.grader, std::move(m));
  };
  ends.grade_here = [this](const cmd::Grade& c, bool unread) { GradeHere(c, unread); };
  ends.feed = [this](scheduler::Event e) { Feed(std::move(e)); };
  ends.warn = [this](const std::string& line) { Warn(line); };
  ends.prune = [this] { PruneTokens(); };
  logged_ = std::make_unique<LoggedSamples>(samples_, environment_, std::move(ends));
}

void ControllerProcess::PruneTokens() {
  token_files_.Do("removal of old files of tokens/",
                  [fs = fs_, dir = storage::RunPaths(request_.run_dir).tokens(),
                   files = logged_->InUse()](const DiskThread::Say&) {
                    // What stays this time goes the next time.
                    (void)storage::DeleteTokenFiles(*fs, dir, files.used, files.writing, files.newest_writer);
                  });
}

}  // namespace tidepool::workers
