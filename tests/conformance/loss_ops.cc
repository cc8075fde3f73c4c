// kl.*, agg.loss, loss.pg and its packed and sharded forms, loss.value.
#include <algorithm>
#include <array>

#include "core/algorithms/losses/losses.h"
#include "core/algorithms/policy_loss.h"
#include "core/algorithms/value_loss.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

// sum of weights * x over valid cells.
double Aggregate(std::span<const double> weights, std::span<const double> x, const Cells& cells) {
  double sum = 0;
  for (size_t t = 0; t < x.size(); ++t) {
    // A weight of 0 (D = 0 is refused, so: masked) must not meet an inf.
    if (cells.mask[t] != 0) sum += weights[t] * x[t];
  }
  return sum;
}

KlOptions ReadKl(Request& r, const Params& p) {
  KlOptions o;
  if (const auto kind = FromWord<KlKind>(p.Text("kind", ""))) {
    o.kind = *kind;
  } else {
    r.Fail(p.Has("kind") ? Unimplemented("unknown kl kind") : InvalidArgument("kl kind is missing"));
  }
  o.clamp_log = p.Maybe("clamp_log");
  o.clamp_out = p.Maybe("clamp_out");
  o.score_term = p.Flag("score_term");
  o.straight_through_k2 = p.Flag("straight_through_k2");
  for (const auto& c : {o.clamp_log, o.clamp_out}) {
    if (c.has_value() && *c < 0) r.Fail(InvalidArgument("a clamp of kl is below 0"));
  }
  return o;
}

Status KlEstimateOp(Request& r) {
  const Params& p = r.params().Known({"kind", "clamp_log", "score_term", "clamp_out", "straight_through_k2"});
  const KlOptions o = ReadKl(r, p);
  const Tensor logp = r.Input("logp");
  const std::vector<double> ref = r.Matrix("ref_logp", logp.shape);
  if (!r.ok()) return r.status();
  std::vector<double> kl, grad;
  for (size_t i = 0; i < ref.size(); ++i) {
    const KlToken k = KlEstimate(o, logp.data[i], ref[i]);
    kl.push_back(k.value);
    grad.push_back(k.slope);
  }
  r.Put("kl", kl, logp.shape);
  r.Put("grad_logp", grad, logp.shape);
  return OkStatus();
}

Status KlInReward(Request& r) {
  const Params& p =
      r.params().Known({"beta", "kind", "clamp_log", "score_term", "clamp_out", "straight_through_k2"});
  const KlOptions o = ReadKl(r, p);
  const double beta = p.Need("beta");
  const Cells cells = r.MaskedCells("token_rewards");
  std::vector<double> rewards = r.Matrix("token_rewards", r.shape());
  const std::vector<double> logp = r.Matrix("logp", r.shape()), ref = r.Matrix("ref_logp", r.shape());
  if (!r.ok()) return r.status();
  rewards = Masked(rewards, cells);
  for (size_t t = 0; t < rewards.size(); ++t) {
    if (cells.mask[t] != 0) rewards[t] -= beta * KlEstimate(o, logp[t], ref[t]).value;
  }
  r.PutCells("token_rewards", rewards);
  return OkStatus();
}

Status KlController(Request& r) {
  const Params& p = r.params().Known({"init", "target", "horizon", "n_steps"});
  double beta = p.Need("init");
  const double target = p.Need("target"), horizon = p.Need("horizon"), n = p.Need("n_steps");
  const std::vector<double> kl = r.Vector("kl", -1);
  if (!r.ok()) return r.status();
  std::vector<double> coef;
  for (const double k : kl) coef.push_back(beta = AdaptKlCoefficient(beta, k, target, n, horizon));
  r.PutVector("coef", coef);
  return OkStatus();
}

