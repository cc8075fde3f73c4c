#pragma once
// Samples as the run's folder has them, for who grades them there: of a payload file, or, where there will be
// no payload, of token logs. A disk that does not answer is given up after a while, so that no verdict waits
// for it. Thread-safe.

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "core/storage/payload.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class StoredSamples {
 public:
  // With a disk that does not answer. Others read before this one does, and take their time, too: a slow disk
  // is no silent one.
  struct Patience {
    std::chrono::milliseconds one = std::chrono::seconds(5);  // with one read, whosever it is
    // With all that go before, and this one; no more than a grader's deadline has for it
    // (scheduler/grading.cc).
    std::chrono::milliseconds all = std::chrono::seconds(10);
  };
  // Null: the run's folder is not seen here.
  static std::unique_ptr<StoredSamples> Open(std::shared_ptr<FileSystem> fs, const down::Welcome& welcome) {
    return Open(std::move(fs), welcome, Patience());
  }
  static std::unique_ptr<StoredSamples> Open(std::shared_ptr<FileSystem> fs, const down::Welcome& welcome,
                                             const Patience& patience);
  // The payload that the command names, or the response alone. It cannot be read here, or not now: kDataLoss,
  // kDeadlineExceeded and the errors of files.
  StatusOr<sample::Trajectory> Read(const down::Grade& grade);

 private:
  struct Files {
    Files(std::shared_ptr<FileSystem> from, const std::string& payload_dir, std::string tokens_dir)
        : fs(std::move(from)), payloads(*fs, payload_dir), tokens(std::move(tokens_dir)) {}
    const std::shared_ptr<FileSystem> fs;
    storage::PayloadReader payloads;
    const std::string tokens;
  };
  StoredSamples(std::shared_ptr<Files> files, bool shared, const Patience& patience)
      : files_(std::move(files)), shared_(shared), patience_(patience) {}

  const std::shared_ptr<Files> files_;  // the disk's thread has it too, which may hang
  const bool shared_;                   // what is read may have been written by another host
  const Patience patience_;
  DiskThread disk_;
};

// Instead of a verdict. kInvalidArgument: the sample itself is wrong; else the controller reads it and sends
// it.
up::Graded Unread(const down::Grade& grade, const Status& why);

}  // namespace tidepool::workers
