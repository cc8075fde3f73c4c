// Trust-region losses on probabilities rather than ratios, against the sampler (DPPO, arXiv:2602.04879; the
// forms of prime-rl). With d = lp - beh, p = e^lp, p_beh = e^beh; dropped tokens keep the quadratic term:
//   dppo    x = -keep adv_tau A e^d + kl_tau d^2;
//           dropped where A > 0 and p - p_beh > mask_high, or A <= 0 and p - p_beh < -mask_low
//   ipo_tr  the same with keep = |p - p_beh| <= threshold
//   ref_kl  the same with keep = p - p_beh >= -mask_low, and sg(ref - lp) in place of adv_tau A
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {
namespace {

// x of one token with the factor (adv_tau A, or what stands for it) and whether it is kept.
void Put(const PolicyBatch& b, size_t t, double factor, bool keep, double kl_tau, LossTerms& out) {
  const double d = b.logp[t] - b.behave_logp[t];
  const double pull = keep ? Times(-factor, std::exp(d)) : 0;
  out.value[t] = pull + kl_tau * d * d;
  out.slope[t] = pull + 2 * kl_tau * d;
}
double Shift(const PolicyBatch& b, size_t t) { return std::exp(b.logp[t]) - std::exp(b.behave_logp[t]); }

Status DppoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("mask_low"), high = o.Number("mask_high");
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const double shift = Shift(b, t);
    const bool drop =
        b.advantages[t] > 0 ? high.has_value() && shift > *high : low.has_value() && shift < -*low;
    Put(b, t, o.Number("adv_tau", 1) * b.advantages[t], !drop, o.Number("kl_tau", 0), out);
  }
  return OkStatus();
}

Status IpoTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto threshold = o.Number("threshold");
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    const bool keep = !threshold.has_value() || std::fabs(Shift(b, t)) <= *threshold;
    Put(b, t, o.Number("adv_tau", 1) * b.advantages[t], keep, o.Number("kl_tau", 0), out);
  }
  return OkStatus();
}

Status ReferenceKlTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  const auto low = o.Number("mask_low");
  for (size_t t = 0; t < cells.mask.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    Put(b, t, b.ref_logp[t] - b.logp[t], !low.has_value() || Shift(b, t) >= -*low, o.Number("kl_tau", 0),
        out);
  }
  return OkStatus();
}

OptionSpec AdvTau() { return {.name = "adv_tau", .fallback = 1.0, .doc = "factor on A"}; }
OptionSpec KlTau() { return {.name = "kl_tau", .fallback = 1e-3, .doc = "weight of (lp - beh)^2"}; }

}  // namespace

TP_PLUGIN(Loss, dppo) {
  return {
      .paper = "DPPO, arXiv:2602.04879",
      .formula = "-1[keep] adv_tau A exp(lp - beh) + kl_tau (lp - beh)^2",
      .options =
          {{.name = "mask_low", .fallback = 0.2, .lo = 0, .doc = "A <= 0: dropped where p - p_beh < - this"},
           {.name = "mask_high", .fallback = 0.2, .lo = 0, .doc = "A > 0: dropped where p - p_beh > this"},
           AdvTau(),
           KlTau()},
      .needs = {Column::kAdvantages, Column::kBehaviour},
      .terms = DppoTerms};
}

TP_PLUGIN(Loss, ipo_tr) {
  return {
      .paper = "trust region on probabilities, as in prime-rl",
      .formula = "-1[|p - p_beh| <= threshold] adv_tau A exp(lp - beh) + kl_tau (lp - beh)^2",
      .options = {{.name = "threshold", .fallback = 0.2, .lo = 0, .doc = "largest |p - p_beh| that is kept"},
                  AdvTau(),
                  KlTau()},
      .needs = {Column::kAdvantages, Column::kBehaviour},
      .terms = IpoTerms};
}

TP_PLUGIN(Loss, ref_kl) {
  return {
      .paper = "KL to a reference as the advantage, as in prime-rl",
      .formula = "-1[p - p_beh >= -mask_low] sg(ref - lp) exp(lp - beh) + kl_tau (lp - beh)^2",
      .options = {{.name = "mask_low", .fallback = 0.2, .lo = 0, .doc = "dropped where p - p_beh < - this"},
                  KlTau()},
      .needs = {Column::kBehaviour, Column::kReference},
      .terms = ReferenceKlTerms};
}

TP_PLUGIN(Algorithm, dppo) {
  return {.paper = "DPPO, arXiv:2602.04879",
          .doc = "trust region on probabilities, against the sampler",
          .advantage = {"grpo", {{"scale", "none"}}},
          .loss = {"dppo"}};
}

}  // namespace tidepool::algorithms
