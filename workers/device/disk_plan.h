#pragma once
// How much room a job's run will take on the disk at its fullest, before anything is started: for `train`,
// which does not begin what cannot end, and for --dry-run. Checkpoints are exact (the bytes of the state);
// trajectories and records are upper bounds by the longest samples. Pure apart from reading config.json, the
// config of a warm start and, of a run that goes on, its folder; any thread.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/storage/run_directory.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {

struct DiskPlan {
  struct Part {
    std::string name;  // "3 checkpoints of 1.5 GiB (...)"
    int64_t bytes = 0;
    bool estimated = false;  // an upper bound, by the longest samples
  };
  std::vector<Part> parts;  // largest first; none is 0
  [[nodiscard]] int64_t total() const;
  [[nodiscard]] int64_t certain() const;  // without what is estimated
  // "4.5 GiB for 3 checkpoints of 1.5 GiB (...), at most 1 MiB for payload/".
  [[nodiscard]] std::string Text(bool with_estimates) const;
};

// Errors of PlanMemory.
StatusOr<DiskPlan> PlanDisk(const JobConfig& config);

// What CheckSpace is to find free for the run: what is certain. `goes_on`: the folder of the run that it goes
// on with, empty: a new one. Its checkpoints there make room for the new ones and are taken off, except
// for files that others link to as well (the base model) and those that stay until their successor is whole
// (final/, best/).
storage::SpaceNeed RoomFor(const DiskPlan& plan, const JobConfig& config, const std::string& goes_on = "");

// What is said where the disk of `dir` has room for what is certain, and may have none for the rest; empty:
// it has.
std::string SpaceWarning(const DiskPlan& plan, const std::string& dir, int64_t free_bytes);

// "1.5 GiB", "312 MiB", "17 B".
std::string BytesText(int64_t bytes);

}  // namespace tidepool::workers
