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

class StoredRows {
 public:
  // Asks who serves them. An error of the whole: nobody answers.
  using Ask = std::function<StatusOr<PayloadsRead>(const Enqs& which)>;
  // `dir`: payload/ of the run, whether this host sees it or not.
  StoredRows(std::shared_ptr<FileSystem> fs, const std::string& dir, Ask ask)
      : fs_(std::move(fs)), files_(*fs_, dir), ask_(std::move(ask)) {}

  struct Found {
    // kDataLoss, kNotFound: wherever it was looked for, these bytes are not there.
    std::vector<StatusOr<sample::Trajectory>> rows;
    int64_t bytes = 0, asked_bytes = 0;  // of all that were read, and of those that were asked for
  };
  // Errors of Ask.
  StatusOr<Found> Read(const Enqs& which);

 private:
  const std::shared_ptr<FileSystem> fs_;
  storage::PayloadReader files_;
  const Ask ask_;
};

}  // namespace tidepool::workers