Status AggLoss(Request& r) {
  const Cells cells = r.MaskedCells("loss_mat");
  const Params agg = r.params().Has("agg") ? r.params().Known({"agg"}).Sub("agg") : r.params();
  if (!agg.Has("mode")) r.Fail(InvalidArgument("mode is missing"));
  const Aggregation a = r.Agg(agg, AggregationMode::kTokenMean, cells);
  // seq-mean is of a value per row: [rows], or the same value on each cell.
  const Tensor loss = r.Input("loss_mat");
  if (!r.ok()) return r.status();
  std::vector<double> x = loss.data;
  if (a.mode == AggregationMode::kSeqMean && loss.shape != r.shape() &&
      static_cast<int64_t>(x.size()) == cells.rows()) {
    x = Spread(x, cells);
  } else if (loss.shape != r.shape()) {
    return InvalidArgument("loss_mat and mask have different shapes");
  }
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, AggregationWeights(a, cells));
  r.PutScalar("loss", Aggregate(weights, x, cells));
  return OkStatus();
}

// A policy loss with its columns.
struct PolicyRequest {
  PolicyLossSpec spec;
  std::string kind;
  std::vector<double> logp, advantages, old_logp, prox_logp, behave_logp, rollout_logp, opsm_logp, ref_logp,
      entropy, is_weights, scores;
  std::vector<int64_t> versions;
  std::vector<uint8_t> selected;

  [[nodiscard]] PolicyBatch Batch() const {
    return {.logp = logp,
            .advantages = advantages,
            .old_logp = old_logp,
            .prox_logp = prox_logp,
            .behave_logp = behave_logp,
            .rollout_logp = rollout_logp,
            .opsm_logp = opsm_logp,
            .ref_logp = ref_logp,
            .entropy = entropy,
            .is_weights = is_weights,
            .versions = versions,
            .scores = scores,
            .selected = selected};
  }
};

constexpr std::array<std::string_view, 5> kExtras = {"opsm", "rollout_is", "entropy_coef", "kl",
                                                     "is_weights"};

// The options of the entry and those on x; `agg` and `plan` are read elsewhere.
void ReadSpec(Request& r, PolicyRequest& q) {
  const Params& p = r.params();
  q.kind = p.Text("kind", "");
  q.spec.loss = FindLoss(q.kind);
  if (q.spec.loss == nullptr) {
    r.Fail(p.Has("kind") ? Unimplemented("loss kind '" + q.kind + "' is not offered")
                         : InvalidArgument("kind is missing"));
    return;
  }
  std::map<std::string, Value> values;
  for (const auto& [name, value] : p.object()->items()) {
    if (value.is_null() || name == "kind" || name == "agg" || name == "plan") continue;
    const bool extra = std::ranges::count(kExtras, std::string_view(name)) > 0;
    if (extra && !q.spec.loss->extras) {
      const bool off = value == false || (name == "entropy_coef" && value == 0);
      if (!off) r.Fail(Unimplemented(name + " is not offered with " + q.kind));
    } else if (!extra && value.is_object()) {
      const Params sub = p.Sub(name);
      for (const auto& [field, inner] : value.items()) values[name + "." + field] = sub.OptionValue(field);
      // An object that is there asks for the part, with whatever it says.
      if (name == "behave" && std::holds_alternative<std::monostate>(values["behave.level"]))
        values["behave.level"] = std::string("token");
    } else if (!extra) {
      values[name] = p.OptionValue(name);
    }
  }
  if (auto options = Options::Make(q.spec.loss->options, values, /*fill=*/false); options.ok()) {
    q.spec.options = std::move(options).value();
  } else {
    r.Fail(options.status());
  }
  if (!q.spec.loss->extras) return;
  if (p.Has("opsm")) {
    const Params opsm = p.Sub("opsm").Known({"delta", "against"});
    q.spec.opsm_delta = opsm.Need("delta");
  }
  if (p.Has("rollout_is")) {
    const Params is = p.Sub("rollout_is").Known({"form", "low", "high"});
    if (const auto form = ParseWord<RolloutIsForm>("rollout_is form", is.Text("form", "")); form.ok()) {
      q.spec.rollout_is = form.value();
    } else {
      r.Fail(is.Has("form") ? form.status() : InvalidArgument("rollout_is.form is missing"));
    }
    q.spec.rollout_is_low = is.Maybe("low");
    q.spec.rollout_is_high = is.Maybe("high");
  }
  q.spec.entropy_coef = p.Number("entropy_coef", 0);
  if (p.Has("kl")) {
    const Params kl = p.Sub("kl").Known(
        {"beta", "kind", "clamp_log", "clamp_out", "score_term", "is_weighted", "straight_through_k2"});
    q.spec.kl_beta = kl.Need("beta");
    q.spec.kl = ReadKl(r, kl);
    q.spec.kl_is_weighted = kl.Flag("is_weighted");
  }
}

