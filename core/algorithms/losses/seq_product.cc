// RLOO as in TRL (arXiv:2402.14740): PPO's clip on the ratio of whole sequences; a value per row.
//   x_i = max(-A_i r, -A_i clip(r, 1 - clip_low, 1 + clip_high)),  r = exp(sum_t m (lp - old)),  A_i: the
//   row's mean of A
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status SeqProductTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("clip_low"), high = o.Number("clip_high");
  std::vector<double> l(cells.mask.size());
  for (size_t t = 0; t < l.size(); ++t) l[t] = b.logp[t] - b.old_logp[t];
  const std::vector<double> sums = RowSums(l, cells), means = RowMeans(b.advantages, cells);
  for (size_t i = 0; i < sums.size(); ++i) {
    const double r = std::exp(sums[i]);
    const double free = Times(-means[i], r), bounded = Times(-means[i], ClipRatio(r, low, high));
    const auto n = static_cast<double>(cells.Tokens(static_cast<int64_t>(i)));
    for (const size_t t : cells.Valid(i)) {
      out.value[t] = bounded > free ? bounded : free;
      out.slope[t] = bounded > free ? 0 : n * free;
    }
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, seq_product) {
  return {.paper = "Back to basics (RLOO), arXiv:2402.14740, as in TRL",
          .formula = "max(-A_i r, -A_i clip(r)), r = exp(sum_t(lp - old))",
          .options = {ClipLow(0.2), ClipHigh(0.2)},
          .needs = {Column::kAdvantages, Column::kOld},
          .aggregation = "seq-mean",
          .row_value = true,
          .extras = false,
          .whole_rows = true,
          .terms = SeqProductTerms};
}

TP_PLUGIN(Algorithm, rloo_clip) {
  return {.paper = "Back to basics, arXiv:2402.14740, as in TRL",
          .doc = "leave-one-out baseline, clip on the ratio of whole sequences",
          .advantage = {"rloo"},
          .loss = {"seq_product"}};
}

}  // namespace tidepool::algorithms
