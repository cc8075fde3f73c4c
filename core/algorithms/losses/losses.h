#pragma once
// Every policy loss, in the files of this folder: TP_PLUGIN(Loss, name) makes one (core/base/plugin.h). A
// file may hold the algorithm that uses it as well (core/algorithms/registry.h, docs/adding_an_algorithm.md).

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/algorithms/policy_loss.h"
#include "core/base/plugin.h"

namespace tidepool::algorithms {

using LossPlugin = LossEntry;
std::span<const Plugin<LossPlugin>> LossPlugins();  // the table that the build writes
const std::vector<LossEntry>& PolicyLosses();       // by name
// Null if there is none.
const LossEntry* FindLoss(std::string_view name);

// clip(r, 1 - low, 1 + high); an absent bound does not clip.
inline double ClipRatio(double r, std::optional<double> low, std::optional<double> high) {
  if (low.has_value()) r = std::max(r, 1 - *low);
  if (high.has_value()) r = std::min(r, 1 + *high);
  return r;
}
// Options that several losses have.
OptionSpec ClipLow(Value fallback);
OptionSpec ClipHigh(Value fallback);
OptionSpec LogRatioClamp(Value fallback);

}  // namespace tidepool::algorithms
