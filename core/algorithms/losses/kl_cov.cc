// KL-Cov (arXiv:2505.22617): a KL penalty on the few tokens whose log-prob and advantage go together most.
//   x = -A rho + coef |l| 1[top],  top: the max(1, floor(ratio N)) valid tokens of the whole batch with the
//   largest (A - <A>)(lp - <lp>)

#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status KlCovTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  if (b.selected.size() != cells.mask.size())
    return InvalidArgument("kl_cov: tokens have to be selected over the whole batch first");
  const double coef = o.Number("coef", 0);
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double l = b.logp[t] - b.old_logp[t];
    out.value[t] = out.slope[t] = Times(-b.advantages[t], std::exp(l));
    if (b.selected[t] == 0) continue;
    out.value[t] += coef * std::fabs(l);
    out.slope[t] += coef * (l > 0 ? 1 : l < 0 ? -1 : 0);
  }
  return OkStatus();
}

}  // namespace

std::vector<uint8_t> SelectTokens(const PolicyLossSpec& spec, const Cells& cells, const PolicyBatch& b) {
  std::vector<uint8_t> selected(cells.mask.size(), 0);
  if (spec.loss->name != "kl_cov") return selected;
  const double mean_a = TokenMean(b.advantages, cells), mean_lp = TokenMean(b.logp, cells);
  std::vector<size_t> order;
  for (size_t t = 0; t < selected.size(); ++t) {
    if (cells.mask[t] != 0) order.push_back(t);
  }
  if (order.empty()) return selected;
  const double share = std::floor(spec.options.Number("ratio", 0) * static_cast<double>(order.size()));
  const auto count = static_cast<size_t>(std::clamp(share, 1.0, static_cast<double>(order.size())));
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](size_t t) { return (b.advantages[t] - mean_a) * (b.logp[t] - mean_lp); });
  for (size_t k = 0; k < count; ++k) selected[order[k]] = 1;
  return selected;
}

TP_PLUGIN(Loss, kl_cov) {
  return {.paper = "The entropy mechanism of RL for reasoning language models, arXiv:2505.22617",
          .formula = "-A rho + coef |lp - old| 1[top share by (A - <A>)(lp - <lp>)]",
          .options =
              {{.name = "ratio",
                .fallback = 2e-4,
                .lo = 0,
                .hi = 1,
                .doc = "share of tokens that are penalised",
                .required = true},
               {.name = "coef", .fallback = 0.1, .lo = 0, .doc = "weight of the penalty", .required = true}},
          .needs = {Column::kAdvantages, Column::kOld},
          .whole_batch = true,
          .terms = KlCovTerms};
}

TP_PLUGIN(Algorithm, kl_cov) {
  return {.paper = "The entropy mechanism of RL, arXiv:2505.22617",
          .doc = "a KL penalty on the tokens that lose entropy",
          .advantage = {"grpo"},
          .loss = {"kl_cov"}};
}

}  // namespace tidepool::algorithms
