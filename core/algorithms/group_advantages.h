#pragma once
// Advantages of outcome rewards by group (samples of one prompt): A_it = A_i on valid cells.
//
// rewards [B], group [B] (any ids, uneven, interleaved). NaN: no verdict; such a sample is left out of all
// statistics and gets 0 (TRL), never counts as reward 0. Groups of equal rewards (AllEqual) get exactly 0.
// Statistics are those of the whole batch's groups: a group must be here as a whole.
// Groups of one: singleton raw keeps r_i (mean 0, deviation 1: verl), zero gives 0 (NeMo-RL, TRL; ours).
// Below, mu_g, s_g: mean and deviation of the group; mu_-i, s_-i: of the others. In float64, pure,
// thread-safe.

#include <cstdint>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"
#include "core/algorithms/statistics.h"
#include "core/base/words.h"

namespace tidepool::algorithms {

enum class Singleton { kZero, kRaw };
constexpr auto WordsOf(Singleton) { return std::to_array<const char*>({"zero", "raw"}); }

// GRPO (arXiv:2402.03300) and its variants:  A_i = (r_i - b_i) / (s_i + eps)
//   b: mu_g, or mu_-i (loo);  s: s_g, s_-i (NeMo-RL), s of all B rewards (batch_std, arXiv:2508.08221), or no
//   division (none: Dr.GRPO, arXiv:2503.20783).
// skip_zero_std: where s_i is 0 (equal or too few values) nothing is divided; else by 0 + eps.
enum class AdvantageScale { kGroupStd, kBatchStd, kNone };
constexpr auto WordsOf(AdvantageScale) {
  return std::to_array<const char*>({"group_std", "batch_std", "none"});
}
struct GrpoOptions {
  AdvantageScale scale = AdvantageScale::kGroupStd;
  bool leave_one_out = false;  // baseline loo
  bool std_of_others = false;
  int64_t ddof = 1;
  double eps = 1e-6;
  Singleton singleton = Singleton::kZero;
  bool skip_zero_std = false;
};
std::vector<double> GrpoAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                   const GrpoOptions& options);

// RLOO (arXiv:2402.14740):  A_i = r_i - mu_-i = G/(G-1) (r_i - mu_g)
std::vector<double> RlooAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                   Singleton singleton);

// OPO (arXiv:2505.23585):  A_i = r_i - sum_j n_j r_j / sum_j n_j,  n_j valid cells of row j
std::vector<double> OpoAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                  const Cells& cells, Singleton singleton);

// MaxRL (arXiv:2602.02710):  A_i = (r_i - mu_g)/mu_g, 0 where mu_g <= 0. Rewards are not negative.
std::vector<double> MaxRlAdvantages(std::span<const double> rewards, std::span<const int64_t> group);

// Pass@k training (arXiv:2503.19595): the best sample gets (r_(1) - r_(2)) [/ (s_g + eps)], others 0; a tie
// for best and a group of one give 0.
std::vector<double> PassKAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                    bool divide, int64_t ddof, double eps);

// GPG (arXiv:2504.02546):  A_i = alpha (r_i - mu_g) / f_norm,  alpha = B / max(1, #{r != 0}) (batch/nonzero)
// or 1
std::vector<double> GpgAdvantages(std::span<const double> rewards, std::span<const int64_t> group,
                                  bool scale_by_nonzero, double f_norm, Singleton singleton);

// GDPO (arXiv:2601.05242): components [B, K], weights [K]:
//   a_ik = (r_ik - mu_gk)/(s_gk + eps);  A = (y - mean(y))/std(y) over all rows of y_i = sum_k w_k a_ik
// (deviation of y with n - 1 and no eps; 0 leaves y - mean). NaN components count as absent.
std::vector<double> GdpoAdvantages(std::span<const double> components, std::span<const double> weights,
                                   std::span<const int64_t> group, int64_t ddof, double eps);

// REINFORCE++-baseline (arXiv:2501.03262): r_i - mu_g (or r_i, without baseline), spread over tokens, then
// whitened over all valid cells where `whiten` is not null.  Returns [cells].
std::vector<double> ReinforcePlusPlusBaseline(std::span<const double> rewards, std::span<const int64_t> group,
                                              const Cells& cells, bool baseline, Singleton singleton,
                                              const WhitenOptions* whiten);

// Length-shaped rewards of one group (prime-rl):
//   r'_i = r_i - mean(r) (w_out n_out/max + w_in n_in/max + w_turn turns/max),  A = r' - mean(r')
// n_in = total - out; each max over the group, at least 1.
struct LengthShape {
  double w_in = 0, w_out = 0, w_turn = 0;
};
std::vector<double> LengthShapedAdvantages(std::span<const double> rewards,
                                           std::span<const int64_t> out_tokens,
                                           std::span<const int64_t> total_tokens,
                                           std::span<const int64_t> turns, const LengthShape& shape);

}  // namespace tidepool::algorithms
