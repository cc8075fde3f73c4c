// CISPO (MiniMax-M1, arXiv:2506.13585): a clipped, detached ratio weighs the log-prob, so that every token
// keeps a gradient.  x = -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A lp
// clip_low 1 or more, or null: no lower bound. With clip_low 1 and clip_high 0: the truncated-importance
// policy gradient (ROLL tis).
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status CispoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("clip_low"), high = o.Number("clip_high"), clamp = o.Number("log_ratio_clamp");
  out.clipped.assign(cells.mask.size(), 0);
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double l = b.logp[t] - b.old_logp[t], rho = std::exp(clamp ? std::clamp(l, -*clamp, *clamp) : l);
    const double w = ClipRatio(rho, low, high);
    out.clipped[t] = w != rho ? 1 : 0;
    out.slope[t] = Times(-b.advantages[t], w);
    out.value[t] = Times(out.slope[t], b.logp[t]);
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, cispo) {
  return {.paper = "MiniMax-M1, arXiv:2506.13585",
          .formula = "-sg(clip(rho, 1 - clip_low, 1 + clip_high)) A lp",
          .options = {ClipLow(1.0), ClipHigh(4.0), LogRatioClamp(20.0)},
          .needs = {Column::kAdvantages, Column::kOld},
          .terms = CispoTerms};
}

TP_PLUGIN(Algorithm, cispo) {
  return {.paper = "MiniMax-M1, arXiv:2506.13585",
          .doc = "clipped, detached ratio on the log-prob",
          .advantage = {"grpo"},
          .loss = {"cispo"}};
}

}  // namespace tidepool::algorithms
