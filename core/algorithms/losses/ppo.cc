// PPO's clipped objective (Schulman et al., arXiv:1707.06347), with separate bounds (clip-higher, DAPO,
// arXiv:2503.14476), dual clip (arXiv:1912.09729) and two-sided cap (INTELLECT-2, arXiv:2505.07291).
//   l = clip(lp - old, +-log_ratio_clamp), rho = e^l
//   x = max(-A min(rho, ratio_cap), -A clip(rho, 1 - clip_low, 1 + clip_high));  A < 0: x = min(x, -dual_clip
//   A)
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status PpoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("clip_low"), high = o.Number("clip_high"), dual = o.Number("dual_clip"),
             cap = o.Number("ratio_cap");
  const auto clamp = o.Number("log_ratio_clamp");
  out.clipped.assign(cells.mask.size(), 0);
  out.dual_clipped.assign(cells.mask.size(), 0);
  out.kl.assign(cells.mask.size(), 0.0);
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double a = b.advantages[t], full = b.logp[t] - b.old_logp[t];
    const double l = clamp ? std::clamp(full, -*clamp, *clamp) : full, rho = std::exp(l);
    const bool capped = cap.has_value() && rho > *cap;
    const double free = Times(-a, capped ? *cap : rho), bounded = Times(-a, ClipRatio(rho, low, high));
    out.value[t] = std::max(free, bounded);
    // Where the clipped branch wins, or the cap or the clamp holds, the derivative is that of a constant.
    out.slope[t] = bounded > free || capped || l != full ? 0 : free;
    out.clipped[t] = bounded > Times(-a, rho) ? 1 : 0;
    out.kl[t] = -l;
    if (std::isnan(free)) out.value[t] = out.slope[t] = free;
    if (dual && a < 0 && out.value[t] > -*dual * a) {
      out.value[t] = -*dual * a;
      out.slope[t] = 0;
      out.dual_clipped[t] = 1;
    }
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, ppo) {
  return {.paper = "Proximal policy optimization, arXiv:1707.06347",
          .formula = "max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)), rho = exp(lp - old)",
          .options = {ClipLow(0.2),
                      ClipHigh(0.2),
                      {.name = "dual_clip",
                       .lo = 0,
                       .doc = "where A < 0, x is at most -dual_clip A (arXiv:1912.09729; verl 3)"},
                      {.name = "ratio_cap",
                       .lo = 0,
                       .doc = "the ratio of the unclipped branch is at most this (arXiv:2505.07291)"},
                      LogRatioClamp(20.0)},
          .needs = {Column::kAdvantages, Column::kOld},
          .terms = PpoTerms};
}

TP_PLUGIN(Algorithm, tis) {
  return {.paper = "truncated importance sampling, verl and slime",
          .doc = "GRPO with a truncated weight for the sampler/trainer gap",
          .advantage = {"grpo"},
          .loss = {"ppo"},
          .rules = {.correction = "tis"}};
}

TP_PLUGIN(Algorithm, icepop) {
  return {.paper = "IcePop, arXiv:2601.02780",
          .doc = "GRPO that drops tokens with a large sampler/trainer gap",
          .advantage = {"grpo"},
          .loss = {"ppo"},
          .rules = {.correction = "icepop"}};
}

}  // namespace tidepool::algorithms
