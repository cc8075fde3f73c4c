#pragma once
// Losses over pairs (chosen w, rejected l): reward model, DPO, IPO. Means over pairs; no pairs give 0.
// Pure, float64.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tidepool::algorithms {

// Bradley-Terry:  -log sigmoid(s_w - s_l - margin) + centre (s_w + s_l)^2.  margin: [n] or empty.
struct PairLoss {
  double loss = 0;
  std::vector<double> grad_chosen, grad_rejected;  // [n]
  double accuracy = 0;                             // share with s_w > s_l
};
PairLoss RewardModelLoss(std::span<const double> chosen, std::span<const double> rejected,
                         std::span<const double> margin, double centre);

// DPO (arXiv:2305.18290) on summed response log-probs, h = (lp_w - ref_w) - (lp_l - ref_l):
//   -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h),  e: label smoothing
// IPO (arXiv:2310.12036): (h - 1/(2 beta))^2, whatever the label smoothing, which is a matter of the sigmoid
// (OpenRLHF takes both options together and computes this). Log-probs are used as they come (TRL averages
// them over the length here, OpenRLHF sums). Implicit rewards: beta (lp - ref).
struct DpoOptions {
  bool ipo = false;
  double beta = 0.1;           // > 0
  double label_smoothing = 0;  // of DPO
};
struct DpoResult {
  double loss = 0;
  std::vector<double> grad_chosen, grad_rejected;        // [n] d loss / d policy log-prob
  std::vector<double> chosen_rewards, rejected_rewards;  // [n]
  double accuracy = 0;                                   // share with the larger reward on chosen
};
DpoResult DpoLoss(const DpoOptions& options, std::span<const double> policy_chosen,
                  std::span<const double> policy_rejected, std::span<const double> ref_chosen,
                  std::span<const double> ref_rejected);

// log(1 / (1 + e^-x)) without overflow.
double LogSigmoid(double x);

}  // namespace tidepool::algorithms
