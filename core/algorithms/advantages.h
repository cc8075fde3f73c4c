#pragma once
// The advantage estimators that a job can name: one entry each, defined in the files of advantages/
// (core/base/plugin.h). The formulas are in group_advantages.h, returns.h, gae.h and distillation.h; an entry
// says what it needs beside rewards (Provision), which decides what a job loads: a critic, a teacher.
// Estimators over steps of environments have no `compute` here; `needs` says why. Pure; thread-safe.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/options.h"
#include "core/base/plugin.h"
#include "core/base/status.h"

namespace tidepool::algorithms {

// What a job can provide beside rewards and groups.
enum class Provision {
  kCritic,      // values
  kTeacher,     // teacher_logp, and old_logp
  kSquares,     // sum_pi_sq, and old_logp
  kGreedy,      // baseline: the reward of a greedy answer to the same prompt
  kComponents,  // each reward function's own score
  kTurns,       // turns of episodes
};

// Turns of episodes as steps of an agent, rows in any order.
struct AgentSteps {
  std::vector<int64_t> row;    // [steps] whose turn
  std::vector<int64_t> begin;  // [steps] its first cell in the row; ascending in a row
  std::vector<int64_t> state;  // [steps] that it acts in; equal states of a group compare
  std::vector<double> before;  // [steps] reward of the row's turns before
};

struct AdvantageInput {
  const Cells* cells = nullptr;     // rows of the whole batch
  std::span<const double> rewards;  // [rows]; NaN: no verdict
  std::span<const int64_t> group;   // [rows]
  // KL in the reward: kl_coef kl_it is taken off, from token rewards or from the row's reward. kl: [cells] or
  // empty.
  std::span<const double> kl = {};
  double kl_coef = 0;
  std::span<const double> values = {};        // [cells] of the critic before the step
  std::span<const double> old_logp = {};      // [cells]
  std::span<const double> sum_pi_sq = {};     // [cells] sum over the vocabulary of squared probabilities
  std::span<const double> teacher_logp = {};  // [cells]
  std::span<const double> baseline = {};      // [rows]
  std::span<const double> components = {};    // [rows, component_weights.size()]; NaN: absent
  std::span<const double> component_weights = {};
  const AgentSteps* steps = nullptr;
  std::span<const int64_t> total_tokens = {};  // [rows] prompt and response
  std::vector<double>* returns =
      nullptr;  // gets the value targets [cells], of estimators with a critic; may be null
};

struct AdvantageEntry {
  std::string name = {};  // the plug-in's
  std::string paper;
  std::string formula;
  std::vector<OptionSpec> options = {};  // a job writes them as advantage_<name>
  bool compares = true;                  // needs groups of 2 or more
  std::string needs = {};                // in words; empty: rewards alone
  std::vector<Provision> provisions = {};
  // [cells], 0 on masked ones. Null where a job of samples cannot provide what it needs.
  std::vector<double> (*compute)(const Options& options, const AdvantageInput& input) = nullptr;

  [[nodiscard]] bool Uses(Provision p) const;
};
using AdvantagePlugin = AdvantageEntry;
std::span<const Plugin<AdvantagePlugin>> AdvantagePlugins();  // the table that the build writes
const std::vector<AdvantageEntry>& AdvantageEstimators();     // by name
const AdvantageEntry* FindAdvantage(std::string_view name);

}  // namespace tidepool::algorithms
