// GSPO (Zheng et al., arXiv:2507.18071): PPO's clip on the ratio of the whole sequence, per token.
//   s_i = exp(sum_t m (lp - old)/n_i),  s_it = sg(s_i) exp(lp - sg(lp)),  x = max(-A s, -A clip(s))
// log s_it is bounded above by log_ratio_clamp_max (verl: 10). Meant for aggregation seq-mean-token-mean;
// with seq-mean-token-sum it is LUSPO (arXiv:2602.05261).
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status GspoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("clip_low"), high = o.Number("clip_high"), most = o.Number("log_ratio_clamp_max");
  out.clipped.assign(cells.mask.size(), 0);
  std::vector<double> l(cells.mask.size());
  for (size_t t = 0; t < l.size(); ++t) l[t] = b.logp[t] - b.old_logp[t];
  const std::vector<double> log_s = Spread(RowMeans(l, cells), cells);
  for (size_t t = 0; t < l.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const bool held = most.has_value() && log_s[t] > *most;
    const double s = std::exp(held ? *most : log_s[t]);
    const double free = Times(-b.advantages[t], s),
                 bounded = Times(-b.advantages[t], ClipRatio(s, low, high));
    out.clipped[t] = bounded > free ? 1 : 0;
    out.value[t] = bounded > free ? bounded : free;
    out.slope[t] = bounded > free || held ? 0 : free;
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, gspo) {
  return {.paper = "Group sequence policy optimization, arXiv:2507.18071",
          .formula = "max(-A s, -A clip(s)), s_it = sg(s_i) exp(lp - sg(lp)), s_i = exp(mean_t(lp - old))",
          .options = {ClipLow(3e-4),
                      ClipHigh(4e-4),
                      {.name = "log_ratio_clamp_max", .fallback = 10.0, .doc = "upper bound on log s"}},
          .needs = {Column::kAdvantages, Column::kOld},
          .aggregation = "seq-mean-token-mean",
          .whole_rows = true,
          .terms = GspoTerms};
}

TP_PLUGIN(Algorithm, gspo) {
  return {.paper = "Group sequence policy optimization, arXiv:2507.18071",
          .doc = "clip on the ratio of the sequence",
          .advantage = {"grpo"},
          .loss = {"gspo"}};
}

TP_PLUGIN(Algorithm, luspo) {
  return {.paper = "LUSPO, arXiv:2602.05261",
          .doc = "GSPO with sums over tokens",
          .advantage = {"grpo"},
          .loss = {"gspo"},
          .rules = {.aggregation = "seq-mean-token-sum"}};
}

}  // namespace tidepool::algorithms
