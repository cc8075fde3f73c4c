// The checking interface: encoding, masks, bad requests, and the operations that have no test of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

using testing::HasSubstr;

Json Ask(const std::string& op, const Json& params, const Json& inputs) {
  return Answer(Json{{"id", 1}, {"op", op}, {"params", params}, {"inputs", inputs}}.dump());
}
Json Tensor64(const std::vector<int64_t>& shape, const Json& data) {
  return {{"dtype", "f64"}, {"shape", shape}, {"data", data}};
}

TEST(ConformanceTest, OffersEveryOperationOfTheInterface) {
  const std::vector<std::string> names = Operations();
  const std::set<std::string> offered(names.begin(), names.end());
  for (const char* name : {"adv.grpo",          "adv.rloo",
                           "adv.opo",           "adv.maxrl",
                           "adv.passk",         "adv.gpg",
                           "adv.gdpo",          "adv.reinforce_pp_baseline",
                           "adv.length_shaped", "adv.remax",
                           "adv.otb",           "adv.reinforce_pp",
                           "adv.turn_return",   "adv.gae",
                           "adv.gae_vapo",      "adv.gae_env",
                           "adv.gigpo",         "adv.vtrace",
                           "adv.td_lambda",     "kl.estimate",
                           "kl.in_reward",      "kl.controller",
                           "agg.loss",          "loss.pg",
                           "loss.pg_packed",    "loss.sharded",
                           "loss.value",        "loss.sft",
                           "loss.rm",           "loss.dpo",
                           "loss.jsd",          "loss.distill",
                           "is.weights",        "is.reject",
                           "is.behave",         "is.metrics",
                           "mask.m2po",         "mask.opsm",
                           "stale.prox_logp",   "stale.capacity",
                           "stale.episode",     "reward.overlong",
                           "reward.truncated",  "reward.repetition",
                           "reward.normalise",  "filter.group",
                           "metric.whiten",     "metric.explained_variance",
                           "metric.pass_at_k",  "metric.logprob_entropy",
                           "pack.budget",       "pack.balance",
                           "env.cartpole",      "env.pendulum",
                           "env.mountain_car",  "env.acrobot",
                           "env.frozen_lake",   "env.cliff",
                           "env.taxi",          "task.extract",
                           "task.countdown",    "task.countdown_expr",
                           "task.decimal",      "task.gsm8k",
                           "task.sorting",      "task.maze"}) {
    EXPECT_TRUE(offered.contains(name)) << name;
  }
}

TEST(ConformanceTest, MaskedCellsMayHoldAnythingAndComeBackAsZero) {
  const Json out =
      Ask("loss.pg",
          {{"kind", "ppo"},
           {"clip_low", 0.2},
           {"clip_high", 0.2},
           {"dual_clip", nullptr},
           {"agg", {{"mode", "token-mean"}}}},
          {{"logp", Tensor64({2, 2}, {-1, -2, "nan", "inf"})},
           {"old_logp", Tensor64({2, 2}, {-1.3, -1.9, "-inf", 1e6})},
           {"advantages", Tensor64({2, 2}, {1, 1, "nan", "nan"})},
           {"mask", {{"dtype", "bool"}, {"shape", {2, 2}}, {"data", {true, true, false, false}}}}});
  ASSERT_TRUE(out.contains("outputs")) << out.dump();
  EXPECT_NEAR(out["outputs"]["loss"].get<double>(), -1.05241871, 1e-8);
  EXPECT_NEAR(out["outputs"]["grad_logp"]["data"][1].get<double>(), -0.45241871, 1e-8);
  EXPECT_EQ(out["outputs"]["grad_logp"]["data"][2], 0);
  EXPECT_EQ(out["outputs"]["grad_logp"]["shape"], Json({2, 2}));
  EXPECT_NEAR(out["outputs"]["clip_frac"].get<double>(), 0.5, 1e-12);
  EXPECT_EQ(out["outputs"]["clip_frac_lower"], 0);
  EXPECT_NEAR(out["outputs"]["ppo_kl"].get<double>(), -0.1, 1e-12);
}