void ReadColumns(Request& r, const Cells& cells, PolicyRequest& q) {
  const std::vector<int64_t>& shape = r.shape();
  const PolicyLossSpec& spec = q.spec;
  const auto needs = [&](Column c) { return std::ranges::count(spec.loss->needs, c) > 0; };
  q.logp = r.Matrix("logp", shape);
  if (needs(Column::kAdvantages) || spec.opsm_delta) q.advantages = r.Matrix("advantages", shape);
  const bool loglinear = !spec.options.Text("prox").empty();
  if (needs(Column::kOld) || spec.rollout_is || spec.kl_is_weighted) q.old_logp = r.Matrix("old_logp", shape);
  if (needs(Column::kProximal) && !loglinear)
    q.prox_logp = r.Matrix(r.Has("prox_logp") ? "prox_logp" : "old_logp", shape);
  const std::string_view beh = r.Has("behave_logp") ? "behave_logp" : "rollout_logp";
  if (needs(Column::kBehaviour) || loglinear || !spec.options.Text("behave.level").empty())
    q.behave_logp = r.Matrix(beh, shape);
  if (spec.rollout_is)
    q.rollout_logp = r.Matrix(r.Has("rollout_logp") ? "rollout_logp" : "behave_logp", shape);
  if (spec.opsm_delta)
    q.opsm_logp = r.Matrix(
        r.params().Sub("opsm").Text("against", r.Has("rollout_logp") ? "rollout_logp" : "behave_logp"),
        shape);
  if (needs(Column::kReference) || spec.kl_beta) q.ref_logp = r.Matrix("ref_logp", shape);
  if (spec.entropy_coef != 0) q.entropy = r.Matrix("entropy", shape);
  if (spec.loss->extras && r.Has("is_weights") && r.params().Flag("is_weights", true))
    q.is_weights = r.Matrix("is_weights", shape);
  if (loglinear) {
    q.versions = r.Integers("versions", cells.size());
    (void)r.Matrix("versions", shape);
  }
  if (needs(Column::kScores)) q.scores = r.Vector("scores", cells.rows());
  if (!r.ok()) return;
  PolicyBatch clean = q.Batch();
  const std::vector<double> logp = Masked(q.logp, cells),
                            advantages = q.advantages.empty() ? q.advantages : Masked(q.advantages, cells);
  clean.logp = logp;
  clean.advantages = advantages;
  if (spec.loss->whole_batch) q.selected = SelectTokens(spec, cells, clean);
}

StatusOr<Aggregation> ReadAgg(Request& r, const Cells& cells, const PolicyRequest& q) {
  TP_ASSIGN_OR_RETURN(
      const AggregationMode otherwise,
      ParseWord<AggregationMode>("aggregation mode", q.spec.loss->row_value ? "seq-mean" : "token-mean"));
  Aggregation a = r.Agg(r.params().Sub("agg"), otherwise, cells);
  if (!r.ok()) return r.status();
  if (q.spec.loss->row_value != (a.mode == AggregationMode::kSeqMean)) {
    return Unimplemented(q.kind + " is not offered with aggregation " + std::string(Name(a.mode)));
  }
  if (q.kind == "decoupled") {
    if (a.mode != AggregationMode::kTokenMean) return Unimplemented("decoupled is offered with token-mean");
    TP_ASSIGN_OR_RETURN(const std::optional<double> kept, TokensAfterRejection(q.spec, cells, q.Batch()));
    if (kept) a.global_tokens = kept;
  }
  return a;
}

