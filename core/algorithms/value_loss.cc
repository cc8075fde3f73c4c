#include "core/algorithms/value_loss.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

struct Error {
  double value = 0, slope = 0;
};
Error Of(const ValueLossOptions& o, double v, double target) {
  const double e = v - target;
  if (!o.huber) return {o.factor * e * e, 2 * o.factor * e};
  if (std::fabs(e) <= o.huber_delta) return {e * e / 2, e};
  return {o.huber_delta * (std::fabs(e) - o.huber_delta / 2), std::copysign(o.huber_delta, e)};
}

}  // namespace

ValueLossResult ValueLoss(const ValueLossOptions& o, std::span<const double> values,
                          std::span<const double> old_values, std::span<const double> returns,
                          const Cells& cells, std::span<const double> weights) {
  const size_t n = cells.mask.size();
  TP_CHECK(values.size() == n && returns.size() == n && weights.size() == n &&
           (!o.clip.has_value() || old_values.size() == n));
  ValueLossResult out;
  out.grad_values.assign(n, 0.0);
  double clipped = 0;
  for (size_t t = 0; t < n; ++t) {
    if (cells.mask[t] == 0) continue;
    Error e = Of(o, values[t], returns[t]);
    if (o.clip.has_value() && std::fabs(values[t] - old_values[t]) > *o.clip) {
      const Error at_bound =
          Of(o, old_values[t] + std::copysign(*o.clip, values[t] - old_values[t]), returns[t]);
      if (at_bound.value > e.value) {
        e = {at_bound.value, 0};
        clipped += 1;
      }
    }
    out.loss += weights[t] * e.value;
    out.grad_values[t] = weights[t] * e.slope;
  }
  out.clip_frac = clipped / static_cast<double>(std::max<int64_t>(1, cells.Tokens()));
  return out;
}

}  // namespace tidepool::algorithms
