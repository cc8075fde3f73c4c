#pragma once
// Log-probabilities of logits, and divergences between a student's and a teacher's. Pure, float64.

#include <cstdint>
#include <span>
#include <vector>

#include "core/algorithms/cells.h"

namespace tidepool::algorithms {

// log softmax(z / T). A logit of -inf has probability 0.
std::vector<double> LogSoftmax(std::span<const double> logits, double temperature);

// Per position, t the teacher's and s the student's distribution, both logits divided by the temperature (no
// T^2 factor):
//   kMixed  forward_weight KL(t || s) + (1 - forward_weight) KL(s || t)
//   kJsd    GKD (arXiv:2306.13649): beta KL(t || M) + (1 - beta) KL(s || M), M = beta t + (1 - beta) s; beta
//   0 is
//           KL(t || s), beta 1 is KL(s || t)
enum class Divergence { kMixed, kJsd };
struct DistillOptions {
  Divergence divergence = Divergence::kMixed;
  double weight = 1;       // forward_weight, or beta
  double temperature = 1;  // > 0
};
struct DistillResult {
  double loss = 0;                   // mean over valid cells; 0 without one
  std::vector<double> grad_student;  // [cells, vocab] d loss / d student logits
};
// student, teacher: [cells, vocab]; masked cells are not looked at.
DistillResult DistillLoss(const DistillOptions& options, std::span<const double> student,
                          std::span<const double> teacher, int64_t vocab, const Cells& cells);

// On-policy distillation (2601.02780): the advantage sg(teacher_lp - lp) of each sampled token, gamma 0,
// times coef; to be added to an RL advantage or used alone.
std::vector<double> OnPolicyDistillAdvantages(std::span<const double> logp,
                                              std::span<const double> teacher_logp, double coef,
                                              const Cells& cells);

}  // namespace tidepool::algorithms