Status PutLoss(Request& r, const Cells& cells, const PolicyRequest& q, const PolicyLossResult& out) {
  r.PutScalar("loss", out.loss);
  r.PutCells("grad_logp", out.grad_logp);
  const auto share = [&](const std::vector<uint8_t>& bits) {
    return TokenMean(std::vector<double>(bits.begin(), bits.end()), cells);
  };
  if (q.kind == "ppo" || q.kind == "gspo" || q.kind == "cispo")
    r.PutScalar("clip_frac", share(out.terms.clipped));
  if (q.kind == "ppo") {
    r.PutScalar("clip_frac_lower", share(out.terms.dual_clipped));
    r.PutScalar("ppo_kl", TokenMean(out.terms.kl, cells));
  }
  return OkStatus();
}

Status RunPolicy(Request& r, const Cells& cells) {
  if (!r.ok()) return r.status();
  if (r.params().object() == nullptr) return InvalidArgument("kind is missing");
  PolicyRequest q;
  ReadSpec(r, q);
  if (!r.ok()) return r.status();
  ReadColumns(r, cells, q);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const Aggregation a, ReadAgg(r, cells, q));
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, AggregationWeights(a, cells));
  TP_ASSIGN_OR_RETURN(const PolicyLossResult out, PolicyLoss(q.spec, cells, q.Batch(), weights));
  return PutLoss(r, cells, q, out);
}

Status Pg(Request& r) {
  const Cells cells = r.MaskedCells("logp");
  return RunPolicy(r, cells);
}

Status PgPacked(Request& r) {
  const Cells flat = r.MaskedCells("logp");
  const std::vector<int64_t> begin = r.Integers("cu_seqlens", -1);
  if (!r.ok()) return r.status();
  if (r.shape().size() != 1) return InvalidArgument("packed inputs have one dimension");
  if (begin.empty() || begin.front() != 0 || begin.back() != flat.size() || !std::ranges::is_sorted(begin)) {
    return InvalidArgument("cu_seqlens does not rise from 0 to the " + std::to_string(flat.size()) +
                           " cells");
  }
  Cells cells;
  cells.begin = begin;
  cells.mask = flat.mask;
  return RunPolicy(r, cells);
}

template <typename T>
std::vector<T> Gather(const std::vector<T>& x, const std::vector<int64_t>& from) {
  std::vector<T> out;
  if (x.empty()) return out;
  for (const int64_t i : from) out.push_back(x[static_cast<size_t>(i)]);
  return out;
}

