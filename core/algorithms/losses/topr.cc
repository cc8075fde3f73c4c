// TOPR (tapered off-policy REINFORCE, arXiv:2503.14286).
//   x = -w A lp,  w = w_pos for positive rows, else w_neg sg(clip(r, 0, 1)),  r = exp(sum_t m (lp - old)) or
//   the token's ratio
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status ToprTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const bool by_token = o.Text("level", "sequence") == "token",
             with_zero = o.Text("positive", "score>=0") == "score>=0";
  std::vector<double> l(cells.mask.size());
  for (size_t t = 0; t < l.size(); ++t) l[t] = b.logp[t] - b.old_logp[t];
  const std::vector<double> log_ratio =
      GapLogWeights(by_token ? GapLevel::kToken : GapLevel::kSequence, l, cells);
  for (size_t i = 0; i + 1 < cells.begin.size(); ++i) {
    const bool positive = with_zero ? b.scores[i] >= 0 : b.scores[i] > 0;
    for (const size_t t : cells.Valid(i)) {
      const double w = positive ? o.Number("w_pos", 1)
                                : o.Number("w_neg", 1) * std::clamp(std::exp(log_ratio[t]), 0.0, 1.0);
      out.slope[t] = -w * b.advantages[t];
      out.value[t] = Times(out.slope[t], b.logp[t]);
    }
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, topr) {
  return {.paper = "Tapered off-policy REINFORCE, arXiv:2503.14286",
          .formula = "-w A lp, w = w_pos for positive rows, else w_neg sg(clip(exp(sum_t(lp - old)), 0, 1))",
          .options = {Choice("level", "sequence", {"sequence", "token"}, "of the ratio (ROLL: token)"),
                      Choice("positive", "score>=0", {"score>=0", "score>0"}, "rows that count as positive"),
                      {.name = "w_pos", .fallback = 1.0, .doc = "weight of positive rows"},
                      {.name = "w_neg", .fallback = 1.0, .doc = "factor on the tapered ratio of the others"}},
          .needs = {Column::kAdvantages, Column::kOld, Column::kScores},
          .aggregation = "seq-mean-token-sum",
          .whole_rows = true,
          .terms = ToprTerms};
}

TP_PLUGIN(Algorithm, topr) {
  return {.paper = "Tapered off-policy REINFORCE, arXiv:2503.14286",
          .doc = "wrong answers weigh at most their ratio",
          .advantage = {"grpo"},
          .loss = {"topr"}};
}

}  // namespace tidepool::algorithms
