#pragma once
// Turns of episodes whose tokens are in token logs of the run's folder (core/storage/token_log.h): what the
// policy said is read there, and what the environment answers is written into a log of this worker, so that
// neither passes through the controller. One thread calls.

#include <cstdint>
#include <memory>
#include <string>

#include "core/base/config.h"
#include "core/base/file_system.h"
#include "core/base/status.h"
#include "core/storage/lazy_sync.h"
#include "core/storage/token_log.h"
#include "workers/data/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class LoggedTurns {
 public:
  // kNotFound: the run's folder is not seen here. Other errors: it is, and cannot be used.
  static StatusOr<std::unique_ptr<LoggedTurns>> Open(std::shared_ptr<FileSystem> fs, const JobConfig& config,
                                                     const down::Welcome& welcome);
  // What is in the logs of the attempt so far.
  struct Said {
    int64_t tokens = 0;
    bool ended = false;  // the policy has said the end of its turn
  };
  // Sets step.actions. Errors: the tokens are not there, or no policy can have said them.
  StatusOr<Said> Read(down::EnvStep& step) const;
  // Puts the observation of `reply` into the log, and its place in its stead; one that has no tokens makes
  // `reply` kData, a log that cannot be written kInfra.
  void Write(const down::EnvStep& step, const Said& said, up::EnvStepped& reply);

 private:
  LoggedTurns() = default;

  std::shared_ptr<FileSystem> fs_;
  std::string dir_;
  std::unique_ptr<RowSource> rows_;
  std::unique_ptr<storage::TokenLogWriter> log_;
  std::unique_ptr<storage::LazySync> sync_;  // null: the page cache is enough
};

}  // namespace tidepool::workers
