#pragma once
// Which runs `tidepool sweep CONFIG train.learning_rate=1e-5,2e-5` means: the cross product of the values,
// and whether they can share one device. Reads configs; writes nothing.

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/config/load.h"

namespace tidepool::workers {

struct SweptKey {
  std::string key;
  std::vector<std::string> values;  // YAML, two or more
};
// What stands on the command line: a key with several values, apart by commas outside of brackets and quotes,
// is swept; the others are overrides of all runs.
struct SweepWords {
  std::vector<SweptKey> swept;
  std::vector<std::string> overrides;
};
// kInvalidArgument: a word that is no KEY=VALUE, an empty value, a key twice, no key with several values, or
// more runs than kSweepRunsMost.
inline constexpr size_t kSweepRunsMost = 64;
StatusOr<SweepWords> ReadSweepWords(const std::vector<std::string>& words);

struct SweepRun {
  std::string label;                // a folder's name: "learning_rate-1e-5"
  std::vector<std::string> values;  // of the swept keys, in their order
  std::vector<std::string> overrides;
  config::LoadedConfig loaded;
};
// The first key changes slowest. Errors of LoadConfig, by the run; kInvalidArgument: the runs cannot share a
// device, by key and reason.
StatusOr<std::vector<SweepRun>> PlanSweep(const std::string& config, const SweepWords& words);

// Bytes of the machine's memory that the runs take on one pool: the model below their adapters, and the
// process that computes, once. 0: not predicted.
int64_t SweepMemory(const std::vector<SweepRun>& runs);

}  // namespace tidepool::workers
