// Policy gradients without a ratio.
//   reinforce  x = -A lp                       (Williams 1992; GPG, arXiv:2504.02546)
//   onpolicy   x = -A exp(lp - sg(lp))         value -A, the same gradient
//   ce         x = -lp                         the sampled tokens as targets, no advantage
#include "core/algorithms/losses/losses.h"

namespace tidepool::algorithms {
namespace {

Status ReinforceTerms(const Options&, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    out.value[t] = Times(-b.advantages[t], b.logp[t]);
    out.slope[t] = -b.advantages[t];
  }
  return OkStatus();
}

Status OnPolicyTerms(const Options&, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] != 0) out.value[t] = out.slope[t] = -b.advantages[t];
  }
  return OkStatus();
}

Status CrossEntropyTerms(const Options&, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    out.value[t] = -b.logp[t];
    out.slope[t] = -1;
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, reinforce) {
  return {.paper = "Simple statistical gradient-following algorithms, Williams 1992",
          .formula = "-A lp",
          .needs = {Column::kAdvantages},
          .terms = ReinforceTerms};
}

TP_PLUGIN(Loss, onpolicy) {
  return {.paper = "the on-policy form of PPO's objective, arXiv:1707.06347",
          .formula = "-A exp(lp - sg(lp))",
          .needs = {Column::kAdvantages},
          .terms = OnPolicyTerms};
}

TP_PLUGIN(Loss, ce) { return {.paper = "maximum likelihood", .formula = "-lp", .terms = CrossEntropyTerms}; }

}  // namespace tidepool::algorithms
