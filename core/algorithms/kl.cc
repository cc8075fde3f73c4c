#include "core/algorithms/kl.h"

#include <algorithm>
#include <cmath>

namespace tidepool::algorithms {

KlToken KlEstimate(const KlOptions& o, double logp, double ref_logp) {
  const double full = logp - ref_logp;
  const bool outside = o.clamp_log.has_value() && std::fabs(full) > *o.clamp_log;
  const double d = outside && o.kind != KlKind::kAbs ? std::copysign(*o.clamp_log, full) : full;
  const double inside = outside ? 0 : 1;
  KlToken k;
  switch (o.kind) {
    case KlKind::kK1:
      k = {d, inside};
      break;
    case KlKind::kAbs:
      k = {std::fabs(d), d > 0 ? 1.0 : d < 0 ? -1.0 : 0.0};
      break;
    case KlKind::kK2:
      k = {d * d / 2, outside ? 0 : d};
      break;
    // expm1: at small d the two terms cancel.
    case KlKind::kK3:
      k = {std::expm1(-d) + d, outside ? 0 : -std::expm1(-d)};
      break;
  }
  if (o.score_term && !outside) k.slope += k.value;
  if (o.clamp_out.has_value() && std::fabs(k.value) > *o.clamp_out)
    k = {std::copysign(*o.clamp_out, k.value), 0};
  if (o.straight_through_k2) k.slope = full;
  return k;
}

double AdaptKlCoefficient(double beta, double kl, double target, double n_steps, double horizon) {
  return beta * (1 + std::clamp(kl / target - 1, -0.2, 0.2) * n_steps / horizon);
}

}  // namespace tidepool::algorithms
