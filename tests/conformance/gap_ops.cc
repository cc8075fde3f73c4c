// is.*, mask.*, stale.*
#include "core/algorithms/importance.h"
#include "core/algorithms/policy_loss.h"
#include "core/algorithms/staleness.h"
#include "tests/conformance/formulas.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

struct Gap {
  Cells cells;
  std::vector<double> train, rollout;
};
Gap Read(Request& r) {
  Gap g;
  g.cells = r.MaskedCells("train_logp");
  g.train = r.Matrix("train_logp", r.shape());
  g.rollout = r.Matrix("rollout_logp", r.shape());
  return g;
}

Status Weights(Request& r) {
  const Params& p = r.params().Known({"level", "log_clamp", "form", "low", "high", "normalize_mean"});
  const Gap g = Read(r);
  ImportanceOptions o;
  if (const auto level = ParseWord<GapLevel>("level", p.Text("level", "token")); level.ok()) {
    o.level = level.value();
  } else {
    r.Fail(level.status());
  }
  o.log_clamp = p.Maybe("log_clamp");
  o.truncate = p.Has("form") && p.Choice("form", "", {"truncate"}) == "truncate";
  o.low = p.Maybe("low");
  o.high = p.Maybe("high");
  o.normalize_mean = p.Flag("normalize_mean");
  if (o.high && !(*o.high > 0)) r.Fail(InvalidArgument("high has to be above 0"));
  if (!r.ok()) return r.status();
  const ImportanceResult out = ImportanceWeights(o, g.train, g.rollout, g.cells);
  r.PutCells("weights", out.weights);
  r.PutScalar("mean", out.mean);
  r.PutScalar("max", out.max);
  r.PutScalar("min", out.min);
  r.PutScalar("frac_high", out.frac_high);
  r.PutScalar("frac_low", out.frac_low);
  r.PutScalar("ess", out.ess);
  return OkStatus();
}

Status RejectOp(Request& r) {
  const Params& p = r.params().Known({"criterion", "low", "high", "threshold", "log_clamp"});
  const Gap g = Read(r);
  if (!p.Has("criterion")) r.Fail(InvalidArgument("criterion is missing"));
  // Numbers may be text.
  const auto number = [&](const char* name) -> std::optional<double> {
    if (const Json* v = p.Find(name); v != nullptr && v->is_string()) {
      char* end = nullptr;
      const std::string text = v->get<std::string>();
      const double value = std::strtod(text.c_str(), &end);
      if (text.empty() || *end != 0) r.Fail(InvalidArgument(std::string(name) + " is not a number"));
      return value;
    }
    return p.Maybe(name);
  };
  const std::optional<double> low = number("low"), high = number("high"), log_clamp = number("log_clamp");
  std::string threshold;
  if (const Json* v = p.Find("threshold"))
    threshold =
        v->is_string() ? v->get<std::string>() : v->dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto rules = ParseRejectRules(p.Text("criterion", ""), threshold, low, high);
  if (!r.ok()) return r.status();
  if (!rules.ok()) return rules.status();
  const RejectResult out = Reject(rules.value(), log_clamp, g.train, g.rollout, g.cells);
  r.PutMask("mask", out.mask);
  r.PutScalar("masked_frac", out.masked_frac);
  r.PutScalar("seq_masked_frac", out.seq_masked_frac);
  return OkStatus();
}

Status Behave(Request& r) {
  const Params& p = r.params().Known({"metric", "level", "agg", "lower", "upper", "action"});
  const Gap g = Read(r);
  const auto o = ParseBehave(p.Text("level", "token"), p.Text("action", "mask"), p.Text("metric", "ratio"),
                             p.Text("agg", "mean"), p.Maybe("lower"), p.Maybe("upper"));
  if (!r.ok()) return r.status();
  if (!o.ok()) return o.status();
  const BehaveResult out = BehaviourWeights(o.value(), g.train, g.rollout, g.cells);
  r.PutCells("weights", out.weights);
  r.PutMask("mask", out.mask);
  r.PutScalar("filtered_frac", out.filtered_frac);
  return OkStatus();
}

Status Metrics(Request& r) {
  r.params().Known({});
  const Gap g = Read(r);
  if (!r.ok()) return r.status();
  const GapMetrics m = MeasureGap(g.train, g.rollout, g.cells);
  r.PutScalar("kl", m.kl);
  r.PutScalar("k3_kl", m.k3_kl);
  r.PutScalar("chi2_token", m.chi2_token);
  r.PutScalar("chi2_seq", m.chi2_seq);
  r.PutScalar("training_ppl", m.training_ppl);
  r.PutScalar("rollout_ppl", m.rollout_ppl);
  r.PutScalar("log_ppl_diff", m.log_ppl_diff);
  r.PutScalar("log_ppl_abs_diff", m.log_ppl_abs_diff);
  r.PutScalar("ppl_ratio", m.ppl_ratio);
  return OkStatus();
}

