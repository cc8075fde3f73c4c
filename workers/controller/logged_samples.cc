#include "workers/controller/logged_samples.h"

#include <algorithm>

namespace tidepool::workers {

namespace cmd = scheduler::command;
namespace ev = scheduler::event;

void LoggedSamples::Remember(const JournalRecord& r) {
  if (const auto* join = std::get_if<record::Join>(&r); join != nullptr && join->role == Role::kNone)
    alive_[join->worker.inc] = join->worker;
  const auto* fence = std::get_if<record::Fence>(&r);
  if (fence == nullptr) return;
  alive_.erase(fence->worker.inc);
  sees_.erase(fence->worker);
  for (auto& [tid, waiting] : storing_) {
    const StoredSample* s = samples_.Find(tid);
    if (s != nullptr && s->logged_by == fence->worker) StoreHere(tid, waiting);
  }
}

LoggedAttempt LoggedSamples::AttemptOf(const StoredSample& s) const {
  return {s.tokens.tid, s.tokens.att, s.tokens.finish, samples_.PromptOf(s.tokens.tid), s.logged};
}

// --- chunks

void LoggedSamples::Start(const cmd::StartChunk& c, bool greedy) {
  const StoredSample& s = samples_.Get(c.tid, c.att);
  const bool may = !c.tid.is_eval() && sees_.contains(c.worker);
  if (!s.logged.valid()) return Send(c, greedy, may && s.tokens.size() == 0, nullptr);
  if (may && samples_.IsWith(c.worker, s)) return Send(c, greedy, true, nullptr);
  const std::pair key(c.worker, std::pair(c.tid, c.att));
  reading_.push_back(key);
  ends_.read(AttemptOf(s), [this, c, greedy, may, key](Chain chain) {
    const auto at = std::ranges::find(reading_, key);
    if (at == reading_.end()) return;  // it was cancelled
    reading_.erase(at);
    StoredSample* now = samples_.Change(c.tid);
    if (now == nullptr || now->tokens.att != c.att || samples_.FindRow(c.tid) == nullptr) return;
    if (!chain.ok()) {
      ends_.feed(ev::TokensLost{c.tid, c.att, chain.status().message()});
      return;
    }
    now->files.merge(chain->files);
    if (may) return Send(c, greedy, true, &chain->segments);
    // This worker's tokens come to the controller, so what is before them has to be here too.
    now->tokens.segments = std::move(chain->segments);
    now->logged = {};
    Send(c, greedy, false, nullptr);
  });
}

void LoggedSamples::Send(const cmd::StartChunk& c, bool greedy, bool logs,
                         const std::vector<sample::Segment>* read) {
  down::StartChunk m = samples_.StartMessage(c, logs, read);
  m.greedy = greedy;
  ends_.send(c.worker, std::move(m));
}

void LoggedSamples::Cancel(const SampleId& tid, int32_t att) {
  std::erase_if(reading_, [&](const auto& item) { return item.second == std::pair(tid, att); });
}

// --- payload

bool LoggedSamples::Store(const cmd::StorePayload& c, TimePoint now) {
  const StoredSample* s = samples_.Find(c.tid);
  if (s == nullptr || s->tokens.att != c.att || !s->logged.valid()) return false;
  Waiting& waiting = storing_[c.tid] = {.att = c.att, .since = now};
  if (s->stored) {
    FeedStored(c.tid);
  } else if (!sees_.contains(s->logged_by)) {
    StoreHere(c.tid, waiting);
  }
  return true;
}

void LoggedSamples::StoreHere(const SampleId& tid, Waiting& waiting) {
  const StoredSample* s = samples_.Find(tid);
  if (s == nullptr || s->tokens.att != waiting.att || std::exchange(waiting.here, true)) return;
  ends_.store(AttemptOf(*s));
}

void LoggedSamples::Take(const WorkerRef& worker, const up::Stored& stored) {
  StoredSample* s = samples_.Change(stored.tid);
  if (s == nullptr || s->tokens.att != stored.att || !s->logged.valid() || s->logged_by != worker ||
      s->stored)
    return;
  const auto waiting = storing_.find(stored.tid);
  const int64_t writer = storage::WriterOf(storage::FirstFileOf(worker.inc));
  if (stored.error.empty() && storage::WriterOf(stored.ref.file) == writer) {
    s->stored = stored.ref;
    newest_payload_[writer] = stored.ref.file;
    if (waiting != storing_.end() && !waiting->second.here) FeedStored(stored.tid);
    return;
  }
  ends_.warn("payload of sample " + ToString(stored.tid) + ": its worker cannot write it: " +
             (stored.error.empty() ? "it names the file of another one" : stored.error));
  // What is wanted later is written here then.
  s->logged_by = {};
  if (waiting != storing_.end()) StoreHere(stored.tid, waiting->second);
}

void LoggedSamples::FeedStored(const SampleId& tid) {
  const StoredSample& s = *samples_.Find(tid);
  storing_.erase(tid);
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
  ends_.feed(std::move(stored));
  Stored(tid);
}

void LoggedSamples::Stored(const SampleId& tid) {
  storing_.erase(tid);
  if (const auto grade = grades_.extract(tid); !grade.empty()) ends_.grade(grade.mapped());
}

void LoggedSamples::Tick(TimePoint now) {
  for (auto& [tid, waiting] : storing_) {
    if (waiting.here || now - waiting.since <= kPatience) continue;
    ends_.warn("payload of sample " + ToString(tid) + ": its worker's disk does not answer");
    StoreHere(tid, waiting);
  }
}

bool LoggedSamples::Grade(const cmd::Grade& c) {
  if (!storing_.contains(c.tid)) return false;
  grades_.insert_or_assign(c.tid, c);
  return true;
}

void LoggedSamples::Forget(const SampleId& tid) {
  storing_.erase(tid);
  grades_.erase(tid);
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
  TokenFiles in;
  std::map<int64_t, int64_t> newest;
  samples_.ForEach([&](const StoredSample& s) {
    in.used.insert(s.files.begin(), s.files.end());
    for (const int64_t file : s.files) {
      int64_t& of = newest[storage::WriterOf(file)];
      of = std::max(of, file);
    }
  });
  for (const auto& [inc, worker] : alive_) {
    const int64_t first = storage::FirstFileOf(inc), writer = storage::WriterOf(first);
    in.writing[writer] = std::max(first, newest[writer]);
  }
  return in;
}

}  // namespace tidepool::workers
