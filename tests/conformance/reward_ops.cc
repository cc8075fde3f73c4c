// reward.*, filter.*, metric.*, pack.*
#include "core/algorithms/batching.h"
#include "core/algorithms/distillation.h"
#include "core/algorithms/metrics.h"
#include "core/algorithms/rewards.h"
#include "tests/conformance/formulas.h"
#include "tests/conformance/partition.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

Status Overlong(Request& r) {
  const Params& p = r.params().Known({"max_len", "buffer", "factor"});
  const double limit = p.Need("max_len"), buffer = p.Need("buffer"), factor = p.Number("factor", 1);
  const Tensor lengths = r.Input("lengths");
  if (!r.ok()) return r.status();
  std::vector<double> penalty;
  for (const double n : lengths.data) penalty.push_back(OverlongPenalty(n, limit, buffer, factor));
  r.Put("penalty", penalty, lengths.shape);
  return OkStatus();
}

Status Truncated(Request& r) {
  const double coef = r.params().Known({"coef"}).Need("coef");
  const Tensor rewards = r.Input("rewards");
  const std::vector<uint8_t> truncated = r.Bits("truncated", rewards.shape);
  if (!r.ok()) return r.status();
  std::vector<double> out;
  for (size_t i = 0; i < truncated.size(); ++i)
    out.push_back(TruncatedReward(rewards.data[i], truncated[i] != 0, coef));
  r.Put("rewards", out, rewards.shape);
  return OkStatus();
}

Status Repetition(Request& r) {
  const Params& p = r.params().Known({"ngram", "max_penalty"});
  const int64_t n = p.NeedInteger("ngram");
  const double most = p.Need("max_penalty");
  if (r.ok() && n < 1) return InvalidArgument("ngram has to be at least 1");
  const Json* rows = r.Raw("ids");
  if (rows == nullptr) return InvalidArgument("input ids is missing");
  if (rows->is_object()) {  // a tensor [rows, tokens]
    const Tensor t = r.Input("ids");
    const std::vector<int64_t> flat = r.Integers("ids", -1);
    if (!r.ok()) return r.status();
    if (t.shape.size() != 2) return InvalidArgument("ids is not [rows, tokens]");
    std::vector<double> penalty;
    const auto width = static_cast<size_t>(t.shape[1]);
    for (int64_t i = 0; i < t.shape[0]; ++i)
      penalty.push_back(
          RepetitionPenalty(std::span(flat).subspan(static_cast<size_t>(i) * width, width), n, most));
    r.PutVector("penalty", penalty);
    return OkStatus();
  }
  if (!rows->is_array() || !r.ok())
    return r.ok() ? InvalidArgument("ids is not a list of lists") : r.status();
  std::vector<double> penalty;
  for (const Json& row : *rows) {
    const Json wrapped = {{"inputs", {{"row", row}}}};
    Request inner(wrapped);
    const std::vector<int64_t> ids = inner.Integers("row", -1);
    if (!inner.ok()) return inner.status();
    penalty.push_back(RepetitionPenalty(ids, n, most));
  }
  r.PutVector("penalty", penalty);
  return OkStatus();
}

Status Normalise(Request& r) {
  const Params& p = r.params().Known({"mean", "std", "leave_one_out", "ddof", "eps"});
  const auto scope = [&](const char* name) {
    if (!p.Has(name)) return Scope::kNone;
    return FromWord<Scope>(p.Choice(name, "", {"batch", "group", "none"})).value_or(Scope::kNone);
  };
  const NormaliseOptions o{.mean = scope("mean"),
                           .deviation = scope("std"),
                           .leave_one_out = p.Flag("leave_one_out"),
                           .ddof = p.Integer("ddof", 1),
                           .eps = p.Number("eps", 0)};
  const std::vector<double> rewards = r.Vector("rewards", -1);
  std::vector<int64_t> group(rewards.size(), 0);
  if (o.mean == Scope::kGroup || o.deviation == Scope::kGroup || r.Has("group"))
    group = r.Ids("group", static_cast<int64_t>(rewards.size()));
  if (!r.ok()) return r.status();
  r.PutVector("rewards", NormaliseRewards(rewards, group, o));
  return OkStatus();
}

Status FilterGroup(Request& r) {
  const Params& p = r.params().Known({"rule", "threshold", "ddof"});
  (void)p.Choice("rule", "std", {"std"});
  const double threshold = p.Number("threshold", 0);
  const int64_t ddof = p.Integer("ddof", 1);
  const Tensor rewards = r.Input("rewards");
  if (!r.ok()) return r.status();
  if (rewards.shape.size() != 2) return InvalidArgument("rewards is not [prompts, samples]");
  std::vector<bool> keep;
  const auto width = static_cast<size_t>(rewards.shape[1]);
  for (int64_t i = 0; i < rewards.shape[0]; ++i)
    keep.push_back(
        KeepGroup(std::span(rewards.data).subspan(static_cast<size_t>(i) * width, width), threshold, ddof));
  r.PutBits("keep", keep);
  return OkStatus();
}

