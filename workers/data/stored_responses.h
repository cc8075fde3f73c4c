#pragma once
// Responses of samples as their payload files have them, in words, for graders that see the run's folder.
// Thread-safe.

#include <memory>

#include "core/base/file_system.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/storage/payload.h"
#include "core/tasks/reward.h"
#include "core/text/tokenizer.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class StoredResponses {
 public:
  // Errors of the model folder: it has no tokenizer that can be read here.
  static StatusOr<std::unique_ptr<StoredResponses>> Open(std::shared_ptr<FileSystem> fs,
                                                         const down::Welcome& welcome);
  // Sets text, response_tokens and ended. Errors of PayloadReader::Read; kInvalidArgument: tokens that no
  // engine can have sampled.
  Status Fill(const record::Enq& payload, tasks::RewardInput& input);

 private:
  StoredResponses(std::shared_ptr<FileSystem> fs, const std::string& dir)
      : fs_(std::move(fs)), files_(*fs_, dir) {}

  const std::shared_ptr<FileSystem> fs_;
  storage::PayloadReader files_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
};

}  // namespace tidepool::workers
