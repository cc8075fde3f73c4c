#pragma once
// Turns of episodes whose tokens are in token logs of the run's folder (core/storage/token_log.h): what the
// policy said is read there, and what the environment answers is written into a log of this worker, so that
// neither passes through the controller. One thread calls, and waits kPatience for a disk that does not
// answer.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/base/status.h"
#include "core/storage/token_log.h"
#include "workers/data/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class LoggedTurns {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPatience = std::chrono::seconds(3);

  // Null: the run's folder is not seen here. Errors: it is, and cannot be used; kFailedPrecondition: with
  // another tokenizer than the controller's.
  static StatusOr<std::unique_ptr<LoggedTurns>> Open(std::shared_ptr<FileSystem> fs, const JobConfig& config,
                                                     const down::Welcome& welcome);
  // What is in the logs of the attempt so far.
  struct Said {
    int64_t tokens = 0;
    bool ended = false;  // the policy has said the end of its turn
    TokenRecord action;  // its last one, where that is new here
  };
  // Sets step.actions, asked for at that time. kInvalidArgument: no policy can have said them; other errors:
  // they cannot be read here, or not now.
  StatusOr<Said> Read(down::EnvStep& step, Clock::time_point asked);
  // Puts the observation of `reply` into the log, and its place in its stead; one that has no tokens makes
  // `reply` kData. An error: it cannot be written now.
  Status Write(const down::EnvStep& step, const Said& said, up::EnvStepped& reply);
  void Forget(const SampleId& tid) { known_.erase(tid); }  // its episode is over

 private:
  struct Disk;
  // Of an attempt, when its environment answered last, so that no turn is read twice.
  struct Known {
    int32_t att = 0;
    storage::TokenPlace place;
    int64_t tokens = 0;
    std::vector<std::string> actions;
  };
  LoggedTurns() = default;
  template <typename Work>
  auto OnDisk(const std::string& operation, Work work) -> decltype(work());

  std::unique_ptr<RowSource> rows_;
  std::map<SampleId, Known> known_;
  std::shared_ptr<Disk> files_;  // the disk's thread has it too, which may hang
  DiskThread disk_;
};

}  // namespace tidepool::workers
