#include "core/algorithms/policy_loss.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "core/algorithms/losses/losses.h"
#include "core/base/limited_call.h"
#include "core/base/plugin_label.h"

namespace tidepool::algorithms {
namespace {

Status CheckColumn(const char* name, size_t found, size_t cells, bool needed) {
  if (found == cells || (found == 0 && !needed)) return OkStatus();
  if (found == 0) return InvalidArgument(std::string(name) + " is missing");
  return InvalidArgument(std::string(name) + " has " + std::to_string(found) + " values for " +
                         std::to_string(cells) + " cells");
}

}  // namespace

std::vector<uint8_t> OffPolicySequenceMask(std::span<const double> logp, std::span<const double> before,
                                           std::span<const double> advantages, double delta,
                                           const Cells& cells) {
  std::vector<double> gap(cells.mask.size(), 0.0);
  for (size_t t = 0; t < gap.size(); ++t) {
    if (cells.mask[t] != 0) gap[t] = before[t] - logp[t];
  }
  const std::vector<double> drift = Spread(RowMeans(gap, cells), cells);
  std::vector<uint8_t> mask(gap.size(), 0);
  for (size_t t = 0; t < gap.size(); ++t)
    mask[t] = cells.mask[t] != 0 && !(advantages[t] < 0 && drift[t] > delta) ? 1 : 0;
  return mask;
}

std::vector<double> RolloutIsWeights(RolloutIsForm form, std::optional<double> low,
                                     std::optional<double> high, std::span<const double> old_logp,
                                     std::span<const double> behave_logp, const Cells& cells) {
  std::vector<double> log_w(cells.mask.size(), 0.0), w(cells.mask.size(), 0.0);
  for (size_t t = 0; t < w.size(); ++t) {
    if (cells.mask[t] != 0) log_w[t] = old_logp[t] - behave_logp[t];
  }
  const std::vector<double> row = Spread(RowMeans(log_w, cells), cells);
  const bool of_rows = form == RolloutIsForm::kSequenceTis || form == RolloutIsForm::kSequenceMask;
  const std::vector<double> product = of_rows ? Spread(RowSums(log_w, cells), cells) : std::vector<double>();
  const auto within = [&](double x) {
    return (!low.has_value() || x >= *low) && (!high.has_value() || x <= *high);
  };
  for (size_t t = 0; t < w.size(); ++t) {
    if (cells.mask[t] == 0) continue;
    w[t] = std::exp(log_w[t]);
    if (of_rows) w[t] = std::exp(std::clamp(product[t], -20.0, 20.0));
    switch (form) {
      case RolloutIsForm::kRaw:
        break;
      case RolloutIsForm::kTis:
      case RolloutIsForm::kSequenceTis:
        if (low.has_value() && w[t] < *low) w[t] = *low;
        if (high.has_value() && w[t] > *high) w[t] = *high;
        break;
      case RolloutIsForm::kIcePop:
      case RolloutIsForm::kSequenceMask:
        w[t] = within(w[t]) ? w[t] : 0;
        break;
      case RolloutIsForm::kSequenceMaskTis:
        w[t] = within(std::exp(row[t])) ? w[t] : 0;
        break;
    }
  }
  return w;
}

bool NeedsWholeRows(const PolicyLossSpec& spec) {
  const bool of_rows = spec.rollout_is == RolloutIsForm::kSequenceMaskTis ||
                       spec.rollout_is == RolloutIsForm::kSequenceTis ||
                       spec.rollout_is == RolloutIsForm::kSequenceMask;
  return spec.loss->whole_rows || spec.opsm_delta.has_value() || of_rows;
}

StatusOr<PolicyLossResult> PolicyLoss(const PolicyLossSpec& spec, const Cells& cells,
                                      const PolicyBatch& given, std::span<const double> weights) {
  const LossEntry& entry = *spec.loss;
  const size_t n = cells.mask.size();
  const auto needs = [&](Column c) { return std::ranges::count(entry.needs, c) > 0; };
  const bool against_beh = (spec.rollout_is.has_value() && given.rollout_logp.empty()) ||
                           (spec.opsm_delta.has_value() && given.opsm_logp.empty());
  const bool with_old =
      needs(Column::kOld) || spec.rollout_is.has_value() || (spec.kl_beta.has_value() && spec.kl_is_weighted);
  TP_RETURN_IF_ERROR(CheckColumn("weights", weights.size(), n, true));
  TP_RETURN_IF_ERROR(CheckColumn("versions", given.versions.size(), n, needs(Column::kVersions)));
  TP_RETURN_IF_ERROR(
      CheckColumn("scores", given.scores.size(), static_cast<size_t>(cells.rows()), needs(Column::kScores)));
  PolicyBatch b = given;
  struct Numbers {
    std::span<const double>& values;
    const char* name;
    bool needed;
  };
  const Numbers columns[] = {
      {b.logp, "logp", true},
      {b.advantages, "advantages", needs(Column::kAdvantages) || spec.opsm_delta.has_value()},
      {b.old_logp, "old_logp", with_old},
      {b.prox_logp, "prox_logp", false},
      {b.behave_logp, "behave_logp (or rollout_logp)", needs(Column::kBehaviour) || against_beh},
      {b.rollout_logp, "rollout_logp", false},
      {b.opsm_logp, "opsm_logp", false},
      {b.ref_logp, "ref_logp", needs(Column::kReference) || spec.kl_beta.has_value()},
      {b.entropy, "entropy", spec.entropy_coef != 0},
      {b.is_weights, "is_weights", false}};
  // Inputs are cleaned before any arithmetic (cells.h).
  std::vector<std::vector<double>> clean;
  clean.reserve(std::size(columns));
  for (const auto& [values, name, needed] : columns) {
    TP_RETURN_IF_ERROR(CheckColumn(name, values.size(), n, needed));
    if (!values.empty()) values = clean.emplace_back(Masked(values, cells));
  }
  if (b.prox_logp.empty()) b.prox_logp = b.old_logp;
  if (b.rollout_logp.empty()) b.rollout_logp = b.behave_logp;
  if (b.opsm_logp.empty()) b.opsm_logp = b.behave_logp;

  PolicyLossResult out;
  LossTerms& x = out.terms;
  x.value.assign(n, 0.0);
  x.slope.assign(n, 0.0);
  TP_RETURN_IF_ERROR(LimitedCall({.what = PluginLabel("loss", LossPlugins(), entry.name),
                                  .on = "a micro-batch of " + std::to_string(cells.rows()) + " rows"})
                         .Run(StatusCode::kInternal, [&] { return entry.terms(spec.options, cells, b, x); }));

  std::vector<double> factor(n, 1.0);
  if (spec.opsm_delta.has_value()) {
    const auto keep = OffPolicySequenceMask(b.logp, b.opsm_logp, b.advantages, *spec.opsm_delta, cells);
    for (size_t t = 0; t < n; ++t) factor[t] = keep[t];
  }
  if (spec.rollout_is.has_value()) {
    const auto w = RolloutIsWeights(*spec.rollout_is, spec.rollout_is_low, spec.rollout_is_high, b.old_logp,
                                    b.rollout_logp, cells);
    for (size_t t = 0; t < n; ++t) factor[t] *= w[t];
    out.is_weights = RolloutIsWeights(RolloutIsForm::kRaw, {}, {}, b.old_logp, b.rollout_logp, cells);
  }
  for (size_t t = 0; t < b.is_weights.size(); ++t) factor[t] *= b.is_weights[t];

  out.grad_logp.assign(n, 0.0);
  if (spec.entropy_coef != 0) out.grad_entropy.assign(n, 0.0);
  for (size_t t = 0; t < n; ++t) {
    if (cells.mask[t] == 0) continue;
    out.policy_term += weights[t] * Times(factor[t], x.value[t]);
    out.grad_logp[t] = weights[t] * Times(factor[t], x.slope[t]);
    if (spec.entropy_coef != 0) {
      out.entropy_term += weights[t] * b.entropy[t];
      out.grad_entropy[t] = -weights[t] * spec.entropy_coef;
    }
    if (spec.kl_beta.has_value()) {
      KlToken k = KlEstimate(spec.kl, b.logp[t], b.ref_logp[t]);
      if (spec.kl_is_weighted) {
        const double rho = std::exp(b.logp[t] - b.old_logp[t]);
        k = {k.value * rho, (k.slope + k.value) * rho};
      }
      out.kl_term += weights[t] * k.value;
      out.grad_logp[t] += weights[t] * *spec.kl_beta * k.slope;
    }
  }
  out.loss = out.policy_term;
  if (spec.entropy_coef != 0) out.loss -= spec.entropy_coef * out.entropy_term;
  if (spec.kl_beta.has_value()) out.loss += *spec.kl_beta * out.kl_term;
  return out;
}

}  // namespace tidepool::algorithms
