#include "workers/controller/logged_samples.h"

#include <algorithm>
#include <utility>

#include "core/sample/codec.h"

namespace tidepool::workers {

namespace cmd = scheduler::command;
namespace ev = scheduler::event;

void LoggedSamples::Remember(const JournalRecord& r) {
  if (const auto* join = std::get_if<record::Join>(&r);
      join != nullptr && (join->role == Role::kNone || join->role == Role::kEnvironment)) {
    alive_[join->worker.inc] = join->worker;
    newest_writer_ = std::max(newest_writer_, storage::WriterOf(storage::FirstFileOf(join->worker.inc)));
  }
  const auto* fence = std::get_if<record::Fence>(&r);
  if (fence == nullptr) return;
  alive_.erase(fence->worker.inc);
  sees_.erase(fence->worker);
  writers_.erase(fence->worker);
  blind_.erase(fence->worker);
  std::erase_if(read_by_graders_, [&](const auto& given) { return given.second.grader == fence->worker; });
  for (auto& [tid, waiting] : storing_) {
    if (waiting.writer == fence->worker) StoreElsewhere(tid, waiting);
  }
}

void LoggedSamples::Remove(const WorkerRef& worker) {
  sees_.erase(worker);
  writers_.erase(worker);
}

LoggedAttempt LoggedSamples::AttemptOf(const StoredSample& s) const {
  return {s.tokens.tid, s.tokens.att,     s.tokens.finish, samples_.PromptOf(s.tokens.tid),
          s.logged,     s.tokens.segments};
}

StatusOr<sample::Trajectory> Whole(const LoggedAttempt& a, StatusOr<storage::TokenChain> chain) {
  TP_RETURN_IF_ERROR(chain.status());
  sample::Trajectory t{.tid = a.tid, .att = a.att, .finish = a.finish, .prompt = a.prompt};
  TP_ASSIGN_OR_RETURN(t.segments, storage::FillOutline(a.outline, *std::move(chain), a.tid));
  TP_RETURN_IF_ERROR(sample::Encode(t).status());  // what no payload can hold is this sample's fault alone
  return t;
}

// --- chunks

void LoggedSamples::Start(const cmd::StartChunk& c, bool greedy) {
  const StoredSample& s = samples_.Get(c.tid, c.att);
  const bool may = sees_.contains(c.worker);
  if (!s.logged.valid()) return Send(c, greedy, may && s.tokens.size() == 0, nullptr);
  if (may && (!s.read_here || samples_.IsWith(c.worker, s))) return Send(c, greedy, true, nullptr);
  const int64_t read = reads_++;
  reading_[read] = c;
  ends_.read(AttemptOf(s), [this, c, greedy, may, read, a = AttemptOf(s)](Chain chain) {
    // It was cancelled, or taken back from that slot.
    if (reading_.erase(read) == 0 || !ends_.expects({c.worker, c.slot}, c.tid, c.att)) return;
    StoredSample* now = samples_.Change(c.tid);
    if (now == nullptr || now->tokens.att != c.att || now->logged != a.newest ||
        samples_.FindRow(c.tid) == nullptr) {
      ends_.feed(ev::ChunkFinished{c.worker, c.slot, c.tid, c.att, ev::ChunkEnd::kCancelled,
                                   "its tokens have changed while they were read"});
      return;
    }
    if (may && chain.ok()) {
      now->files.merge(chain->files);
      return Send(c, greedy, true, &chain->segments);
    }
    // This worker's tokens come to the controller, so what is before them has to be here too.
    if (BringHere(a, std::move(chain))) Send(c, greedy, false, nullptr);
  });
}

bool LoggedSamples::BringHere(const LoggedAttempt& a, Chain chain) {
  auto whole = Whole(a, std::move(chain));
  const Status sound = whole.ok() ? ends_.check(*whole) : whole.status();
  if (!sound.ok()) {
    ends_.feed(ev::TokensLost{a.tid, a.att, sound.message(), sound.code() == StatusCode::kInvalidArgument});
    return false;
  }
  StoredSample& s = samples_.Get(a.tid, a.att);
  s.tokens.segments = std::move(whole->segments);
  s.logged = {};
  return true;
}

bool LoggedSamples::Play(const cmd::EnvStep& c, Turns& turns) {
  StoredSample* s = samples_.Change(c.tid);
  if (s == nullptr || s->tokens.att != c.att || !s->logged.valid()) return false;
  played_[c.tid] = c;
  if (s->read_here || IsBlind(c.worker)) {
    BringActions(c, turns);
  } else {
    ends_.play(c.worker, turns.Step(c, s));
  }
  return true;
}

bool LoggedSamples::Again(const WorkerRef& worker, const up::EnvStepped& reply, Turns& turns) {
  const auto played = played_.find(reply.tid);
  if (played == played_.end() || played->second.worker != worker || played->second.att != reply.att ||
      played->second.turn != reply.turn)
    return false;  // that it is over is what the scheduler finds
  if (!reply.unread) {
    played_.erase(played);
    return false;
  }
  BringActions(played->second, turns);
  return true;
}

// Whatever comes of it, the worker's turn is answered: by what it plays, or here.
void LoggedSamples::BringActions(const cmd::EnvStep& c, Turns& turns) {
  const StoredSample* s = samples_.Find(c.tid);
  const auto over = [this](const cmd::EnvStep& turn) {
    const auto played = played_.find(turn.tid);
    if (played != played_.end() && played->second.att == turn.att && played->second.turn == turn.turn &&
        played->second.worker == turn.worker)
      played_.erase(played);
    ends_.feed(ev::EnvStepped{.worker = turn.worker,
                              .tid = turn.tid,
                              .att = turn.att,
                              .turn = turn.turn,
                              .outcome = GradeOutcome::kInfra,
                              .why = "its actions cannot be read"});
  };
  if (s == nullptr || s->tokens.att != c.att) return over(c);
  if (!s->logged.valid()) return ends_.play(c.worker, turns.Step(c, samples_.Change(c.tid)));
  ends_.read(AttemptOf(*s), [this, a = AttemptOf(*s), c, over, &turns](Chain chain) {
    StoredSample* now = samples_.Change(a.tid);
    const bool there = now != nullptr && now->tokens.att == a.att && samples_.FindRow(a.tid) != nullptr;
    // The turn was given to another worker meanwhile, or is over; or it was asked for twice.
    const bool same = there && (now->logged == a.newest || !now->logged.valid());
    if (same && now->logged.valid()) {
      if (chain.ok()) Blind(c.worker);
      if (!BringHere(a, std::move(chain))) return over(c);
    }
    if (!same) return over(c);
    ends_.play(c.worker, turns.Step(c, now));
  });
}

void LoggedSamples::Take(const WorkerRef& worker, const up::CannotRead& what) {
  StoredSample* s = samples_.Change(what.tid);
  if (s != nullptr && s->tokens.att == what.att && s->worker == worker) s->read_here = true;
}

void LoggedSamples::Send(const cmd::StartChunk& c, bool greedy, bool logs,
                         const std::vector<sample::Segment>* read) {
  down::StartChunk m = samples_.StartMessage(c, logs, read);
  m.greedy = greedy;
  m.stores = logs && !episodes_ && !c.tid.is_eval();  // there is no payload of an evaluation
  ends_.send(c.worker, std::move(m));
}

void LoggedSamples::Cancel(const cmd::CancelChunk& c) {
  const auto waits = [&](const auto& item) {
    const cmd::StartChunk& s = item.second;
    return s.worker == c.worker && s.slot == c.slot && s.tid == c.tid && s.att == c.att;
  };
  if (std::erase_if(reading_, waits) > 0)
    ends_.feed(ev::ChunkFinished{c.worker, c.slot, c.tid, c.att, ev::ChunkEnd::kCancelled, ""});
}

// --- payload

bool LoggedSamples::Store(const cmd::StorePayload& c, TimePoint now) {
  now_ = now;
  const StoredSample* s = samples_.Find(c.tid);
  if (s == nullptr || s->tokens.att != c.att || !s->logged.valid()) return false;
  const bool begun = !episodes_ && writers_.contains(s->logged_by);  // by the worker, when the sample ended
  Waiting& waiting =
      storing_[c.tid] = {.att = c.att, .writer = begun ? s->logged_by : WorkerRef{}, .since = now};
  if (s->stored) {
    FeedStored(c.tid);
  } else if (!begun) {
    StoreElsewhere(c.tid, waiting);
  }
  return true;
}

// Who has worked on it last and has its prompt still. Of another one it would be known only that it sees the
// folder, and a prompt would go there that is with the controller anyway.
WorkerRef LoggedSamples::NextWriter(const StoredSample& s, const std::set<WorkerRef>& tried) const {
  return s.with_worker > 0 && writers_.contains(s.worker) && !tried.contains(s.worker) ? s.worker
                                                                                       : WorkerRef{};
}

void LoggedSamples::StoreElsewhere(const SampleId& tid, Waiting& waiting) {
  const StoredSample* s = samples_.Find(tid);
  if (s == nullptr || s->tokens.att != waiting.att || waiting.here) return;
  if (waiting.writer.inc.valid()) waiting.tried.insert(waiting.writer);
  waiting.writer = NextWriter(*s, waiting.tried);
  waiting.since = now_;
  if (!waiting.writer.inc.valid()) {
    waiting.here = true;
    return ends_.store(AttemptOf(*s));
  }
  sample::Trajectory what{
      .tid = tid,
      .att = s->tokens.att,
      .finish = s->tokens.finish,
      .prompt = std::make_shared<const sample::Segment>(samples_.PromptOf(tid)->Outline()),
      .segments = {}};
  for (const sample::Segment& said : s->tokens.segments) what.segments.push_back(said.Outline());
  ends_.ask_to_store(waiting.writer, {s->logged, std::move(what)});
}

void LoggedSamples::Take(const WorkerRef& worker, const up::Stored& stored) {
  StoredSample* s = samples_.Change(stored.tid);
  const auto at = storing_.find(stored.tid);
  Waiting* waiting = at == storing_.end() || at->second.att != stored.att ? nullptr : &at->second;
  const bool asked = waiting != nullptr && (waiting->writer == worker || waiting->tried.contains(worker));
  if (s == nullptr || s->tokens.att != stored.att || !s->logged.valid() || s->logged != stored.newest ||
      (s->logged_by != worker && !asked))
    return;  // of another attempt, or of tokens that were taken back
  const int64_t writer = storage::WriterOf(storage::FirstFileOf(worker.inc));
  const storage::PayloadRef& ref = stored.ref;
  const bool sound = storage::WriterOf(ref.file) == writer && ref.offset >= 0 && ref.bytes > 0 &&
                     ref.bytes <= sample::kMaxTrajectoryBytes;
  if (stored.error.empty() && sound) {
    s->stored = stored.ref;
    newest_payload_[writer] = stored.ref.file;
    if (waiting != nullptr && !waiting->here) FeedStored(stored.tid);
    return;
  }
  if (!stored.declined)
    ends_.warn("payload of sample " + ToString(stored.tid) + ": a worker cannot write it: " +
               (stored.error.empty() ? "it names a place that is not one of its own" : stored.error));
  if (s->logged_by == worker) s->logged_by = {};  // what is wanted later is written by another one
  if (waiting != nullptr && waiting->writer == worker) StoreElsewhere(stored.tid, *waiting);
}

void LoggedSamples::FeedStored(const SampleId& tid) {
  const StoredSample& s = *samples_.Find(tid);
  ev::PayloadStored stored{.tid = tid,
                           .att = s.tokens.att,
                           .prompt_len = samples_.PromptOf(tid)->size(),
                           .response_len = s.tokens.size(),
                           .digest = s.stored->digest,
                           .file = s.stored->file,
                           .offset = s.stored->offset,
                           .bytes = s.stored->bytes,
                           .versions = {}};
  for (const auto& [version, tokens] : s.tokens.VersionsWithLoss())
    stored.versions.push_back({version, tokens});
  const int32_t att = stored.att;
  ends_.feed(std::move(stored));
  Stored(tid, att);
}

void LoggedSamples::Stored(const SampleId& tid, int32_t att) {
  if (const auto at = storing_.find(tid); at != storing_.end() && at->second.att == att) storing_.erase(at);
  const auto grade = grades_.find(tid);
  if (grade == grades_.end() || grade->second.att != att) return;
  const cmd::Grade c = grade->second;
  grades_.erase(grade);
  ends_.grade(c);
}

void LoggedSamples::Note(const WorkerRef& worker, const up::StepTokens& tokens) {
  for (const up::ChunkDelta& c : tokens.chunks) Note(worker, c.logged);
}

void LoggedSamples::Note(const WorkerRef& worker, const storage::TokenPlace& place) {
  const int64_t writer = storage::WriterOf(storage::FirstFileOf(worker.inc));
  // Who takes the tokens refuses places in the log of another worker.
  if (!place.valid() || storage::WriterOf(place.file) != writer) return;
  const auto [newest, first] = newest_tokens_.try_emplace(writer, place.file);
  if (newest->second >= place.file) return;
  newest->second = place.file;
  rotated_ = true;
}

void LoggedSamples::Tick(TimePoint now) {
  now_ = now;
  if (std::exchange(rotated_, false)) ends_.prune();
  for (auto& [tid, waiting] : storing_) {
    if (waiting.here || now - waiting.since <= kPatience) continue;
    ends_.warn("payload of sample " + ToString(tid) + ": the disk of its worker does not answer");
    StoreElsewhere(tid, waiting);
  }
}

bool LoggedSamples::Grade(const cmd::Grade& c) {
  const auto at = storing_.find(c.tid);
  if (at != storing_.end() && at->second.att == c.att) {
    grades_.insert_or_assign(c.tid, c);
    return true;
  }
  const StoredSample* s = samples_.Find(c.tid);
  if (!c.tid.is_eval() || s == nullptr || s->tokens.att != c.att || !s->logged.valid()) return false;
  if (Reads(c)) {
    ends_.grade_logged(c, *s);
  } else {
    BringAnswer(c, /*unread=*/false);
  }
  return true;
}

bool LoggedSamples::Reads(const cmd::Grade& c) {
  const bool reads = sees_.contains(c.grader) && !IsBlind(c.grader);
  if (reads) read_by_graders_[c.tid] = c;
  return reads;
}

bool LoggedSamples::Again(const WorkerRef& worker, const up::Graded& verdict) {
  const auto given = read_by_graders_.find(verdict.tid);
  if (given == read_by_graders_.end() || given->second.grader != worker || given->second.att != verdict.att)
    return false;
  const cmd::Grade c = given->second;
  read_by_graders_.erase(given);
  if (!verdict.unread) return false;
  const StoredSample* s = samples_.Find(c.tid);
  if (c.tid.is_eval() && s != nullptr && s->tokens.att == c.att && s->logged.valid()) {
    BringAnswer(c, /*unread=*/true);
  } else {
    ends_.grade_here(c, /*unread=*/true);
  }
  return true;
}

void LoggedSamples::BringAnswer(const cmd::Grade& c, bool unread) {
  const LoggedAttempt a = AttemptOf(*samples_.Find(c.tid));
  ends_.read(a, [this, a, c, unread](Chain chain) {
    const StoredSample* now = samples_.Find(a.tid);
    const bool there = now != nullptr && now->tokens.att == a.att && samples_.FindRow(a.tid) != nullptr;
    if (!there) return;  // the evaluation is over
    if (now->logged.valid() && !BringHere(a, std::move(chain))) return;
    ends_.grade_here(c, unread);
  });
}

void LoggedSamples::Forget(const SampleId& tid) {
  played_.erase(tid);
  storing_.erase(tid);
  grades_.erase(tid);
  read_by_graders_.erase(tid);
}

// --- files

void LoggedSamples::AddPayloadFiles(storage::FirstFiles& needed) const {
  samples_.ForEach([&](const StoredSample& s) {
    if (s.stored) storage::AddFile(needed, s.stored->file);
  });
  for (const auto& [inc, worker] : alive_) {
    const int64_t first = storage::FirstFileOf(inc);
    const auto newest = newest_payload_.find(storage::WriterOf(first));
    storage::AddFile(needed, newest == newest_payload_.end() ? first : newest->second);
  }
}

LoggedSamples::TokenFiles LoggedSamples::InUse() const {
  TokenFiles in{.used = {}, .writing = {}, .newest_writer = newest_writer_};
  samples_.ForEach([&](const StoredSample& s) { in.used.insert(s.files.begin(), s.files.end()); });
  for (const auto& [inc, worker] : alive_) {
    const int64_t first = storage::FirstFileOf(inc);
    const auto newest = newest_tokens_.find(storage::WriterOf(first));
    // What it wrote before it began the newest may be about to be said.
    in.writing[storage::WriterOf(first)] =
        newest == newest_tokens_.end() ? first : std::max(first, newest->second - 1);
  }
  return in;
}

}  // namespace tidepool::workers
