#include "workers/side/logged_turns.h"

#include <utility>

#include "core/storage/lazy_sync.h"
#include "core/storage/payload.h"
#include "core/storage/run_directory.h"
#include "workers/data/stored_responses.h"

namespace tidepool::workers {

constexpr size_t kMostKnown = 4096;  // attempts; of more, all are read again

struct LoggedTurns::Disk {
  std::shared_ptr<FileSystem> fs;
  std::string dir, run_id;
  int64_t first = 0;  // number of this worker's first file
  std::unique_ptr<storage::TokenLogWriter> log;
  std::unique_ptr<storage::LazySync> sync;  // null: the page cache is enough

  Status Begin() {
    TP_ASSIGN_OR_RETURN(log, storage::TokenLogWriter::Open(*fs, dir, run_id, first));
    return OkStatus();
  }
  StatusOr<storage::TokenPlace> Append(const storage::LoggedTokens& entry) {
    const auto places = log->Append({entry});
    if (!places.ok()) {
      TP_RETURN_IF_ERROR(Begin());  // an error of a file is final: the next entry begins another one
      return places.status();
    }
    if (sync != nullptr) sync->Soon(log->current_file());
    return places->front();
  }
};

StatusOr<std::unique_ptr<LoggedTurns>> LoggedTurns::Open(std::shared_ptr<FileSystem> fs,
                                                         const JobConfig& config,
                                                         const down::Welcome& welcome) {
  const storage::RunPaths paths(welcome.run_dir);
  if (!storage::HasTokenProof(*fs, {paths.tokens(), paths.payload()}, welcome.token_proof))
    return std::unique_ptr<LoggedTurns>();
  std::unique_ptr<LoggedTurns> turns(new LoggedTurns());
  TP_ASSIGN_OR_RETURN(turns->rows_, RowSource::Create(config, welcome.model_dir));
  TP_RETURN_IF_ERROR(CheckTokenizer(turns->rows_->tokenizer(), welcome));
  turns->files_ = std::make_shared<Disk>();
  Disk& files = *turns->files_;
  if (welcome.sync_payload) files.sync = std::make_unique<storage::LazySync>(fs);
  files.fs = std::move(fs);
  files.dir = paths.tokens();
  files.run_id = welcome.run_id;
  files.first = storage::FirstFileOf(welcome.inc);
  TP_RETURN_IF_ERROR(files.Begin());
  return turns;
}

template <typename Work>
auto LoggedTurns::OnDisk(const std::string& operation, Work work) -> decltype(work()) {
  const Status silent = DeadlineExceeded("the disk of tokens/ does not answer");
  if (const auto busy = disk_.Busy(); busy && busy->takes > kPatience) return silent;
  auto done = disk_.DoWithin(kPatience, operation, std::move(work));
  return done ? *std::move(done) : silent;
}

StatusOr<LoggedTurns::Said> LoggedTurns::Read(down::EnvStep& step, Clock::time_point asked) {
  // What another host has written may take a moment to be seen here; other games wait meanwhile.
  const auto until = asked + (files_->sync == nullptr ? std::chrono::seconds(0) : std::chrono::seconds(2));
  const auto known = known_.find(step.tid);
  Known at = known != known_.end() && known->second.att == step.att ? known->second : Known{.att = step.att};
  TP_ASSIGN_OR_RETURN(
      const storage::TokenChain chain,
      OnDisk("read of tokens/",
             [files = files_, until, place = at.place, tid = step.tid, att = step.att, newest = step.said] {
               return storage::AwaitTokenChain(*files->fs, files->dir, tid, att, newest, until, place);
             }));
  if (chain.from == 0) at = {.att = step.att};
  if (chain.from != at.tokens)
    return DataLoss("the log has other tokens of " + ToString(step.tid) + " than it had before");
  Said said{.tokens = at.tokens};
  for (const sample::Segment& s : chain.segments) {
    said.tokens += s.size();
    if (s.kind != sample::SegmentKind::kTokens) continue;
    TP_RETURN_IF_ERROR(s.CheckSampled(rows_->tokenizer().vocab_size()));
    at.actions.push_back(rows_->ResponseText(s.ids));
    said.ended = !s.ids.empty() && rows_->IsEnd(s.ids.back());
    said.action = s;
  }
  step.actions = std::move(at.actions);
  return said;
}

Status LoggedTurns::Write(const down::EnvStep& step, const Said& said, up::EnvStepped& reply) {
  const auto wrong = [&](const std::string& why) {
    reply.outcome = GradeOutcome::kData;
    reply.why = "the observation of turn " + std::to_string(step.turn) + why;
    return OkStatus();
  };
  auto ids = reply.observation_ids.empty()
                 ? rows_->EncodeObservation({reply.observation, reply.conversation}, said.ended)
                 : rows_->CheckedIds(std::move(reply.observation_ids));
  if (!ids.ok()) return wrong(": " + ids.status().message());
  if (ids->empty()) return wrong(" has no tokens");
  storage::LoggedTokens entry{.tid = step.tid, .att = step.att, .from = said.tokens, .before = step.said};
  entry.tokens = {.kind = sample::SegmentKind::kObservation, .ids = *std::move(ids)};
  const int64_t tokens = entry.tokens.size();
  TP_ASSIGN_OR_RETURN(const storage::TokenPlace place,
                      OnDisk("write of tokens/",
                             [files = files_, entry = std::move(entry)] { return files->Append(entry); }));
  reply.observation.clear();
  reply.observation_ids.clear();
  reply.logged = place;
  reply.logged_tokens = tokens;
  if (known_.size() >= kMostKnown) known_.clear();
  known_[step.tid] = {step.att, place, said.tokens + tokens, step.actions};
  return OkStatus();
}

}  // namespace tidepool::workers