TEST(ConformanceTest, WhatIsNotOfferedIsUnsupported) {
  const Json in = {{"rewards", {1, 0}}, {"group", {0, 0}}, {"mask", {{1}, {1}}}};
  EXPECT_EQ(Ask("adv.nothing", Json::object(), in)["unsupported"], true);
  EXPECT_EQ(Ask("adv.grpo", {{"scale", "rank"}}, in)["unsupported"], true);
  EXPECT_EQ(Ask("adv.grpo", {{"scale", "none"}, {"flavour", 3}}, in)["unsupported"], true);
  EXPECT_EQ(Ask("loss.pg", {{"kind", "mystery"}}, {{"logp", {{-1}}}, {"mask", {{1}}}})["unsupported"], true);
  EXPECT_EQ(Ask("loss.pg", {{"kind", "gmpo"}, {"kl", {{"beta", 1}, {"kind", "k1"}}}},
                {{"logp", {{-1}}}, {"mask", {{1}}}})["unsupported"],
            true);
}

TEST(ConformanceTest, LabelSmoothingHasNoEffectOnIpo) {
  const Json pair = {{"policy_chosen", {-1, -3}},
                     {"policy_rejected", {-2, -2}},
                     {"ref_chosen", {-1.5, -3}},
                     {"ref_rejected", {-1, -2.5}}};
  const Json smooth = Ask("loss.dpo", {{"kind", "ipo"}, {"beta", 0.5}, {"label_smoothing", 0.2}}, pair);
  // h = 1.5 and -0.5, 1 / (2 beta) = 1: ((0.5)^2 + (1.5)^2) / 2
  EXPECT_EQ(smooth["outputs"]["loss"].get<double>(), 1.25) << smooth;
  EXPECT_EQ(smooth["outputs"], Ask("loss.dpo", {{"kind", "ipo"}, {"beta", 0.5}}, pair)["outputs"]);
}

TEST(ConformanceTest, BadRequestsAreErrorsAndNothingDies) {
  for (const char* line :
       {"{", "[]", "3", "{\"id\":7}", "{\"id\":7,\"op\":3}",
        "{\"id\":7,\"op\":\"adv.grpo\",\"params\":4,\"inputs\":5}",
        "{\"id\":7,\"op\":\"adv.grpo\",\"params\":{\"scale\":3},\"inputs\":{}}", "\xff\xfe",
        "{\"id\":7,\"op\":\"pack.balance\",\"params\":{\"k\":-1},\"inputs\":{\"lengths\":[1]}}",
        "{\"id\":7,\"op\":\"env.cartpole\",\"params\":{},\"inputs\":{\"state\":[0,0,0],\"actions\":[1]}}",
        "{\"id\":7,\"op\":\"env.cartpole\",\"params\":{},\"inputs\":{\"state\":[0,0,0,0],\"actions\":[2]}}",
        "{\"id\":7,\"op\":\"metric.whiten\",\"params\":{\"ddof\":1,\"eps\":0,\"eps_mode\":\"add_var\"},"
        "\"inputs\":{\"x\":{\"dtype\":\"f64\",\"shape\":[3,-1],\"data\":[1]}}}"}) {
    const Json answer = Answer(line);
    EXPECT_TRUE(answer.contains("error") && !answer["error"].get<std::string>().empty())
        << line << " " << answer.dump();
  }
  EXPECT_EQ(Answer("{\"id\":7}")["id"], 7);
  // Ragged, mismatched and missing tensors.
  const Json mask = {{1, 1}, {1, 0}};
  EXPECT_TRUE(Ask("adv.rloo", Json::object(), {{"rewards", {1, 0, 2}}, {"group", {0, 0, 0}}, {"mask", mask}})
                  .contains("error"));
  EXPECT_TRUE(
      Ask("loss.sft", {{"agg", {{"mode", "token-mean"}}}}, {{"logp", {{-1, -2}, {-1}}}, {"mask", mask}})
          .contains("error"));
  EXPECT_TRUE(Ask("loss.sft", Json::object(), {{"mask", mask}}).contains("error"));
  EXPECT_TRUE(Ask("agg.loss", {{"mode", "token-mean"}, {"global_tokens", 0}},
                  {{"loss_mat", {{1, 1}}}, {"mask", {{1, 1}}}})
                  .contains("error"));
}

