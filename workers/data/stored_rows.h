#pragma once
// Rows of a batch as their payload files have them, for who trains on them: from the run's directory where
// this host sees it, and what is not there from who serves it (rows_call.h). The bytes are proven by what ENQ
// says of them, wherever they come from. Thread-safe.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"
#include "core/storage/payload.h"

namespace tidepool::workers {

using Enqs = std::vector<const record::Enq*>;
// Payloads, or why one cannot be had, in the order in which they were asked for.
using PayloadsRead = std::vector<StatusOr<storage::PayloadBytes>>;

// Bytes of a payload file, fewer at its end. kNotFound, kDataLoss: they are not there any more; other errors:
// they cannot be read now.
using ReadPayload =
    std::function<StatusOr<storage::PayloadBytes>(int64_t file, int64_t offset, int64_t bytes)>;

class StoredRows {
 public:
  // Asks who serves them. An error of the whole: nobody answers, or they cannot be read there now.
  using Ask = std::function<StatusOr<PayloadsRead>(const Enqs& which)>;
  // `dir`: payload/ of the run, whether this host sees it or not.
  StoredRows(std::shared_ptr<FileSystem> fs, const std::string& dir)
      : fs_(std::move(fs)), files_(*fs_, dir) {}

  struct Found {
    // kDataLoss, kNotFound: wherever it was looked for, these bytes are not there.
    std::vector<StatusOr<sample::Trajectory>> rows;
    int64_t bytes = 0;
  };
  // Errors of `ask`; kAborted: `go_on` said no, between two rows.
  StatusOr<Found> Read(const Enqs& which, const Ask& ask, const std::function<bool()>& go_on);

 private:
  const std::shared_ptr<FileSystem> fs_;
  storage::PayloadReader files_;
};

}  // namespace tidepool::workers
