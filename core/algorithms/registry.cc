#include "core/algorithms/registry.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/group_condition.h"
#include "core/base/names.h"

namespace tidepool::algorithms {
namespace {

std::string Names(const auto& entries) {
  return Listed(entries, [](const auto& e) -> const std::string& { return e.name; });
}

Status Wrong(const std::string& key, const std::string& what) {
  return InvalidArgument("algorithm." + key + ": " + what);
}

struct Parts {
  const AlgorithmEntry* preset = nullptr;
  const AdvantageEntry* advantage = nullptr;
  const LossEntry* loss = nullptr;
};
StatusOr<Parts> PartsOf(const AlgorithmConfig& c) {
  Parts p;
  p.preset = FindAlgorithm(c.name);
  if (p.preset == nullptr) return Wrong("name", "found '" + c.name + "'; there are " + Names(Algorithms()));
  if (!p.preset->off_policy.empty())
    return Wrong("name", "is " + c.name +
                             ", which trains policies of control tasks from a replay store, and this job has "
                             "none; write model: {policy: mlp}, or take another one");
  const std::string advantage = c.advantage.empty() ? p.preset->advantage.name : c.advantage;
  p.advantage = FindAdvantage(advantage);
  if (p.advantage == nullptr)
    return Wrong("advantage", "found '" + advantage + "'; there are " + Names(AdvantageEstimators()));
  const std::string loss = c.loss.empty() ? p.preset->loss.name : c.loss;
  p.loss = FindLoss(loss);
  if (p.loss == nullptr) return Wrong("loss", "found '" + loss + "'; there are " + Names(PolicyLosses()));
  return p;
}

// Checks one part's options and gives the first wrong one its key.
StatusOr<Options> Checked(const std::string& prefix, const std::string& part,
                          std::span<const OptionSpec> specs, const std::map<std::string, Value>& values) {
  for (const auto& [name, value] : values) {
    std::map<std::string, Value> one = {{name, value}};
    std::vector<OptionSpec> optional(specs.begin(), specs.end());
    for (OptionSpec& s : optional) s.required = false;
    if (const auto checked = Options::Make(optional, one, false); !checked.ok()) {
      return Wrong(prefix + name, part + ": " + checked.status().message());
    }
  }
  auto options = Options::Make(specs, values, /*fill=*/true);
  if (!options.ok()) return Wrong("loss", part + ": " + options.status().message());
  return options;
}

Status ResolveKl(const AlgorithmConfig& c, const LossEntry& loss, ResolvedAlgorithm& out) {
  const KlConfig& k = c.kl;
  if (k.coef == 0) {
    if (k.target)
      return Wrong(
          "kl.coef",
          "is 0, and kl.target moves a coefficient by factors, so it would stay 0; write one above 0");
    return OkStatus();
  }
  KlControl kl{
      .coef = k.coef, .in_reward = k.place == KlPlace::kReward, .target = k.target, .horizon = k.horizon};
  kl.estimate = {.kind = k.estimator,
                 .clamp_log = k.clamp_log,
                 .score_term = k.score_term,
                 .clamp_out = k.clamp_out,
                 .straight_through_k2 = k.straight_through_k2};
  if (kl.in_reward) {
    for (const auto& [name, set] : {std::pair{"kl.score_term", k.score_term},
                                    {"kl.straight_through_k2", k.straight_through_k2},
                                    {"kl.is_weighted", k.is_weighted}}) {
      if (set)
        return Wrong(
            name,
            "shapes the gradient of a KL in the loss, but kl.place is reward, which has none; remove it");
    }
    if (out.advantage->Uses(Provision::kTeacher) || out.advantage->Uses(Provision::kComponents)) {
      return Wrong("kl.place", "is reward, but advantage " + out.advantage->name +
                                   " does not read the reward; write loss");
    }
  } else {
    if (!loss.extras)
      return Wrong("kl.coef", "is not 0, but loss " + loss.name +
                                  " takes no KL term; write kl.place: reward, or another loss");
    out.policy.kl_beta = k.coef;
    out.policy.kl = kl.estimate;
    out.policy.kl_is_weighted = k.is_weighted;
    if (k.score_term && k.straight_through_k2)
      return Wrong("kl.score_term",
                   "gives the estimate one gradient and kl.straight_through_k2 another; keep one");
  }
  out.kl = kl;
  return OkStatus();
}

// Masks by the gap between sampler and trainer.
Status ResolveMasks(const AlgorithmConfig& c, const LossEntry& loss, ResolvedAlgorithm& out) {
  const auto takes = [&](const char* key) {
    return loss.extras
               ? OkStatus()
               : Wrong(key, "is set, but loss " + loss.name + " takes no weights per token; remove it");
  };
  if (c.opsm) {
    TP_RETURN_IF_ERROR(takes("opsm"));
    out.policy.opsm_delta = *c.opsm;
  }
  if (c.m2po) {
    TP_RETURN_IF_ERROR(takes("m2po"));
    out.second_moment = *c.m2po;
  }
  if (c.reject.empty()) {
    if (!c.reject_threshold.empty() || c.reject_low || c.reject_high) {
      return Wrong(!c.reject_threshold.empty() ? "reject_threshold"
                   : c.reject_low              ? "reject_low"
                                               : "reject_high",
                   "bounds a criterion, but reject names none");
    }
    return OkStatus();
  }
  TP_RETURN_IF_ERROR(takes("reject"));
  auto rules = ParseRejectRules(c.reject, c.reject_threshold, c.reject_low, c.reject_high);
  if (!rules.ok()) return Wrong("reject", rules.status().message());
  out.reject = std::move(rules).value();
  return OkStatus();
}

}  // namespace

bool ResolvedAlgorithm::needs_reference() const {
  return kl.has_value() || std::ranges::count(policy.loss->needs, Column::kReference) > 0;
}
bool ResolvedAlgorithm::needs_old_first() const {
  return (kl && kl->in_reward) || needs_teacher() || advantage->Uses(Provision::kSquares) ||
         !reject.empty() || second_moment.has_value() ||
         policy.options.Text("denominator") == "mask_after_rejection";
}

// core/base/plugin_check.h.
std::string FaultOf(const AlgorithmPlugin& plugin) {
  if (!plugin.off_policy.empty()) return "";
  if (FindAdvantage(plugin.advantage.name) == nullptr)
    return ".advantage is '" + plugin.advantage.name + "'; there are " + Names(AdvantageEstimators());
  if (FindLoss(plugin.loss.name) == nullptr)
    return ".loss is '" + plugin.loss.name + "'; there are " + Names(PolicyLosses());
  return "";
}

const std::vector<AlgorithmEntry>& Algorithms() {
  static const std::vector<AlgorithmEntry> entries = [] {
    std::vector<AlgorithmEntry> all;
    for (const auto& [name, make, file] : AlgorithmPlugins()) all.emplace_back(make()).name = name;
    return all;
  }();
  return entries;
}

const AlgorithmEntry* FindAlgorithm(std::string_view name) {
  const auto it = std::ranges::find(Algorithms(), name, &AlgorithmEntry::name);
  return it == Algorithms().end() ? nullptr : &*it;
}

Value ParseValue(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    return std::string(text.substr(1, text.size() - 2));
  if (text.empty() || text == "null") return {};
  if (text == "true" || text == "false") return text == "true";
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  return std::string(text);
}

std::vector<OptionSpec> OptionsOfParts(const AlgorithmConfig& config) {
  std::vector<OptionSpec> specs;
  const auto parts = PartsOf(config);
  if (!parts.ok()) return specs;
  for (OptionSpec s : parts.value().advantage->options) {
    s.name = "advantage_" + s.name;
    specs.push_back(std::move(s));
  }
  specs.insert(specs.end(), parts.value().loss->options.begin(), parts.value().loss->options.end());
  return specs;
}

StatusOr<ResolvedAlgorithm> Resolve(const AlgorithmConfig& c, int64_t max_new_tokens, bool environments) {
  TP_ASSIGN_OR_RETURN(const Parts parts, PartsOf(c));
  const AlgorithmEntry& preset = *parts.preset;
  ResolvedAlgorithm out;
  out.advantage = parts.advantage;
  if (environments && out.advantage->name != "gae_env") {
    return Wrong("advantage",
                 "is " + out.advantage->name +
                     ", but a policy of control tasks needs gae_env; write algorithm.advantage: gae_env");
  }
  if (out.advantage->compute == nullptr && !environments) {
    return Unimplemented("algorithm.advantage: " + out.advantage->name + " needs " + out.advantage->needs +
                         ", which a job does not provide yet; take another one");
  }
  // The preset's options go with its own parts; then what the config says.
  std::map<std::string, Value> advantage, loss;
  if (out.advantage->name == preset.advantage.name) advantage = preset.advantage.options;
  if (parts.loss->name == preset.loss.name) loss = preset.loss.options;
  if (!c.advantage_scale.empty()) advantage["scale"] = c.advantage_scale;
  if (c.advantage_eps) advantage["eps"] = *c.advantage_eps;
  if (c.clip_low) loss["clip_low"] = *c.clip_low;
  if (c.clip_high) loss["clip_high"] = *c.clip_high;
  if (c.dual_clip) loss["dual_clip"] = *c.dual_clip;
  for (const auto& [name, text] : c.options) {
    if (name.starts_with("advantage_")) {
      advantage[name.substr(10)] = ParseValue(text);
    } else {
      loss[name] = ParseValue(text);
    }
  }
  TP_ASSIGN_OR_RETURN(out.advantage_options, Checked("advantage_", "advantage " + out.advantage->name,
                                                     out.advantage->options, advantage));
  out.policy.loss = parts.loss;
  TP_ASSIGN_OR_RETURN(out.policy.options, Checked("", "loss " + parts.loss->name, parts.loss->options, loss));
  if (const auto high = out.policy.options.Number("clip_high"), cap = out.policy.options.Number("ratio_cap");
      cap && high && *cap <= 1 + *high) {
    return Wrong("ratio_cap", "is " + ValueText(*cap) + ", which the clip at 1 + clip_high = " +
                                  ValueText(1 + *high) + " already holds; raise it");
  }
  if (const auto dual = out.policy.options.Number("dual_clip"); dual && *dual <= 1)
    return Wrong("dual_clip", "is " + ValueText(*dual) + "; it has to be above 1");
  const bool beh_ratio = std::ranges::count(parts.loss->needs, Column::kBehaviour) > 0;
  const std::string aggregation = !c.aggregation.empty() ? c.aggregation
                                  : parts.loss->name == preset.loss.name && !preset.rules.aggregation.empty()
                                      ? preset.rules.aggregation
                                      : parts.loss->aggregation;
  const auto mode = ParseWord<AggregationMode>("aggregation mode", aggregation);
  if (!mode.ok()) return Wrong("aggregation", mode.status().message());
  out.aggregation.mode = mode.value();
  if (parts.loss->row_value != (mode.value() == AggregationMode::kSeqMean)) {
    return Wrong("aggregation", parts.loss->row_value
                                    ? "is " + aggregation + ", but loss " + parts.loss->name +
                                          " has one value per row; write seq-mean or remove the key"
                                    : "is seq-mean, but loss " + parts.loss->name +
                                          " has a value per token; write seq-mean-token-mean");
  }
  if (parts.loss->name == "decoupled" && mode.value() != AggregationMode::kTokenMean)
    return Wrong("aggregation", "is " + aggregation + ", but loss decoupled is defined with token-mean");
  if (mode.value() == AggregationMode::kRolloutMean || mode.value() == AggregationMode::kMaskRatio) {
    return Unimplemented("algorithm.aggregation: " + aggregation +
                         " is for rollouts of several samples, which a job does not have yet");
  }
  if (mode.value() == AggregationMode::kSeqMeanTokenSumNorm) {
    if (max_new_tokens < 1)
      return Wrong("aggregation", "seq-mean-token-sum-norm needs rollout.max_new_tokens of at least 1");
    out.aggregation.scale = static_cast<double>(max_new_tokens);
    out.aggregation.divide_by_seqs = true;
  }

  const std::string correction = c.correction.empty()
                                     ? (parts.loss->extras && !beh_ratio ? preset.rules.correction : "none")
                                     : c.correction;
  if (correction != "none") {
    if (!parts.loss->extras) {
      return Wrong("correction",
                   "is " + correction + ", but loss " + parts.loss->name +
                       (parts.loss->name == "decoupled" ? " has a behaviour weight of its own (behave.upper)"
                                                        : " takes no weights per token") +
                       "; write none");
    }
    if (beh_ratio)
      return Wrong("correction", "is " + correction + ", but the ratio of loss " + parts.loss->name +
                                     " is to the sampler already and would be corrected twice; write none");
    const auto form = ParseWord<RolloutIsForm>("correction", correction);
    if (!form.ok())
      return Wrong("correction", "found '" + correction +
                                     "'; use none, tis, icepop, seq-mask-tis, seq-tis, seq-mask or raw");
    out.policy.rollout_is = form.value();
    if (!(c.tis_max > 0)) return Wrong("tis_max", "has to be above 0");
    out.policy.rollout_is_high = c.tis_max;
    if (form.value() == RolloutIsForm::kIcePop || form.value() == RolloutIsForm::kSequenceMaskTis)
      out.policy.rollout_is_low = 1 / c.tis_max;
  }
  if (correction == "none" && c.tis_max != AlgorithmConfig{}.tis_max)
    return Wrong("tis_max", "is " + ValueText(c.tis_max) +
                                ", but nothing is corrected; write correction: tis, or remove it");
  if (out.advantage_options.Text("scale") == "none" && c.advantage_eps)
    return Wrong("advantage_eps", "is added to a deviation, but advantage " + out.advantage->name +
                                      " with scale none divides by none; remove it");
  if (c.overlong_factor != AlgorithmConfig{}.overlong_factor && c.overlong_buffer_tokens == 0)
    return Wrong("overlong_factor",
                 "sizes a penalty that is off; write overlong_buffer_tokens as well, or remove it");
  if (c.entropy_coef != 0 && !parts.loss->extras)
    return Wrong("entropy_coef", "is not 0, but loss " + parts.loss->name + " takes no entropy bonus");
  out.policy.entropy_coef = c.entropy_coef;
  TP_RETURN_IF_ERROR(ResolveKl(c, *parts.loss, out));
  TP_RETURN_IF_ERROR(ResolveMasks(c, *parts.loss, out));
  out.teacher_coef = c.teacher_coef;
  if (out.needs_teacher() && c.teacher.empty())
    return Wrong("teacher", "is missing; name the model folder of the teacher");
  if (!out.needs_teacher() && !c.teacher.empty())
    return Wrong("teacher",
                 "is read by nothing here; write advantage: on_policy_distill, or a teacher_coef above 0");
  out.value = {.huber = c.critic.loss == CriticLoss::kHuber,
               .huber_delta = c.critic.huber_delta,
               .clip = c.critic.clip > 0 ? std::optional(c.critic.clip) : std::nullopt};
  if (!out.policy.options.Text("prox").empty() || out.policy.options.Number("current_version")) {
    return Wrong(c.options.contains("prox") ? "prox" : "current_version",
                 "a job recomputes the proximal log-probs exactly; remove the key");
  }
  out.mask_truncated = c.mask_truncated;
  out.zero_variance_filter = FilterOf(c) == "zero_variance";
  if (out.zero_variance_filter && !out.advantage->compares) {
    return Wrong("filter", "zero_variance drops groups of equal rewards, but advantage " +
                               out.advantage->name + " does not compare samples of a group; write none");
  }
  if (FilterOf(c) == "none" && c.keep_groups.empty() && c.filter_rounds != AlgorithmConfig{}.filter_rounds)
    return Wrong("filter_rounds",
                 "counts how often a filtered group is replaced, but filter is none; write zero_variance, or "
                 "keep_groups, or remove it");
  for (const std::string& text : c.keep_groups) {
    if (const auto condition = ParseGroupCondition(text); !condition.ok())
      return Wrong("keep_groups", condition.status().message());
  }
  return out;
}

bool UsesReplay(const AlgorithmConfig& config) {
  const AlgorithmEntry* preset = FindAlgorithm(config.name);
  return preset != nullptr && !preset->off_policy.empty();
}

std::string FilterOf(const AlgorithmConfig& config) {
  if (!config.filter.empty()) return config.filter;
  const AlgorithmEntry* preset = FindAlgorithm(config.name);
  return preset == nullptr ? "none" : preset->rules.filter;
}

ResolvedAlgorithm DefaultAlgorithm() { return Resolve(AlgorithmConfig{}, 1).value(); }

std::string DescribeAlgorithm(const AlgorithmEntry& e) {
  if (!e.off_policy.empty())
    return e.name + ": " + e.doc + "\n  paper        " + e.paper + "\n  formulas     " + e.off_policy +
           "\n  needs        model.policy, and an environment whose actions are numbers with bounds\n"
           "  options      algorithm.replay, algorithm." +
           e.name + " (`tidepool config reference`)\n";
  const AdvantageEntry& advantage = *FindAdvantage(e.advantage.name);
  const LossEntry& loss = *FindLoss(e.loss.name);
  std::string text = e.name + ": " + e.doc + "\n  paper        " + e.paper + "\n  advantage    " +
                     advantage.name + ": " + advantage.formula + "\n  loss         " + loss.name + ": " +
                     loss.formula + "\n  aggregation  " +
                     (e.rules.aggregation.empty() ? loss.aggregation : e.rules.aggregation) +
                     "\n  correction   " + e.rules.correction + "\n  filter       " + e.rules.filter + "\n";
  std::string needs = advantage.compares ? "rollout.group_size of 2 or more" : "";
  if (!advantage.needs.empty()) needs += std::string(needs.empty() ? "" : ", ") + advantage.needs;
  if (e.rules.correction != "none" || e.loss.name == "decoupled" ||
      std::ranges::count(loss.needs, Column::kBehaviour) > 0)
    needs += std::string(needs.empty() ? "" : ", ") + "behaviour log-probs";
  text += "  needs        " + (needs.empty() ? std::string("nothing else") : needs) +
          "\n  options (keys of `algorithm`)\n";
  const auto list = [&](const std::string& prefix, const std::vector<OptionSpec>& specs,
                        const std::map<std::string, Value>& preset) {
    for (const OptionSpec& s : specs) {
      const auto own = preset.find(s.name);
      const std::string value = ValueText(own == preset.end() ? s.fallback : own->second);
      text += "    " + prefix + s.name + " = " + (value.empty() ? "null" : value) + "  (" +
              DescribeOption(s) + ") " + s.doc + "\n";
    }
  };
  list("advantage_", advantage.options, e.advantage.options);
  list("", loss.options, e.loss.options);
  if (e.rules.correction != "none")
    text += "    tis_max = " + ValueText(AlgorithmConfig{}.tis_max) +
            "  (a number, above 0) where the weight is cut\n";
  return text;
}

namespace {

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

std::string OptionList(const std::string& prefix, const std::vector<OptionSpec>& specs) {
  std::string text;
  for (const OptionSpec& s : specs) {
    const std::string value = ValueText(s.fallback);
    text += (text.empty() ? "" : ", ") + std::string("`") + prefix + s.name + "` " +
            (value.empty() ? "null" : value);
  }
  return text.empty() ? "-" : text;
}

}  // namespace

std::string AlgorithmTable() {
  std::string t =
      "| name | paper | advantage | loss | aggregation | correction | |\n|---|---|---|---|---|---|---|\n";
  for (const AlgorithmEntry& e : Algorithms()) {
    if (!e.off_policy.empty()) {
      t += "| `" + e.name + "` | " + e.paper + " | - | - | - | - | " + Escaped(e.doc) + " |\n";
      continue;
    }
    t += "| `" + e.name + "` | " + e.paper + " | `" + e.advantage.name + "` | `" + e.loss.name + "` | " +
         (e.rules.aggregation.empty() ? FindLoss(e.loss.name)->aggregation : e.rules.aggregation) + " | " +
         e.rules.correction + " | " + Escaped(e.doc) + " |\n";
  }
  t += "\n| advantage | paper | formula | options | needs |\n|---|---|---|---|---|\n";
  for (const AdvantageEntry& e : AdvantageEstimators()) {
    t += "| `" + e.name + "` | " + e.paper + " | " + Escaped(e.formula) + " | " +
         Escaped(OptionList("advantage_", e.options)) + " | " +
         (e.compares ? std::string("groups of 2 or more") + (e.needs.empty() ? "" : ", ") : "") + e.needs +
         " |\n";
  }
  t += "\n| loss | paper | formula | options |\n|---|---|---|---|\n";
  for (const LossEntry& e : PolicyLosses())
    t += "| `" + e.name + "` | " + e.paper + " | " + Escaped(e.formula) + " | " +
         Escaped(OptionList("", e.options)) + " |\n";
  return t;
}

}  // namespace tidepool::algorithms
