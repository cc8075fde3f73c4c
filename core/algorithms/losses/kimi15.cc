// Kimi k1.5 (arXiv:2501.12599): policy gradient with a squared log ratio.  x = -A lp + tau/2 (lp - old)^2
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status Kimi15Terms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const double tau = o.Number("tau", 0);
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double l = b.logp[t] - b.old_logp[t];
    out.value[t] = Times(-b.advantages[t], b.logp[t]) + tau / 2 * l * l;
    out.slope[t] = -b.advantages[t] + tau * l;
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, kimi15) {
  return {.paper = "Kimi k1.5, arXiv:2501.12599",
          .formula = "-A lp + tau/2 (lp - old)^2",
          .options = {{.name = "tau",
                       .fallback = 0.1,
                       .lo = 0,
                       .doc = "weight of the squared log ratio",
                       .required = true}},
          .needs = {Column::kAdvantages, Column::kOld},
          .terms = Kimi15Terms};
}

TP_PLUGIN(Algorithm, kimi15) {
  return {.paper = "Kimi k1.5, arXiv:2501.12599",
          .doc = "policy gradient with a squared log ratio",
          .advantage = {"grpo", {{"scale", "none"}}},
          .loss = {"kimi15"}};
}

}  // namespace tidepool::algorithms
