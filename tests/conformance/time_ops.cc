// adv.* over tokens, steps of environments and agents.
#include "core/algorithms/gae.h"
#include "core/algorithms/gigpo.h"
#include "core/algorithms/returns.h"
#include "tests/conformance/formulas.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

Status Put(Request& r, const ReturnsAndAdvantages& result) {
  r.PutCells("returns", result.returns);
  r.PutCells("advantages", result.advantages);
  return OkStatus();
}

Status ReMaxOp(Request& r) {
  r.params().Known({});
  const Cells cells = r.MaskedCells("token_rewards");
  const std::vector<double> rewards = r.Matrix("token_rewards", r.shape()),
                            baseline = r.Vector("baseline", cells.rows());
  if (!r.ok()) return r.status();
  return Put(r, ReMax(Masked(rewards, cells), baseline, cells));
}

Status Otb(Request& r) {
  const Params& p = r.params().Known({"eps", "singleton"});
  const Cells cells = r.MaskedCells("token_rewards");
  const std::vector<double> rewards = r.Matrix("token_rewards", r.shape()),
                            logp = r.Matrix("old_logp", r.shape());
  const std::vector<double> squares = r.Matrix("sum_pi_sq", r.shape());
  const std::vector<int64_t> group = r.Ids("group", cells.rows());
  const double eps = p.Number("eps", 0);
  const Singleton singleton =
      p.Choice("singleton", "zero", {"raw", "zero"}) == "raw" ? Singleton::kRaw : Singleton::kZero;
  if (!r.ok()) return r.status();
  r.PutCells("advantages", OptimalTokenBaseline(Masked(rewards, cells), group, Masked(logp, cells),
                                                Masked(squares, cells), eps, singleton, cells));
  return OkStatus();
}

// token_rewards, or rewards and kl.
std::vector<double> TokenRewards(Request& r, const Cells& cells, double kl_coef) {
  if (r.Has("token_rewards") || !r.Has("rewards")) {
    const std::vector<double> rewards = r.Matrix("token_rewards", r.shape());
    return r.ok() ? Masked(rewards, cells) : std::vector<double>();
  }
  const std::vector<double> rewards = r.Vector("rewards", cells.rows()), kl = r.MaybeMatrix("kl", r.shape());
  if (!kl.empty() || kl_coef == 0)
    return r.ok() ? OutcomeTokenRewards(rewards, kl, kl_coef, cells) : std::vector<double>();
  if (cells.size() > 0) r.Fail(InvalidArgument("input kl is missing; kl_coef is not 0"));
  return {};
}

Status ReinforcePp(Request& r) {
  const Params& p = r.params().Known({"gamma", "whiten", "discount_over", "kl_coef"});
  (void)p.Choice("discount_over", "all", {"all"});
  const Cells cells = r.MaskedCells(r.Has("token_rewards") ? "token_rewards" : "kl");
  const std::vector<double> rewards = TokenRewards(r, cells, p.Number("kl_coef", 0));
  const double gamma = p.Number("gamma", 1);
  const auto whiten = r.WhitenParam();
  if (!r.ok()) return r.status();
  return Put(r, ReinforcePlusPlus(rewards, gamma, whiten ? &*whiten : nullptr, cells));
}

Status TurnReturn(Request& r) {
  const Params& p = r.params().Known({"gamma"});
  const Cells cells = r.MaskedCells("token_rewards");
  const std::vector<double> rewards = r.Matrix("token_rewards", r.shape());
  const double gamma = p.Number("gamma", 1);
  if (!r.ok()) return r.status();
  r.PutCells("returns", TurnReturns(Masked(rewards, cells), gamma, cells));
  return OkStatus();
}

Status Gae(Request& r) {
  const Params& p = r.params().Known({"gamma", "lambda", "mask_mode", "whiten"});
  (void)p.Choice("mask_mode", "skip", {"skip"});
  const Cells cells = r.MaskedCells("values");
  const std::vector<double> rewards = r.Matrix("token_rewards", r.shape()),
                            values = r.Matrix("values", r.shape());
  const std::vector<double> bootstrap =
      r.Has("bootstrap") ? r.Vector("bootstrap", cells.rows()) : std::vector<double>();
  const double gamma = p.Number("gamma", 1), lambda = p.Number("lambda", 1);
  const auto whiten = r.WhitenParam();
  if (!r.ok()) return r.status();
  return Put(r, TokenGae(rewards, values, bootstrap, gamma, lambda, whiten ? &*whiten : nullptr, cells));
}

Status Vapo(Request& r) {
  const Params& p = r.params().Known({"gamma", "lambda_value", "length_adaptive_alpha", "whiten"});
  const Cells cells = r.MaskedCells("values");
  const std::vector<double> rewards = r.Vector("rewards", cells.rows()),
                            values = r.Matrix("values", r.shape());
  const double gamma = p.Number("gamma", 1), lambda = p.Number("lambda_value", 1),
               alpha = p.Need("length_adaptive_alpha");
  const auto whiten = r.WhitenParam();
  if (!r.ok()) return r.status();
  return Put(r, VapoGae(OutcomeTokenRewards(rewards, {}, 0, cells), values, gamma, lambda, alpha,
                        whiten ? &*whiten : nullptr, cells));
}

