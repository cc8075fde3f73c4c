#include "workers/side/logged_turns.h"

#include <chrono>
#include <utility>
#include <vector>

#include "core/storage/payload.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<LoggedTurns>> LoggedTurns::Open(std::shared_ptr<FileSystem> fs,
                                                         const JobConfig& config,
                                                         const down::Welcome& welcome) {
  const storage::RunPaths paths(welcome.run_dir);
  if (!storage::HasTokenProof(*fs, {paths.tokens(), paths.payload()}, welcome.token_proof))
    return NotFound("the run's folder is not seen here");
  std::unique_ptr<LoggedTurns> turns(new LoggedTurns());
  turns->dir_ = paths.tokens();
  TP_ASSIGN_OR_RETURN(turns->rows_, RowSource::Create(config, welcome.model_dir));
  TP_ASSIGN_OR_RETURN(turns->log_, storage::TokenLogWriter::Open(*fs, turns->dir_, welcome.run_id,
                                                                 storage::FirstFileOf(welcome.inc)));
  if (welcome.sync_payload) turns->sync_ = std::make_unique<storage::LazySync>(fs);
  turns->fs_ = std::move(fs);
  return turns;
}

StatusOr<LoggedTurns::Said> LoggedTurns::Read(down::EnvStep& step) const {
  // What another host has written may take a moment to be seen here; other games wait meanwhile.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(sync_ == nullptr ? 0 : 2);
  TP_ASSIGN_OR_RETURN(const storage::TokenChain chain,
                      storage::AwaitTokenChain(*fs_, dir_, step.tid, step.att, step.said, until));
  Said said;
  for (const sample::Segment& s : chain.segments) {
    said.tokens += s.size();
    if (s.kind != sample::SegmentKind::kTokens) continue;
    TP_RETURN_IF_ERROR(s.CheckSampled(rows_->tokenizer().vocab_size()));
    step.actions.push_back(rows_->ResponseText(s.ids));
    said.ended = !s.ids.empty() && rows_->IsEnd(s.ids.back());
  }
  return said;
}

void LoggedTurns::Write(const down::EnvStep& step, const Said& said, up::EnvStepped& reply) {
  const auto fail = [&](GradeOutcome outcome, const std::string& why) {
    reply.outcome = outcome;
    reply.why = "the observation of turn " + std::to_string(step.turn) + why;
  };
  auto ids = rows_->EncodeObservation(std::exchange(reply.observation, {}), said.ended);
  if (!ids.ok()) return fail(GradeOutcome::kData, ": " + ids.status().message());
  if (ids->empty()) return fail(GradeOutcome::kData, " has no tokens");
  reply.logged_tokens = static_cast<int64_t>(ids->size());
  const auto places =
      log_->Append({{.tid = step.tid,
                     .att = step.att,
                     .from = said.tokens,
                     .before = step.said,
                     .tokens = {.kind = sample::SegmentKind::kObservation, .ids = *std::move(ids)}}});
  if (!places.ok()) return fail(GradeOutcome::kInfra, " cannot be written: " + places.status().message());
  reply.logged = places->front();
  if (sync_ != nullptr) sync_->Soon(log_->current_file());
}

}  // namespace tidepool::workers
