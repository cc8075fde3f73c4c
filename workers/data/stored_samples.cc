#include "workers/data/stored_samples.h"

#include <chrono>
#include <future>
#include <memory>
#include <utility>

#include "core/storage/run_directory.h"
#include "core/storage/token_log.h"

namespace tidepool::workers {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSeen = std::chrono::seconds(2);         // what another host has written may take a moment
constexpr auto kLook = std::chrono::milliseconds(100);  // whether the disk gets on

}  // namespace

std::unique_ptr<StoredSamples> StoredSamples::Open(std::shared_ptr<FileSystem> fs,
                                                   const down::Welcome& welcome, const Patience& patience) {
  const storage::RunPaths paths(welcome.run_dir);
  if (!storage::HasTokenProof(*fs, {paths.tokens(), paths.payload()}, welcome.token_proof)) return nullptr;
  auto files = std::make_shared<Files>(std::move(fs), paths.payload(), paths.tokens());
  return std::unique_ptr<StoredSamples>(new StoredSamples(std::move(files), welcome.sync_payload, patience));
}

StatusOr<sample::Trajectory> StoredSamples::Read(const down::Grade& grade) {
  const auto silent = [this] {
    const auto busy = disk_.Busy();
    return busy && busy->takes > patience_.one;
  };
  const Status error = DeadlineExceeded("the disk of the run's folder does not answer");
  if (silent()) return error;
  const auto until = Clock::now() + (shared_ ? kSeen : std::chrono::seconds(0));
  const auto read = [files = files_, until, tid = grade.tid, att = grade.att, payload = grade.payload,
                     logged = grade.logged, size = grade.input.response_tokens,
                     ended = grade.input.ended]() -> StatusOr<sample::Trajectory> {
    if (payload.payload_file >= 0) return files->payloads.Read(payload);
    TP_ASSIGN_OR_RETURN(storage::TokenChain chain,
                        storage::AwaitTokenChain(*files->fs, files->tokens, tid, att, logged, until));
    sample::Trajectory t{.tid = tid,
                         .att = att,
                         .finish = ended ? sample::Finish::kEos : sample::Finish::kLength,
                         .prompt = nullptr,
                         .segments = std::move(chain.segments)};
    if (t.size() != size)
      return DataLoss("tokens/ has " + std::to_string(t.size()) + " tokens of " + ToString(tid) +
                      ", and its worker said " + std::to_string(size));
    return t;
  };
  const auto answer = std::make_shared<std::promise<StatusOr<sample::Trajectory>>>();
  auto answered = answer->get_future();
  disk_.Do("read of a sample", [answer, read](const DiskThread::Say&) { answer->set_value(read()); });
  const auto end = Clock::now() + patience_.all;
  while (answered.wait_for(kLook) != std::future_status::ready) {
    if (silent() || Clock::now() > end) return error;
  }
  return answered.get();
}

up::Graded Unread(const down::Grade& grade, const Status& why) {
  up::Graded graded;
  graded.tid = grade.tid;
  graded.att = grade.att;
  graded.unread = why.code() != StatusCode::kInvalidArgument;
  graded.outcome = graded.unread ? GradeOutcome::kInfra : GradeOutcome::kData;
  graded.why = why.message();
  return graded;
}

}  // namespace tidepool::workers
