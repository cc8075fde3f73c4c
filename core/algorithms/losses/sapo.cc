// SAPO (arXiv:2511.20347): a soft gate in place of the clip; at rho = 1 the slope is that of PPO.
//   x = -A (4/tau) sigmoid(tau (rho - 1)),  tau = tau_pos if A > 0 else tau_neg
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status SapoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto clamp = o.Number("log_ratio_clamp");
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double a = b.advantages[t], full = b.logp[t] - b.old_logp[t];
    const double l = clamp ? std::clamp(full, -*clamp, *clamp) : full, rho = std::exp(l);
    const double tau = a > 0 ? o.Number("tau_pos", 1) : o.Number("tau_neg", 1);
    const double gate = 1 / (1 + std::exp(-tau * (rho - 1)));
    // Far out the gate is flat, and 1 - gate an exact 0 that must not meet an infinite ratio.
    const double flank = gate * (1 - gate);
    out.value[t] = Times(-a, 4 / tau * gate);
    out.slope[t] = l != full || flank == 0 ? 0 : Times(-a, 4 * flank * rho);
    if (std::isnan(full)) out.slope[t] = full;
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, sapo) {
  return {.paper = "Soft adaptive policy optimization, arXiv:2511.20347",
          .formula = "-A (4/tau) sigmoid(tau (rho - 1)), tau = tau_pos if A > 0 else tau_neg",
          .options =
              {{.name = "tau_pos",
                .fallback = 1.0,
                .lo = 1e-12,
                .doc = "temperature of the gate where A > 0",
                .required = true},
               {.name = "tau_neg", .fallback = 1.05, .lo = 1e-12, .doc = "and elsewhere", .required = true},
               LogRatioClamp({})},
          .needs = {Column::kAdvantages, Column::kOld},
          .aggregation = "seq-mean-token-mean",
          .terms = SapoTerms};
}

TP_PLUGIN(Algorithm, sapo) {
  return {.paper = "Soft adaptive policy optimization, arXiv:2511.20347",
          .doc = "a soft gate in place of the clip",
          .advantage = {"grpo"},
          .loss = {"sapo"}};
}

}  // namespace tidepool::algorithms
