#pragma once
// What the losses are told of each response token of a batch: the cells of core/algorithms. Filled once a
// step from the whole batch, so that statistics and counts never are those of a part. No LibTorch.

#include <cstdint>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/registry.h"
#include "core/base/status.h"
#include "core/train/batch.h"

namespace tidepool::train {

struct StepPlan {
  algorithms::Cells cells;
  std::vector<int64_t> groups;                             // [rows]
  std::vector<double> scores;                              // [rows] rewards after shaping
  std::vector<double> advantages, weights;                 // [cells]
  std::vector<double> returns;                             // [cells] targets of the critic, or empty
  std::vector<double> values;                              // [cells] of the critic before the step, or empty
  std::vector<double> old, ref, teacher, squares, behave;  // [cells] or empty
  std::vector<uint8_t> recorded;  // [rows] 1: old is what the sampler recorded; or empty
  std::vector<double> kl;         // [cells] taken off the reward, or empty
  std::vector<double> keep;       // [cells] 0: rejected by the gap between sampler and trainer; or empty
  std::vector<uint8_t> selected;  // [cells]
  algorithms::AgentSteps steps;   // of estimators over turns
  double masked_fraction = 0;     // of valid cells, by `keep`
};

// Cells, groups and the sampler's log-probs. `policy`: of samples; else the masks of the rows alone count.
StepPlan PlanRows(const Batch& batch, const algorithms::ResolvedAlgorithm& algorithm, bool policy);

// Which rows were sampled by the weights that are trained, in every token that counts.
std::vector<uint8_t> SampledByTrained(const Batch& batch, const algorithms::Cells& cells);

// kInvalidArgument: the row lacks the score of each reward function, or its turns, which the advantage needs.
Status CheckScores(const Row& row, const algorithms::ResolvedAlgorithm& algorithm, size_t reward_functions);
// Advantages (and returns) of a plan that has everything the algorithm asks for. kl_coef: as it stands.
// kInvalidArgument: of CheckScores.
Status FillAdvantages(const Batch& batch, const algorithms::ResolvedAlgorithm& algorithm,
                      std::span<const double> component_weights, double kl_coef, StepPlan& plan);
// Share of the turns whose state another turn of their group began in too; 0 without turns.
double SharedStates(const StepPlan& plan);
// `keep`, from plan.old and plan.behave.
void FillRejection(const algorithms::ResolvedAlgorithm& algorithm, StepPlan& plan);

// The cells with all rows but these masked.
algorithms::Cells Only(const algorithms::Cells& cells, std::span<const int64_t> rows);

}  // namespace tidepool::train
