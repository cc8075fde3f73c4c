#pragma once
// The advantage estimators that a job can name: one registered entry each, over the rewards of a batch. The formulas
// are in group_advantages.h and returns.h. Estimators that need more than rewards (a critic, a greedy answer, step
// records) are functions there and in gae.h and gigpo.h; `needs` of an entry says what the job would have to provide.
// Pure; thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/options.h"
#include "core/base/status.h"

namespace tidepool::algorithms {

struct AdvantageInput {
  const Cells* cells = nullptr;      // rows of the whole batch
  std::span<const double> rewards;   // [rows]; NaN: no verdict
  std::span<const int64_t> group;    // [rows]
};

struct AdvantageEntry {
  std::string name;
  std::string paper;
  std::string formula;
  std::vector<OptionSpec> options;   // a job writes them as advantage_<name>
  bool compares = true;              // needs groups of 2 or more
  std::string needs;                 // what a job would have to provide; empty: rewards alone
  // [cells], 0 on masked ones. Null where `needs` is not empty.
  std::vector<double> (*compute)(const Options& options, const AdvantageInput& input) = nullptr;
};
const std::vector<AdvantageEntry>& AdvantageEstimators();
const AdvantageEntry* FindAdvantage(std::string_view name);

}  // namespace tidepool::algorithms