Status M2po(Request& r) {
  const double threshold = r.params().Known({"threshold"}).Need("threshold");
  const Cells cells = r.MaskedCells("old_logp");
  const std::vector<double> beh = r.Matrix("old_logp", r.shape()), prox = r.Matrix("prox_logp", r.shape());
  if (!r.ok()) return r.status();
  r.PutMask("mask", SecondMomentMask(beh, prox, threshold, cells));
  return OkStatus();
}

Status Opsm(Request& r) {
  const double delta = r.params().Known({"delta"}).Need("delta");
  const Cells cells = r.MaskedCells("logp");
  const std::vector<double> logp = r.Matrix("logp", r.shape()), old = r.Matrix("old_logp", r.shape()),
                            advantages = r.Matrix("advantages", r.shape());
  if (!r.ok()) return r.status();
  r.PutMask("mask", OffPolicySequenceMask(logp, old, advantages, delta, cells));
  return OkStatus();
}

Status ProxLogp(Request& r) {
  const int64_t version = r.params().Known({"current_version"}).NeedInteger("current_version");
  const Tensor beh = r.Input("behave_logp");
  const std::vector<double> logp = r.Matrix("logp", beh.shape);
  const std::vector<int64_t> versions = r.Integers("versions", static_cast<int64_t>(beh.data.size()));
  if (!r.ok()) return r.status();
  std::vector<double> loglinear, linear;
  for (size_t t = 0; t < logp.size(); ++t) {
    const double share = ProximalShare(version, versions[t]);
    loglinear.push_back(LogLinearProximal(beh.data[t], logp[t], share));
    linear.push_back(LinearProximal(beh.data[t], logp[t], share));
  }
  r.Put("loglinear", loglinear, beh.shape);
  r.Put("linear", linear, beh.shape);
  return OkStatus();
}

// Counts far beyond any run are refused, so that products stay inside 64 bits.
int64_t Bounded(Request& r, const char* name, int64_t value) {
  constexpr int64_t kLargest = 2'000'000'000;
  if (value > kLargest || value < -kLargest) r.Fail(InvalidArgument(std::string(name) + " is beyond 2e9"));
  return value;
}

Status Capacity(Request& r) {
  const Params& p = r.params().Known({"max_staleness", "batch_size", "max_concurrent"});
  const int64_t eta = Bounded(r, "max_staleness", p.NeedInteger("max_staleness")),
                batch = Bounded(r, "batch_size", p.NeedInteger("batch_size"));
  const int64_t concurrent = Bounded(r, "max_concurrent", p.NeedInteger("max_concurrent"));
  if (r.ok() && (batch < 1 || concurrent < 1))
    return InvalidArgument("batch_size and max_concurrent have to be at least 1");
  const int64_t version = Bounded(r, "version", r.IntegerScalar("version"));
  const int64_t accepted = r.IntegerScalar("accepted"), running = r.IntegerScalar("running");
  if (!r.ok()) return r.status();
  r.PutInteger("capacity", RolloutCapacity(eta, batch, concurrent, version, accepted, running));
  return OkStatus();
}

Status Episode(Request& r) {
  const Params& p = r.params().Known({"train_version", "max_off_policy"});
  const int64_t version = p.NeedInteger("train_version");
  const std::optional<double> most = p.Maybe("max_off_policy");
  const int64_t start = r.IntegerScalar("start_version"), end = r.IntegerScalar("end_version");
  if (!r.ok()) return r.status();
  const EpisodeAge age = AgeOfEpisode(version, start, end, most);
  r.PutInteger("total", age.total);
  r.PutInteger("in_flight", age.in_flight);
  r.PutInteger("in_queue", age.in_queue);
  r.PutJson("fresh", age.fresh);
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> GapOperations() {
  return {{"is.weights", Weights},       {"is.reject", RejectOp},      {"is.behave", Behave},
          {"is.metrics", Metrics},       {"mask.m2po", M2po},          {"mask.opsm", Opsm},
          {"stale.prox_logp", ProxLogp}, {"stale.capacity", Capacity}, {"stale.episode", Episode}};
}

}  // namespace tidepool::algorithms::conformance
