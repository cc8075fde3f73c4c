#include "workers/data/stored_responses.h"

#include <utility>

#include "core/storage/run_directory.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<StoredResponses>> StoredResponses::Open(std::shared_ptr<FileSystem> fs,
                                                                 const down::Welcome& welcome) {
  std::unique_ptr<StoredResponses> opened(
      new StoredResponses(std::move(fs), storage::RunPaths(welcome.run_dir).payload()));
  TP_ASSIGN_OR_RETURN(opened->tokenizer_, text::Tokenizer::Load(welcome.model_dir));
  return opened;
}

Status StoredResponses::Fill(const record::Enq& payload, tasks::RewardInput& input) {
  TP_ASSIGN_OR_RETURN(const sample::Trajectory read, files_.Read(payload));
  TP_RETURN_IF_ERROR(read.CheckSampled(tokenizer_->vocab_size()));
  const std::vector<int32_t> ids = read.Ids();
  input.text = tokenizer_->Decode(ids, /*skip_special=*/true);
  input.response_tokens = static_cast<int64_t>(ids.size());
  input.ended = read.finish != sample::Finish::kLength;
  return OkStatus();
}

}  // namespace tidepool::workers
