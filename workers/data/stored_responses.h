#pragma once
// Responses of samples as the run's folder has them, in words, for graders that see it. Thread-safe.

#include <memory>
#include <utility>

#include "core/base/file_system.h"
#include "core/base/status.h"
#include "core/text/tokenizer.h"
#include "workers/data/stored_samples.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class StoredResponses {
 public:
  // Null: the run's folder is not seen here. Errors of the model folder: it has no tokenizer that can be read
  // here; and of CheckTokenizer.
  static StatusOr<std::unique_ptr<StoredResponses>> Open(std::shared_ptr<FileSystem> fs,
                                                         const down::Welcome& welcome);
  // Sets text, response_tokens and ended of its input. Errors of StoredSamples::Read; kInvalidArgument:
  // tokens that no engine can have sampled.
  Status Fill(down::Grade& grade);

 private:
  StoredResponses(std::unique_ptr<StoredSamples> samples, std::unique_ptr<text::Tokenizer> tokenizer)
      : samples_(std::move(samples)), tokenizer_(std::move(tokenizer)) {}

  const std::unique_ptr<StoredSamples> samples_;
  const std::unique_ptr<text::Tokenizer> tokenizer_;
};

// kFailedPrecondition: it is not the controller's, so the same ids would be other words here.
Status CheckTokenizer(const text::Tokenizer& tokenizer, const down::Welcome& welcome);

}  // namespace tidepool::workers
