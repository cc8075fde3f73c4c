#pragma once
// Policy losses: x_it and d x_it / d lp_it for every token, then options on x, then weights.
//
// A loss is one registered entry (core/algorithms/losses/, one file each): name, paper, typed options, the
// columns it needs, and a function that fills LossTerms. PolicyLoss() is what the trainer and the
// conformance program call; with the weights of core/algorithms/aggregation.h
//   loss = sum weight_it (w_it x_it - entropy_coef H_it + beta k_it)
// w: product of the detached weights below. In float64. Pure, thread-safe.
//
// Where the derivative is not diagonal (a value per row: gmpo, seq_product) x_it is the row's value on each
// of its cells and slope_it = n_i d x_i / d lp_it, so that with the weight 1/(S n_i) both sums come out
// right.
//
// Stated results: masked cells never matter; an advantage of 0 gives x = 0 whatever the ratio (also where
// it overflows); a log ratio of +-30 is finite in every loss; a ratio that overflows float64 gives inf, and a
// NaN or inf in a valid cell is passed on; a batch without valid cells gives 0 with gradient 0.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/importance.h"
#include "core/algorithms/kl.h"
#include "core/algorithms/options.h"
#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::algorithms {

// What is known of each token; [cells] unless said; an empty span: not given. Masked cells may hold anything.
struct PolicyBatch {
  std::span<const double> logp;          // lp: current policy, has the gradient
  std::span<const double> advantages;    // A
  std::span<const double> old_logp;      // old: the weights at the start of the update
  std::span<const double> prox_logp;     // old of decoupled; old_logp where it is not given
  std::span<const double> behave_logp;   // beh: the sampler's own record
  std::span<const double> rollout_logp;  // beh of rollout_is; behave_logp where it is not given
  std::span<const double> opsm_logp;     // beh of the off-policy sequence mask; the same
  std::span<const double> ref_logp;      // the frozen reference
  std::span<const double> entropy;       // H
  std::span<const double> is_weights;    // further detached weights on x
  std::span<const int64_t> versions;     // weights that sampled the token, -1: none
  std::span<const double> scores;        // [rows] outcome rewards
  std::span<const uint8_t> selected;     // tokens that SelectTokens chose in the whole batch (kl_cov)
};

enum class Column { kAdvantages, kOld, kProximal, kBehaviour, kReference, kVersions, kScores };

// x and its derivative.
struct LossTerms {
  std::vector<double> value, slope;   // [cells]
  std::vector<uint8_t> clipped;       // the clipped branch won; empty: the loss does not clip
  std::vector<uint8_t> dual_clipped;  // the dual clip won
  std::vector<double> kl;             // -(lp - old) as the loss clamped it; empty: not defined
};

struct LossEntry {
  std::string name = {};  // the plug-in's
  std::string paper;      // title words and arXiv number
  std::string formula;    // one line
  std::vector<OptionSpec> options;
  std::vector<Column> needs;
  std::string aggregation = "token-mean";  // where none is asked for
  bool row_value = false;                  // a value per row: mode seq-mean alone, no options on x
  bool extras = true;                      // opsm, rollout_is, is_weights, entropy and kl may be added
  bool whole_rows = false;                 // all cells of a row have to be in the call
  bool whole_batch = false;                // needs SelectTokens over the whole batch first
  // `batch` is cleaned (masked cells 0), its columns checked; terms come with cells.size() zeros.
  Status (*terms)(const Options& options, const Cells& cells, const PolicyBatch& batch,
                  LossTerms& terms) = nullptr;
};

// Off-policy sequence mask (DeepSeek-V3.2, arXiv:2512.02556): 1 where the cell stays. Dropped: A < 0 and
// mean_t(before - lp) > delta over the row.
std::vector<uint8_t> OffPolicySequenceMask(std::span<const double> logp, std::span<const double> before,
                                           std::span<const double> advantages, double delta,
                                           const Cells& cells);

// Sampler/trainer gap weights on x, from w = exp(old - beh), detached:
//   tis  clip(w, low, high);  icepop  w 1[low <= w <= high];  raw  w;
//   seq-mask-tis  w, but 0 on the row if exp(mean_t log w) leaves [low, high]
//   seq-tis  clip(W, low, high) on all of the row, W = exp(clip(sum_t log w, +-20));  seq-mask  W 1[low <= W
//   <= high]
enum class RolloutIsForm { kTis, kIcePop, kSequenceMaskTis, kSequenceTis, kSequenceMask, kRaw };
constexpr auto WordsOf(RolloutIsForm) {
  return std::to_array<const char*>({"tis", "icepop", "seq-mask-tis", "seq-tis", "seq-mask", "raw"});
}
std::vector<double> RolloutIsWeights(RolloutIsForm form, std::optional<double> low,
                                     std::optional<double> high, std::span<const double> old_logp,
                                     std::span<const double> behave_logp, const Cells& cells);

struct PolicyLossSpec {
  const LossEntry* loss = nullptr;
  Options options;                   // of the loss
  std::optional<double> opsm_delta;  // OffPolicySequenceMask
  std::optional<RolloutIsForm> rollout_is;
  std::optional<double> rollout_is_low, rollout_is_high;
  double entropy_coef = 0;
  std::optional<double> kl_beta;  // + beta k(lp, ref)
  KlOptions kl;
  bool kl_is_weighted = false;  // k times exp(lp - old), gradient through both
};
// Whether rows must be whole in each call.
bool NeedsWholeRows(const PolicyLossSpec& spec);

struct PolicyLossResult {
  double loss = 0;
  double policy_term = 0, entropy_term = 0, kl_term = 0;  // loss = policy - entropy_coef entropy + beta kl
  std::vector<double> grad_logp;                          // [cells] d loss / d lp
  std::vector<double> grad_entropy;                       // [cells] d loss / d H; empty without a bonus
  LossTerms terms;                                        // x before the options
  std::vector<double> is_weights;  // exp(old - beh) before truncation; empty without rollout_is
};
// weights: [cells], of AggregationWeights over the whole optimiser batch. kInvalidArgument: a column that
// is needed is missing or of another length.
StatusOr<PolicyLossResult> PolicyLoss(const PolicyLossSpec& spec, const Cells& cells,
                                      const PolicyBatch& batch, std::span<const double> weights);

// kl_cov: the max(1, floor(ratio N)) valid cells with largest (A - <A>)(lp - <lp>); ties by place.
std::vector<uint8_t> SelectTokens(const PolicyLossSpec& spec, const Cells& cells, const PolicyBatch& batch);

// Decoupled with denominator mask_after_rejection: the tokens kept, at least 1, to be used as N; nothing
// otherwise.
StatusOr<std::optional<double>> TokensAfterRejection(const PolicyLossSpec& spec, const Cells& cells,
                                                     const PolicyBatch& batch);

// A r, 0 where A is 0 even if r overflowed.
inline double Times(double advantage, double ratio) { return advantage == 0 ? 0 : advantage * ratio; }

}  // namespace tidepool::algorithms
