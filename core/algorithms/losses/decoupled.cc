// Decoupled PPO (arXiv:2110.00641; AReaL, arXiv:2505.24298): the ratio is to a proximal policy, and a
// detached weight leads from the sampler to it.
//   x = w max(-A rho', -A clip(rho')), rho' = exp(lp - prox), w = sg(exp(prox - beh)), capped or rejected;
//   the dual clip applies before w. prox loglinear: prox = beh + a_t sg(lp - beh)
//   (core/algorithms/staleness.h).
#include "core/algorithms/registry.h"
#include "core/algorithms/staleness.h"

namespace tidepool::algorithms {
namespace {

bool HasBehave(const Options& o) {
  return !o.Text("behave.level").empty() || !o.Text("behave.metric").empty() ||
         !o.Text("behave.action").empty();
}

// The proximal log-probs of the batch, by the options.
StatusOr<std::vector<double>> Proximal(const Options& o, const Cells& cells, const PolicyBatch& b) {
  if (o.Text("prox").empty()) return std::vector<double>(b.prox_logp.begin(), b.prox_logp.end());
  const auto version = o.Number("current_version");
  if (!version || b.versions.size() != cells.mask.size() || b.behave_logp.size() != cells.mask.size()) {
    return InvalidArgument("decoupled: prox loglinear needs current_version, versions and behave_logp");
  }
  std::vector<double> prox(cells.mask.size(), 0.0);
  for (size_t t = 0; t < prox.size(); ++t) {
    if (cells.mask[t] != 0)
      prox[t] = LogLinearProximal(b.behave_logp[t], b.logp[t],
                                  ProximalShare(static_cast<int64_t>(*version), b.versions[t]));
  }
  return prox;
}

StatusOr<BehaveResult> Behave(const Options& o, const Cells& cells, const PolicyBatch& b,
                              std::span<const double> prox) {
  if (b.behave_logp.size() != cells.mask.size())
    return InvalidArgument("decoupled: behave needs behave_logp");
  TP_ASSIGN_OR_RETURN(const BehaveOptions behave,
                      ParseBehave(o.Text("behave.level", "token"), o.Text("behave.action", "mask"),
                                  o.Text("behave.metric", "ratio"), o.Text("behave.agg", "mean"),
                                  o.Number("behave.lower"), o.Number("behave.upper")));
  return BehaviourWeights(behave, prox, b.behave_logp, cells);
}

Status DecoupledTerms(const Options& o, const Cells& cells, const PolicyBatch& b, LossTerms& out) {
  TP_ASSIGN_OR_RETURN(const std::vector<double> prox, Proximal(o, cells, b));
  if (prox.size() != cells.mask.size()) return InvalidArgument("decoupled: prox_logp is missing");
  BehaveResult behave;
  behave.weights.assign(cells.mask.size(), 1.0);
  if (HasBehave(o)) {
    TP_ASSIGN_OR_RETURN(behave, Behave(o, cells, b, prox));
  }
  // PPO against the proximal policy.
  std::map<std::string, Value> values;
  for (const char* name : {"clip_low", "clip_high", "dual_clip"}) {
    if (const auto v = o.Number(name)) values[name] = *v;
  }
  const LossEntry& ppo = *FindLoss("ppo");
  TP_ASSIGN_OR_RETURN(const Options clip, Options::Make(ppo.options, values, /*fill=*/false));
  PolicyBatch against = b;
  against.old_logp = prox;
  TP_RETURN_IF_ERROR(ppo.terms(clip, cells, against, out));
  for (size_t t = 0; t < out.value.size(); ++t) {
    out.value[t] = Times(behave.weights[t], out.value[t]);
    out.slope[t] = Times(behave.weights[t], out.slope[t]);
  }
  return OkStatus();
}

}  // namespace

StatusOr<std::optional<double>> TokensAfterRejection(const PolicyLossSpec& spec, const Cells& cells,
                                                     const PolicyBatch& b) {
  if (spec.loss->name != "decoupled" || spec.options.Text("denominator") != "mask_after_rejection")
    return std::optional<double>();
  double kept = static_cast<double>(cells.Tokens());
  if (HasBehave(spec.options)) {
    PolicyBatch clean = b;
    const std::vector<double> logp = Masked(b.logp, cells), behave_logp = b.behave_logp.empty()
                                                                              ? std::vector<double>()
                                                                              : Masked(b.behave_logp, cells);
    clean.logp = logp;
    clean.behave_logp = behave_logp;
    const std::span<const double> given = b.prox_logp.empty() ? b.old_logp : b.prox_logp;
    const std::vector<double> prox_in = given.empty() ? std::vector<double>() : Masked(given, cells);
    clean.prox_logp = prox_in;
    TP_ASSIGN_OR_RETURN(const std::vector<double> prox, Proximal(spec.options, cells, clean));
    if (prox.size() != cells.mask.size()) return InvalidArgument("decoupled: prox_logp is missing");
    TP_ASSIGN_OR_RETURN(const BehaveResult behave, Behave(spec.options, cells, clean, prox));
    kept = static_cast<double>(std::ranges::count(behave.mask, 1));
  }
  return std::optional<double>(std::max(1.0, kept));
}

TP_PLUGIN(Loss, decoupled) {
  return {
      .paper = "Batch size-invariance for policy optimization, arXiv:2110.00641; AReaL, arXiv:2505.24298",
      .formula = "w max(-A rho', -A clip(rho')), rho' = exp(lp - prox), w = sg(exp(prox - beh))",
      .options = {ClipLow(0.2),
                  ClipHigh(0.2),
                  {.name = "dual_clip", .lo = 0, .doc = "where A < 0, x is at most -dual_clip A, before w"},
                  Choice("prox", {}, {"loglinear"}, "how the proximal log-probs are made; null: recomputed"),
                  {.name = "current_version", .doc = "of the weights that are trained, for loglinear"},
                  Choice("behave.level", "token", {"token", "sequence"}, "of the weight's bound"),
                  Choice("behave.action", "mask", {"mask", "clamp"}, "what happens outside"),
                  Choice("behave.metric", "ratio", {"ratio", "kl_k1", "kl_k2", "kl_k3"}, "what is bounded"),
                  Choice("behave.agg", "mean", {"mean", "sum", "max"}, "over the row, at level sequence"),
                  {.name = "behave.upper", .fallback = 5.0, .doc = "upper bound of the metric"},
                  {.name = "behave.lower", .doc = "lower bound of the metric"},
                  Choice("denominator", "mask_before_rejection",
                         {"mask_before_rejection", "mask_after_rejection"}, "tokens that the mean is over")},
      .needs = {Column::kAdvantages, Column::kProximal},
      .extras = false,
      .whole_rows = true,
      .terms = DecoupledTerms};
}

TP_PLUGIN(Algorithm, decoupled_ppo) {
  return {
      .paper = "AReaL, arXiv:2505.24298",
      .doc =
          "ratio to the proximal policy, weight from the sampler to it; for scheduler.max_lag_versions of "
          "1 or more",
      .advantage = {"grpo"},
      .loss = {"decoupled"}};
}

}  // namespace tidepool::algorithms
