// loss.sft, loss.rm, loss.dpo and distillation.
#include "core/algorithms/distillation.h"
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/preference.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

Status Sft(Request& r) {
  const Params& p = r.params().Known({"agg"});
  const Cells cells = r.MaskedCells("logp");
  const std::vector<double> logp = r.Matrix("logp", r.shape());
  const Aggregation a = r.Agg(p.Sub("agg"), AggregationMode::kTokenMean, cells);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, AggregationWeights(a, cells));
  TP_ASSIGN_OR_RETURN(const PolicyLossResult out,
                      PolicyLoss({.loss = FindLoss("ce")}, cells, {.logp = logp}, weights));
  r.PutScalar("loss", out.loss);
  r.PutCells("grad_logp", out.grad_logp);
  return OkStatus();
}

Status RewardModel(Request& r) {
  const Params& p = r.params().Known({"center_coef"});
  const std::vector<double> chosen = r.Vector("chosen", -1);
  const auto n = static_cast<int64_t>(chosen.size());
  const std::vector<double> rejected = r.Vector("rejected", n),
                            margin = r.Has("margin") ? r.Vector("margin", n) : std::vector<double>();
  const double centre = p.Number("center_coef", 0);
  if (!r.ok()) return r.status();
  const PairLoss out = RewardModelLoss(chosen, rejected, margin, centre);
  r.PutScalar("loss", out.loss);
  r.PutVector("grad_chosen", out.grad_chosen);
  return OkStatus();
}

Status Dpo(Request& r) {
  const Params& p = r.params().Known({"kind", "beta", "label_smoothing"});
  const DpoOptions o{.ipo = p.Choice("kind", "sigmoid", {"sigmoid", "ipo"}) == "ipo",
                     .beta = p.Need("beta"),
                     .label_smoothing = p.Number("label_smoothing", 0)};
  const std::vector<double> chosen = r.Vector("policy_chosen", -1);
  const auto n = static_cast<int64_t>(chosen.size());
  const std::vector<double> rejected = r.Vector("policy_rejected", n), ref_chosen = r.Vector("ref_chosen", n),
                            ref_rejected = r.Vector("ref_rejected", n);
  if (!r.ok()) return r.status();
  if (!(o.beta > 0)) return InvalidArgument("beta has to be above 0");
  const DpoResult out = DpoLoss(o, chosen, rejected, ref_chosen, ref_rejected);
  r.PutScalar("loss", out.loss);
  r.PutVector("grad_policy_chosen", out.grad_chosen);
  r.PutVector("chosen_rewards", out.chosen_rewards);
  r.PutVector("rejected_rewards", out.rejected_rewards);
  return OkStatus();
}

Status Divergences(Request& r, const DistillOptions& o) {
  const Tensor student = r.Input("student_logits");
  const Cells cells = r.Has("mask") ? r.MaskedCells("mask") : Cells();
  const std::vector<double> teacher = r.Matrix("teacher_logits", student.shape);
  if (!r.ok()) return r.status();
  std::vector<int64_t> positions = student.shape;
  const int64_t vocab = positions.empty() ? 0 : positions.back();
  if (vocab < 1) return InvalidArgument("student_logits has no vocabulary dimension");
  positions.pop_back();
  if (r.Has("mask") && positions != r.shape())
    return InvalidArgument("mask does not have the shape of the positions of student_logits");
  if (!(o.temperature > 0)) return InvalidArgument("temperature has to be above 0");
  const Cells all =
      r.Has("mask") ? cells : Cells::Packed({0, static_cast<int64_t>(student.data.size()) / vocab});
  const DistillResult out = DistillLoss(o, student.data, teacher, vocab, all);
  r.PutScalar("loss", out.loss);
  r.Put("grad_student", out.grad_student, student.shape);
  return OkStatus();
}

Status Jsd(Request& r) {
  const Params& p = r.params().Known({"beta", "temperature"});
  const DistillOptions o{Divergence::kJsd, p.Need("beta"), p.Number("temperature", 1)};
  if (r.ok() && !(o.weight >= 0 && o.weight <= 1)) return InvalidArgument("beta is not in [0, 1]");
  return Divergences(r, o);
}

Status Distill(Request& r) {
  const Params& p = r.params().Known({"kind", "mixed_weight", "temperature"});
  if (!p.Has("kind")) return InvalidArgument("kind is missing");
  const std::string kind = p.Choice("kind", "", {"forward", "reverse", "mixed"});
  const double forward = kind == "forward" ? 1 : kind == "reverse" ? 0 : p.Need("mixed_weight");
  return Divergences(r, {Divergence::kMixed, forward, p.Number("temperature", 1)});
}

}  // namespace

std::vector<NamedOperation> SupervisedOperations() {
  return {{"loss.sft", Sft},
          {"loss.rm", RewardModel},
          {"loss.dpo", Dpo},
          {"loss.jsd", Jsd},
          {"loss.distill", Distill}};
}

}  // namespace tidepool::algorithms::conformance