Status GaeEnv(Request& r) {
  const Params& p = r.params().Known({"gamma", "lambda", "whiten"});
  const Tensor rewards = r.Input("rewards");
  if (r.ok() && rewards.shape.size() != 2) return InvalidArgument("rewards is not [steps, environments]");
  if (!r.ok()) return r.status();
  const std::vector<int64_t> after = {rewards.shape[0] + 1, rewards.shape[1]};
  const std::vector<double> values = r.Matrix("values", after);
  const std::vector<uint8_t> dones = r.Bits("dones", after);
  const std::vector<uint8_t> mask =
      r.Has("mask") ? r.Bits("mask", rewards.shape) : std::vector<uint8_t>(rewards.data.size(), 1);
  const double gamma = p.Number("gamma", 1), lambda = p.Number("lambda", 1);
  const auto whiten = r.WhitenParam();
  if (!r.ok()) return r.status();
  const ReturnsAndAdvantages out =
      EnvironmentGae(rewards.data, values, dones, mask, rewards.shape[0], rewards.shape[1], gamma, lambda,
                     whiten ? &*whiten : nullptr);
  r.Put("advantages", out.advantages, rewards.shape);
  r.Put("returns", out.returns, rewards.shape);
  return OkStatus();
}

Status GigpoOp(Request& r) {
  const Params& p =
      r.params().Known({"gamma", "step_weight", "norm", "eps", "ddof", "small_std", "episode_stats"});
  const std::vector<double> rewards = r.Vector("step_rewards", -1);
  const auto n = static_cast<int64_t>(rewards.size());
  const std::vector<int64_t> group = r.Ids("group", n), traj = r.Ids("traj", n), step = r.Integers("step", n),
                             state = r.Ids("state", n);
  const GigpoOptions o{.gamma = p.Number("gamma", 1),
                       .step_weight = p.Number("step_weight", 1),
                       .divide_by_std = p.Choice("norm", "mean", {"mean", "mean_std"}) == "mean_std",
                       .eps = p.Number("eps", 0),
                       .ddof = p.Integer("ddof", 1),
                       .small_std = p.Number("small_std", 0),
                       .per_step_row = p.Choice("episode_stats", "per_step_row",
                                                {"per_step_row", "per_trajectory"}) == "per_step_row"};
  if (!r.ok()) return r.status();
  const GigpoResult out = Gigpo(rewards, group, traj, step, state, o);
  r.PutVector("step_returns", out.step_returns);
  r.PutVector("episode_adv", out.episode_adv);
  r.PutVector("step_adv", out.step_adv);
  r.PutVector("advantages", out.advantages);
  return OkStatus();
}

struct Trajectories {
  std::vector<int64_t> shape;
  std::vector<double> rewards, values, discounts, bootstrap;
};
Trajectories ReadTrajectories(Request& r) {
  Trajectories t;
  Tensor rewards = r.Input("rewards");
  if (r.ok() && rewards.shape.size() != 2) r.Fail(InvalidArgument("rewards is not [steps, environments]"));
  if (!r.ok()) return t;
  t.shape = rewards.shape;
  t.rewards = std::move(rewards.data);
  t.values = r.Matrix("values", t.shape);
  t.discounts = r.Matrix("discounts", t.shape);
  t.bootstrap = r.Vector("bootstrap", t.shape[1]);
  return t;
}

Status VTraceOp(Request& r) {
  const Params& p = r.params().Known({"rho_bar", "c_bar", "pg_rho_bar", "lambda"});
  const Trajectories t = ReadTrajectories(r);
  const std::vector<double> log_rhos = r.Matrix("log_rhos", t.shape);
  const VTraceOptions o{p.Maybe("rho_bar"), p.Maybe("c_bar"), p.Maybe("pg_rho_bar"), p.Number("lambda", 1)};
  if (!r.ok()) return r.status();
  const VTraceResult out = VTrace(t.rewards, t.values, t.discounts, log_rhos, t.bootstrap, o);
  r.Put("vs", out.vs, t.shape);
  r.Put("pg_advantages", out.pg_advantages, t.shape);
  return OkStatus();
}

Status TdLambdaOp(Request& r) {
  const Params& p = r.params().Known({"lambda"});
  const Trajectories t = ReadTrajectories(r);
  const double lambda = p.Number("lambda", 1);
  if (!r.ok()) return r.status();
  r.Put("returns", TdLambda(t.rewards, t.values, t.discounts, t.bootstrap, lambda), t.shape);
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> TimeOperations() {
  return {{"adv.remax", ReMaxOp},          {"adv.otb", Otb},       {"adv.reinforce_pp", ReinforcePp},
          {"adv.turn_return", TurnReturn}, {"adv.gae", Gae},       {"adv.gae_vapo", Vapo},
          {"adv.gae_env", GaeEnv},         {"adv.gigpo", GigpoOp}, {"adv.vtrace", VTraceOp},
          {"adv.td_lambda", TdLambdaOp}};
}

}  // namespace tidepool::algorithms::conformance
