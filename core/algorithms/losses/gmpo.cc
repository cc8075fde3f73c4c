// GMPO (arXiv:2507.20673): geometric mean of clipped token ratios; a value per row.
//   x_i = -A_i exp(mean_t z_t),  A_i: the row's mean of A,  l = lp - old
//   z: l clipped to [-clip_log_low, clip_log_high] where that is the pessimistic side:
//      A > 0: min(l, clip(l)),  A < 0: max(l, clip(l)),  A = 0: l
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

Status GmpoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("clip_log_low"), high = o.Number("clip_log_high");
  std::vector<double> z(cells.mask.size(), 0.0);
  std::vector<uint8_t> held(z.size(), 0);
  for (size_t t = 0; t < z.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double l = b.logp[t] - b.old_logp[t];
    z[t] = l;
    if (b.advantages[t] > 0 && high.has_value() && l > *high) z[t] = *high, held[t] = 1;
    if (b.advantages[t] < 0 && low.has_value() && l < -*low) z[t] = -*low, held[t] = 1;
  }
  const std::vector<double> log_ratio = Spread(RowMeans(z, cells), cells),
                            advantage = Spread(RowMeans(b.advantages, cells), cells);
  for (size_t t = 0; t < z.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    out.value[t] = Times(-advantage[t], std::exp(log_ratio[t]));
    out.slope[t] = held[t] != 0 ? 0 : out.value[t];
  }
  return OkStatus();
}

}  // namespace

TP_PLUGIN(Loss, gmpo) {
  return {.paper = "Geometric-mean policy optimization, arXiv:2507.20673",
          .formula = "-A_i exp(mean_t z_t), z = A > 0 ? min(l, clip(l)) : max(l, clip(l)), l = lp - old",
          .options = {{.name = "clip_log_low", .fallback = 0.4, .lo = 0, .doc = "l is clipped below - this"},
                      {.name = "clip_log_high", .fallback = 0.4, .lo = 0, .doc = "l is clipped above this"}},
          .needs = {Column::kAdvantages, Column::kOld},
          .aggregation = "seq-mean",
          .row_value = true,
          .extras = false,
          .whole_rows = true,
          .terms = GmpoTerms};
}

TP_PLUGIN(Algorithm, gmpo) {
  return {.paper = "Geometric-mean policy optimization, arXiv:2507.20673",
          .doc = "geometric mean of clipped ratios",
          .advantage = {"grpo"},
          .loss = {"gmpo"}};
}

}  // namespace tidepool::algorithms
