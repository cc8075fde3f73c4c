// VESPO (arXiv:2602.10693): a detached gamma-shaped weight of the sequence ratio.
//   x = -sg(exp(la + k log W - la W)) A lp,  W = exp(sum_t m l);  k, la by the sign of A
// each l clamped to +-20, log W to [log 1e-8, 20].
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status VespoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  std::vector<double> l(cells.mask.size());
  for (size_t t = 0; t < l.size(); ++t) l[t] = std::clamp(b.logp[t] - b.old_logp[t], -20.0, 20.0);
  const std::vector<double> sums = Spread(RowSums(l, cells), cells);
  for (size_t t = 0; t < l.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const bool positive = b.advantages[t] >= 0;
    const double k = positive ? o.Number("k_pos", 0) : o.Number("k_neg", 0);
    const double la = positive ? o.Number("lambda_pos", 0) : o.Number("lambda_neg", 0);
    const double log_w = std::clamp(sums[t], std::log(1e-8), 20.0);
    out.slope[t] = Times(-b.advantages[t], std::exp(la + k * log_w - la * std::exp(log_w)));
    out.value[t] = Times(out.slope[t], b.logp[t]);
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, vespo) {
  return {.paper = "VESPO, arXiv:2602.10693",
          .formula = "-sg(exp(la + k log W - la W)) A lp, W = exp(sum_t(lp - old))",
          .options = {{.name = "k_pos", .fallback = 2.0, .doc = "k where A >= 0", .required = true},
                      {.name = "lambda_pos", .fallback = 3.0, .doc = "la where A >= 0", .required = true},
                      {.name = "k_neg", .fallback = 3.0, .doc = "k where A < 0", .required = true},
                      {.name = "lambda_neg", .fallback = 2.0, .doc = "la where A < 0", .required = true}},
          .needs = {Column::kAdvantages, Column::kOld},
          .whole_rows = true,
          .terms = VespoTerms};
}

TP_PLUGIN(Algorithm, vespo) {
  return {.paper = "VESPO, arXiv:2602.10693",
          .doc = "gamma-shaped weight of the sequence ratio",
          .advantage = {"grpo"},
          .loss = {"vespo"}};
}

}  // namespace tidepool::algorithms
