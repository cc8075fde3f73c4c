#pragma once
// Value loss of a critic (PPO), with the clip to the old value. Pure, float64.
//   mse    x = factor max(e(V), e(V_clip)),  e = (V - R)^2,  V_clip = V_old + clip(V - V_old, +-clip);
//          a factor of 1/2 is usual
//   huber  e/2 within delta, delta (|V - R| - delta/2) beyond; no further factor

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"

namespace tidepool::algorithms {

struct ValueLossOptions {
  bool huber = false;
  double huber_delta = 10;
  std::optional<double> clip;  // verl, OpenRLHF 0.5; slime, RLinf 0.2
  double factor = 0.5;         // mse alone
};
struct ValueLossResult {
  double loss = 0;
  std::vector<double> grad_values;  // [cells]
  double clip_frac = 0;             // valid cells whose clipped error is the larger one
};
// weights of core/algorithms/aggregation.h. old_values may be empty without a clip.
ValueLossResult ValueLoss(const ValueLossOptions& options, std::span<const double> values,
                          std::span<const double> old_values, std::span<const double> returns,
                          const Cells& cells, std::span<const double> weights);

}  // namespace tidepool::algorithms