Status WhitenOp(Request& r) {
  const Params& p = r.params().Known({"ddof", "eps", "eps_mode", "shift_mean"});
  Tensor x = r.Input("x");
  const std::vector<uint8_t> mask =
      r.Has("mask") ? r.Bits("mask", x.shape) : std::vector<uint8_t>(x.data.size(), 1);
  WhitenOptions o{
      .ddof = p.Integer("ddof", 1), .eps = p.Number("eps", 0), .shift_mean = p.Flag("shift_mean", true)};
  const auto mode = ParseWord<EpsMode>("eps_mode", p.Text("eps_mode", "add_var"));
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(o.eps_mode, mode);
  for (size_t i = 0; i < mask.size(); ++i) x.data[i] = mask[i] != 0 ? x.data[i] : 0;
  Whiten(x.data, mask, o);
  r.Put("x", x.data, x.shape);
  return OkStatus();
}

Status Explained(Request& r) {
  r.params().Known({});
  const Tensor returns = r.Input("returns");
  const std::vector<double> values = r.Matrix("values", returns.shape);
  const std::vector<uint8_t> mask =
      r.Has("mask") ? r.Bits("mask", returns.shape) : std::vector<uint8_t>(returns.data.size(), 1);
  if (!r.ok()) return r.status();
  r.PutScalar("explained_variance", ExplainedVariance(returns.data, values, mask));
  return OkStatus();
}

Status PassAtKOp(Request& r) {
  const int64_t k = r.params().Known({"k"}).NeedInteger("k");
  const Tensor correct = r.Input("correct");
  const std::vector<uint8_t> bits = r.Bits("correct", correct.shape);
  if (!r.ok()) return r.status();
  if (correct.shape.size() != 2) return InvalidArgument("correct is not [problems, samples]");
  const int64_t problems = correct.shape[0], n = correct.shape[1];
  if (k < 1 || k > n)
    return InvalidArgument("k is " + std::to_string(k) + "; expected 1 to the " + std::to_string(n) +
                           " samples");
  double sum = 0;
  for (int64_t i = 0; i < problems; ++i) {
    int64_t c = 0;
    for (int64_t j = 0; j < n; ++j) c += bits[static_cast<size_t>(i * n + j)];
    sum += PassAtK(n, c, k);
  }
  r.PutScalar("pass_at_k", problems == 0 ? 0 : sum / static_cast<double>(problems));
  return OkStatus();
}

Status LogprobEntropy(Request& r) {
  const double temperature = r.params().Known({"temperature"}).Number("temperature", 1);
  const Tensor logits = r.Input("logits");
  if (!r.ok()) return r.status();
  if (logits.shape.empty() || logits.shape.back() < 1)
    return InvalidArgument("logits has no vocabulary dimension");
  if (!(temperature > 0)) return InvalidArgument("temperature has to be above 0");
  const auto vocab = static_cast<size_t>(logits.shape.back());
  const std::vector<int64_t> positions(logits.shape.begin(), logits.shape.end() - 1);
  const size_t n = logits.data.size() / vocab;
  const std::vector<int64_t> labels = r.Integers("labels", static_cast<int64_t>(n));
  if (!r.ok()) return r.status();
  std::vector<double> logp, entropy, grad;
  for (size_t i = 0; i < n; ++i) {
    if (labels[i] < 0 || labels[i] >= static_cast<int64_t>(vocab))
      return InvalidArgument("label " + std::to_string(labels[i]) + " is outside the vocabulary of " +
                             std::to_string(vocab));
    const TokenDistribution d =
        LogProbAndEntropy(std::span(logits.data).subspan(i * vocab, vocab), labels[i], temperature);
    logp.push_back(d.logp);
    entropy.push_back(d.entropy);
    grad.insert(grad.end(), d.grad_logits.begin(), d.grad_logits.end());
  }
  r.Put("logp", logp, positions);
  r.Put("entropy", entropy, positions);
  r.Put("grad_logits", grad, logits.shape);
  return OkStatus();
}

Status PackBudget(Request& r) {
  const int64_t capacity = r.params().Known({"capacity"}).NeedInteger("capacity");
  const std::vector<int64_t> lengths = r.Integers("lengths", -1);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const auto bins, FirstFitDecreasing(lengths, capacity));
  r.PutJson("bins", bins);
  return OkStatus();
}

Status PackBalance(Request& r) {
  const Params& p = r.params().Known({"k", "equal_size"});
  const int64_t k = p.NeedInteger("k");
  const bool equal = p.Flag("equal_size");
  const std::vector<int64_t> lengths = r.Integers("lengths", -1);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const auto bins, BalancedPartition(lengths, k, equal));
  r.PutJson("bins", bins);
  r.PutInteger("spread", Spread(lengths, bins));
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> RewardOperations() {
  return {{"reward.overlong", Overlong},
          {"reward.truncated", Truncated},
          {"reward.repetition", Repetition},
          {"reward.normalise", Normalise},
          {"filter.group", FilterGroup},
          {"metric.whiten", WhitenOp},
          {"metric.explained_variance", Explained},
          {"metric.pass_at_k", PassAtKOp},
          {"metric.logprob_entropy", LogprobEntropy},
          {"pack.budget", PackBudget},
          {"pack.balance", PackBalance}};
}

}  // namespace tidepool::algorithms::conformance