// Every micro-batch of every rank computes its own rows with weights of the whole batch, times the number of
// ranks; gradients are then averaged over the ranks.
Status Sharded(Request& r) {
  const Cells cells = r.MaskedCells("logp");
  if (!r.ok()) return r.status();
  if (r.params().object() == nullptr) return InvalidArgument("kind is missing");
  const Json* plan = r.params().Find("plan");
  if (plan == nullptr) plan = r.Raw("plan");
  if (plan == nullptr || !plan->is_array())
    return InvalidArgument("plan is missing; expected lists of rows by rank and micro-batch");
  PolicyRequest q;
  ReadSpec(r, q);
  if (!r.ok()) return r.status();
  ReadColumns(r, cells, q);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(Aggregation a, ReadAgg(r, cells, q));
  const auto ranks = static_cast<double>(plan->size());
  if (!r.params().Sub("agg").Has("dp_size")) a.dp_size = 1;
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, AggregationWeights(a, cells));
  // The three modes that know D carry it themselves where it was given; else it goes on here.
  const bool carried = r.params().Sub("agg").Has("dp_size") && (a.mode == AggregationMode::kTokenMean ||
                                                                a.mode == AggregationMode::kSeqMeanTokenSum ||
                                                                a.mode == AggregationMode::kSeqMeanTokenMean);
  const double on_top = carried ? 1 : ranks;

  double loss = 0;
  std::vector<double> grad(cells.mask.size(), 0.0);
  std::vector<uint8_t> seen(static_cast<size_t>(cells.rows()), 0);
  for (const Json& rank : *plan) {
    if (!rank.is_array()) return InvalidArgument("plan: a rank is not a list of micro-batches");
    double rank_loss = 0;
    std::vector<double> rank_grad(grad.size(), 0.0);
    for (const Json& micro : rank) {
      if (!micro.is_array()) return InvalidArgument("plan: a micro-batch is not a list of rows");
      std::vector<int64_t> rows, from;
      for (const Json& row : micro) {
        const int64_t i = row.is_number_integer() ? row.get<int64_t>() : -1;
        if (i < 0 || i >= cells.rows() || seen[static_cast<size_t>(i)]++ != 0)
          return InvalidArgument("plan: row " + row.dump() + " does not exist or is there twice");
        rows.push_back(i);
      }
      const Cells part = cells.Rows(rows, from);
      PolicyRequest mine;
      mine.spec = q.spec;
      for (const auto column :
           {&PolicyRequest::logp, &PolicyRequest::advantages, &PolicyRequest::old_logp,
            &PolicyRequest::prox_logp, &PolicyRequest::behave_logp, &PolicyRequest::rollout_logp,
            &PolicyRequest::opsm_logp, &PolicyRequest::ref_logp, &PolicyRequest::entropy,
            &PolicyRequest::is_weights}) {
        mine.*column = Gather(q.*column, from);
      }
      mine.versions = Gather(q.versions, from);
      mine.selected = Gather(q.selected, from);
      mine.scores = Gather(q.scores, rows);
      std::vector<double> w = Gather(weights, from);
      for (double& v : w) v *= on_top;
      TP_ASSIGN_OR_RETURN(const PolicyLossResult out, PolicyLoss(mine.spec, part, mine.Batch(), w));
      rank_loss += out.loss;
      for (size_t t = 0; t < from.size(); ++t) rank_grad[static_cast<size_t>(from[t])] += out.grad_logp[t];
    }
    loss += rank_loss / ranks;
    for (size_t t = 0; t < grad.size(); ++t) grad[t] += rank_grad[t] / ranks;
  }
  for (int64_t i = 0; i < cells.rows(); ++i) {
    if (seen[static_cast<size_t>(i)] == 0 && cells.Tokens(i) > 0)
      return InvalidArgument("plan: row " + std::to_string(i) + " is nowhere");
  }
  r.PutScalar("loss", loss);
  r.PutCells("grad_logp", grad);
  return OkStatus();
}

Status ValueLossOp(Request& r) {
  const Params& p = r.params().Known({"kind", "clip", "factor", "huber_delta", "agg"});
  const Cells cells = r.MaskedCells("values");
  ValueLossOptions o{.huber = p.Choice("kind", "mse", {"mse", "huber"}) == "huber",
                     .clip = p.Maybe("clip"),
                     .factor = p.Number("factor", 1)};
  if (o.huber) o.huber_delta = p.Need("huber_delta");
  const std::vector<double> values = r.Matrix("values", r.shape()), returns = r.Matrix("returns", r.shape());
  const std::vector<double> old = o.clip ? r.Matrix("old_values", r.shape()) : std::vector<double>();
  const Aggregation a = r.Agg(p.Sub("agg"), AggregationMode::kTokenMean, cells);
  if (!r.ok()) return r.status();
  TP_ASSIGN_OR_RETURN(const std::vector<double> weights, AggregationWeights(a, cells));
  const ValueLossResult out = ValueLoss(o, values, old, returns, cells, weights);
  r.PutScalar("loss", out.loss);
  r.PutCells("grad_values", out.grad_values);
  if (o.clip) r.PutScalar("clip_frac", out.clip_frac);
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> LossOperations() {
  return {{"kl.estimate", KlEstimateOp},
          {"kl.in_reward", KlInReward},
          {"kl.controller", KlController},
          {"agg.loss", AggLoss},
          {"loss.pg", Pg},
          {"loss.pg_packed", PgPacked},
          {"loss.sharded", Sharded},
          {"loss.value", ValueLossOp}};
}

}  // namespace tidepool::algorithms::conformance
