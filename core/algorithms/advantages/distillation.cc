// A teacher in place of rewards (distillation.h).
#include "core/algorithms/distillation.h"

#include "core/algorithms/advantages/parts.h"

namespace tidepool::algorithms {
namespace {

std::vector<double> Teacher(const Options& o, const AdvantageInput& in) {
  return OnPolicyDistillAdvantages(in.old_logp, in.teacher_logp, o.Number("coef", 1), *in.cells);
}

}  // namespace

TP_PLUGIN(Advantage, on_policy_distill) {
  return {.paper = "on-policy distillation, arXiv:2601.02780",
          .formula = "coef (teacher_lp - lp) of each token; rewards do not count",
          .options = {{.name = "coef", .fallback = 1.0, .lo = 0, .doc = "scale"}},
          .compares = false,
          .needs = "a teacher (algorithm.teacher)",
          .provisions = {Provision::kTeacher},
          .compute = Teacher};
}

TP_PLUGIN(Algorithm, on_policy_distill) {
  return {.paper = "on-policy distillation, arXiv:2601.02780",
          .doc = "the teacher's log-probs of the student's own samples",
          .advantage = {"on_policy_distill"},
          .loss = {"reinforce"}};
}

}  // namespace tidepool::algorithms
