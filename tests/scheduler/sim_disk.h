#pragma once
// Where the modelled cluster keeps what has to survive a crash. Not thread-safe.

#include <span>
#include <string>
#include <vector>

#include "core/base/journal_records.h"
#include "core/base/status.h"

namespace tidepool::scheduler {

class SimDisk {
 public:
  virtual ~SimDisk() = default;
  // The machine of disk and controller lost its power: every call fails until Reopen.
  [[nodiscard]] virtual bool down() const = 0;
  // The controller ended, with the machine or alone, and begins again: what is in the journal now.
  virtual std::vector<JournalEntry> Reopen() = 0;
  // Adds to the journal; `durable`: for good before it returns.
  virtual Status Append(std::span<const JournalEntry> batch, bool durable) = 0;
  // Commits a checkpoint whose weights are this number; its manifest's digest.
  virtual StatusOr<uint64_t> WriteCheckpoint(int64_t ckpt, StepNumber step, uint64_t weights) = 0;
  virtual std::string Verify(StepNumber step, uint64_t manifest_digest) = 0;  // "": every digest is right
  virtual uint64_t Weights(StepNumber step) = 0;                              // of a verified one
  virtual Status Remove(StepNumber step) = 0;
};

}  // namespace tidepool::scheduler
