#pragma once
// Sums over the tokens of a step, from which the metrics are made. Sums and counts, never means of
// means, so that micro-batches weigh what they hold.

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "core/algorithms/cells.h"
#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/train/batch.h"

namespace tidepool::train {

struct TokenSums {
  int64_t tokens = 0;       // valid ones
  double loss = 0;          // aggregated policy (or supervised) loss
  double entropy_loss = 0;  // aggregated entropy
  double balance = 0;       // load-balance loss of experts, micro-batches weighted by their tokens
  double entropy = 0;
  double kl = 0;  // sum of -(lp - old)
  int64_t clipped = 0, dual_clipped = 0;
  double advantage = 0;
  double importance = 0;  // w before truncation
  double ratio_max = 0, ratio_min = 0;
  // Estimated KL to the reference over its tokens, of the first pass; and as the loss aggregates it.
  double reference_kl = 0, reference_tokens = 0, kl_loss = 0;
  // Jobs on pairs: pairs seen, those the right way round, sums of rewards or scores.
  double pairs = 0, pair_right = 0, pair_chosen = 0, pair_rejected = 0;
  // Distillation: places compared, and those where the student's likeliest token is the teacher's.
  double compared = 0, agreed = 0;
  // Rollout against recomputation, for tokens sampled by the version that is trained.
  int64_t same_version = 0;
  double gap = 0, gap_max = 0, probability_gap = 0, mismatch_kl = 0;

  // One valid token; loss and entropy_loss are added by the caller, for they are sums over tokens already.
  struct Token {
    double logprob = 0, old_logprob = 0, entropy = 0, advantage = 0;
    double importance = 1;  // before truncation
    bool clipped = false, dual_clipped = false;
  };
  void AddToken(const Token& token);
  void AddGap(double logprob, double recorded);
  // The sums of all ranks.
  Status AddOtherRanks(comm::Collective& group);
};

struct StepTimes {
  double loss = 0;                 // advantages and losses themselves, inside prepare and head
  double prepare = 0, critic = 0;  // before the updates: further models, advantages; the critic's updates
  double forward = 0, head = 0, backward = 0, reduce = 0, optimizer = 0, digest = 0, total = 0;  // seconds
};

// After a step every rank has the same weights: kInternal, begun with `who`, where a digest differs.
Status CheckSameWeights(comm::Collective& group, uint64_t digest, const std::string& who, StepNumber step);

// Metrics of the rows themselves: rewards, lengths, masks.
// `shaped`: [rows] rewards as trained on.
void RowMetrics(std::span<const Row> rows, std::span<const double> shaped,
                std::map<std::string, double>& metrics);
// NAME/mean, max and min over valid cells.
void ColumnMetrics(const std::string& name, std::span<const double> column, const algorithms::Cells& cells,
                   std::map<std::string, double>& metrics);
void TokenMetrics(const TokenSums& sums, bool policy, std::map<std::string, double>& metrics);
void TimeMetrics(const StepTimes& times, int64_t tokens, int64_t computed,
                 std::map<std::string, double>& metrics);

}  // namespace tidepool::train