TEST(ConformanceTest, ShardedIsAsIfUndivided) {
  const Json inputs = {{"logp", {{-1, -2, -1}, {-1.5, -1, -2}, {-0.5, -1, -1}}},
                       {"old_logp", {{-1.3, -1.9, -1}, {-1.2, -1.4, -2}, {-0.5, -1.1, -0.7}}},
                       {"advantages", {{1, 1, 1}, {-1, -1, -1}, {0.5, 0.5, 0.5}}},
                       {"mask", {{1, 1, 0}, {1, 1, 1}, {1, 0, 0}}}};
  for (const char* mode : {"token-mean", "seq-mean-token-mean", "seq-mean-token-sum"}) {
    Json params = {{"kind", "ppo"}, {"clip_low", 0.2}, {"clip_high", 0.2}, {"agg", {{"mode", mode}}}};
    const Json whole = Ask("loss.pg", params, inputs);
    params["plan"] = {{{2}, Json::array()}, {{1, 0}}, Json::array()};
    const Json sharded = Ask("loss.sharded", params, inputs);
    ASSERT_TRUE(sharded.contains("outputs")) << sharded.dump();
    EXPECT_NEAR(sharded["outputs"]["loss"].get<double>(), whole["outputs"]["loss"].get<double>(), 1e-12);
    for (size_t t = 0; t < 9; ++t) {
      EXPECT_NEAR(sharded["outputs"]["grad_logp"]["data"][t].get<double>(),
                  whole["outputs"]["grad_logp"]["data"][t].get<double>(), 1e-12);
    }
  }
}

TEST(ConformanceTest, PackedEqualsPadded) {
  const Json params = {
      {"kind", "gspo"}, {"clip_low", 0.2}, {"clip_high", 0.2}, {"agg", {{"mode", "token-mean"}}}};
  const Json padded = Ask("loss.pg", params,
                          {{"logp", {{-1, -2}, {-3, 0}}},
                           {"old_logp", {{-1.1, -2}, {-2.8, 0}}},
                           {"advantages", {{1, 1}, {-1, 0}}},
                           {"mask", {{1, 1}, {1, 0}}}});
  const Json packed = Ask("loss.pg_packed", params,
                          {{"logp", {-1, -2, -3}},
                           {"old_logp", {-1.1, -2, -2.8}},
                           {"advantages", {1, 1, -1}},
                           {"mask", {1, 1, 1}},
                           {"cu_seqlens", {0, 2, 3}}});
  EXPECT_NEAR(padded["outputs"]["loss"].get<double>(), packed["outputs"]["loss"].get<double>(), 1e-12);
  EXPECT_EQ(packed["outputs"]["grad_logp"]["shape"], Json({3}));
}

TEST(ConformanceTest, ScalarsAndNullOutputs) {
  EXPECT_EQ(Ask("metric.explained_variance", Json::object(),
                {{"returns", {1, 1}},
                 {"values", {0, 1}},
                 {"mask", {1, 1}}})["outputs"]["explained_variance"]["data"][0],
            "nan");
  EXPECT_TRUE(
      Ask("task.extract", {{"tag", "answer"}}, {{"response", "no tag"}})["outputs"]["answer"].is_null());
  EXPECT_EQ(
      Ask("task.extract", {{"tag", "answer"}}, {{"response", "<answer> 4 </answer>"}})["outputs"]["answer"],
      "4");
  EXPECT_EQ(Ask("stale.capacity", {{"max_staleness", 1}, {"batch_size", 16}, {"max_concurrent", 32}},
                {{"version", 3}, {"accepted", 64}, {"running", 8}})["outputs"]["capacity"],
            8);
  EXPECT_EQ(Ask("pack.budget", {{"capacity", 9}}, {{"lengths", {3, 5}}})["outputs"]["bins"],
            Json::parse("[[0,1]]"));
  EXPECT_EQ(Ask("filter.group", {{"rule", "std"}, {"threshold", 0}, {"ddof", 1}},
                {{"rewards", {{1, 1}, {0, 1}}}})["outputs"]["keep"]["data"],
            Json({false, true}));
  const Json play = Ask("env.pendulum", Json::object(), {{"state", {0, 0}}, {"actions", {0.5, -9}}});
  EXPECT_EQ(play["outputs"]["obs"]["shape"], Json({2, 3}));
  EXPECT_EQ(play["outputs"]["terminated"]["data"], Json({false, false}));
  EXPECT_EQ(Ask("env.cartpole", Json::object(),
                {{"state", {0, 0, 0, 0}}, {"actions", Json::array()}})["outputs"]["obs"]["shape"],
            Json({0, 4}));
}

}  // namespace
}  // namespace tidepool::algorithms::conformance
