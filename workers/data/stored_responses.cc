#include "workers/data/stored_responses.h"

#include <string>
#include <vector>

namespace tidepool::workers {

StatusOr<std::unique_ptr<StoredResponses>> StoredResponses::Open(std::shared_ptr<FileSystem> fs,
                                                                 const down::Welcome& welcome) {
  auto samples = StoredSamples::Open(std::move(fs), welcome);
  if (samples == nullptr) return std::unique_ptr<StoredResponses>();
  TP_ASSIGN_OR_RETURN(auto tokenizer, text::Tokenizer::Load(welcome.model_dir));
  TP_RETURN_IF_ERROR(CheckTokenizer(*tokenizer, welcome));
  return std::unique_ptr<StoredResponses>(new StoredResponses(std::move(samples), std::move(tokenizer)));
}

Status StoredResponses::Fill(down::Grade& grade) {
  TP_ASSIGN_OR_RETURN(const sample::Trajectory read, samples_->Read(grade));
  TP_RETURN_IF_ERROR(read.CheckSampled(tokenizer_->vocab_size()));
  const std::vector<int32_t> ids = read.Ids();
  grade.input.text = tokenizer_->Decode(ids, /*skip_special=*/true);
  grade.input.response_tokens = static_cast<int64_t>(ids.size());
  grade.input.ended = read.finish != sample::Finish::kLength;
  return OkStatus();
}

Status CheckTokenizer(const text::Tokenizer& tokenizer, const down::Welcome& welcome) {
  if (welcome.tokenizer == 0 || tokenizer.digest() == welcome.tokenizer) return OkStatus();
  return FailedPrecondition(
      welcome.model_dir + "/tokenizer.json of this host is not the controller's (digest " +
      std::to_string(tokenizer.digest()) + ", there " + std::to_string(welcome.tokenizer) +
      "): copy the model folder of the controller's host here, or share it");
}

}  // namespace tidepool::workers
