#pragma once
// Every policy loss, one file each in this folder. To add one: write my_loss.cc with a function
// `LossEntry MyLoss()` as those here do, and name it in the list of losses.cc.

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/algorithms/policy_loss.h"

namespace tidepool::algorithms {

const std::vector<LossEntry>& PolicyLosses();
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

LossEntry Ppo();
LossEntry Gspo();
LossEntry Cispo();
LossEntry Sapo();
LossEntry Reinforce();
LossEntry OnPolicy();
LossEntry CrossEntropy();
LossEntry Gmpo();
LossEntry SequenceProduct();
LossEntry Topr();
LossEntry Kimi15();
LossEntry Vespo();
LossEntry KlCov();
LossEntry Dppo();
LossEntry IpoTrustRegion();
LossEntry ReferenceKl();
LossEntry Decoupled();

}  // namespace tidepool::algorithms
