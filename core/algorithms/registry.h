#pragma once
// Named algorithms: presets of an advantage estimator, a loss, an aggregation, a correction and a filter,
// with the options that a paper sets. A config may replace any part; Resolve() puts the parts together and
// refuses what contradicts itself. `tidepool algorithms` and docs/algorithms.md print this registry. Pure;
// thread-safe.
//
// In a config the options of the loss are keys of `algorithm` under their own name (clip_low, tau_pos), those
// of the estimator are advantage_<name> (advantage_scale, advantage_gamma).

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/advantages.h"
#include "core/algorithms/aggregation.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/value_loss.h"
#include "core/base/config.h"
#include "core/base/plugin.h"
#include "core/base/status.h"

namespace tidepool::algorithms {

struct AlgorithmEntry {
  struct Part {
    std::string name;                           // of AdvantageEstimators(), of PolicyLosses()
    std::map<std::string, Value> options = {};  // that differ from the part's own
  };
  struct Rules {
    std::string aggregation = {};  // empty: the loss's
    std::string correction = "none";
    std::string filter = "none";
  };
  std::string name = {};  // the plug-in's
  std::string paper;
  std::string doc;  // one line
  Part advantage = {};
  Part loss = {};
  Rules rules = {};
  // Of one that trains policies from a replay store: its formulas, in a line. It has no parts.
  std::string off_policy = {};
};
using AlgorithmPlugin = AlgorithmEntry;
std::span<const Plugin<AlgorithmPlugin>> AlgorithmPlugins();  // the table that the build writes
const std::vector<AlgorithmEntry>& Algorithms();              // by name
const AlgorithmEntry* FindAlgorithm(std::string_view name);

// A KL coefficient that may move (kl.h, AdaptKlCoefficient).
struct KlControl {
  double coef = 0;  // at the start
  bool in_reward = false;
  KlOptions estimate;
  std::optional<double> target;
  double horizon = 10000;
};

// Everything a trainer needs to know. What is not needed is not loaded.
struct ResolvedAlgorithm {
  const AdvantageEntry* advantage = nullptr;
  Options advantage_options;
  PolicyLossSpec policy;
  Aggregation aggregation;  // without counts
  bool zero_variance_filter = false;
  bool mask_truncated = false;          // no loss on samples cut at the length limit
  std::optional<KlControl> kl;          // policy.kl_beta is set where it stands in the loss
  double teacher_coef = 0;              // of teacher_lp - lp, beside the estimator
  std::vector<RejectRule> reject;       // on old against behaviour; what is dropped stays in the counts
  std::optional<double> second_moment;  // SecondMomentMask
  ValueLossOptions value;

  [[nodiscard]] bool needs_critic() const { return advantage->Uses(Provision::kCritic); }
  [[nodiscard]] bool needs_teacher() const {
    return advantage->Uses(Provision::kTeacher) || teacher_coef != 0;
  }
  [[nodiscard]] bool needs_reference() const;  // a KL, or a loss that reads it
  // Log-probs of the whole batch before the first update, where one update would do without.
  [[nodiscard]] bool needs_old_first() const;
};
// `max_new_tokens` is L_max of seq-mean-token-sum-norm. An error begins with the key it is about
// ("algorithm.correction: ..."): kInvalidArgument for what is wrong or contradicts, kUnimplemented for what
// a job cannot provide yet.
// `environments`: of a job that provides steps of environments and their values (model.policy), so that
// gae_env may be used; the caller computes it.
StatusOr<ResolvedAlgorithm> Resolve(const AlgorithmConfig& config, int64_t max_new_tokens,
                                    bool environments = false);

// It trains from a replay store (AlgorithmEntry::off_policy), and Resolve refuses it.
bool UsesReplay(const AlgorithmConfig& config);

// The filter of groups: as written, else the algorithm's; "none" for an unknown algorithm.
std::string FilterOf(const AlgorithmConfig& config);

// Names that may stand in `algorithm` as options of its parts, for this choice of parts.
std::vector<OptionSpec> OptionsOfParts(const AlgorithmConfig& config);
// A value as written in YAML ("0.2", "group_std", "true", "null").
Value ParseValue(std::string_view text);

// GRPO as the registry has it.
ResolvedAlgorithm DefaultAlgorithm();

// One algorithm, or the list, as text; and the table of docs/algorithms.md.
std::string DescribeAlgorithm(const AlgorithmEntry& entry);
std::string AlgorithmTable();  // Markdown: algorithms, estimators, losses

}  // namespace tidepool::algorithms
