// What a config makes of the table of algorithms: parts, defaults, contradictions.
#include "core/algorithms/registry.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace tidepool::algorithms {
namespace {

std::string Text(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(RegistryTest, TheTablesInTheDocsAreGenerated) {
  EXPECT_NE(Text("docs/algorithms.md").find(AlgorithmTable()), std::string::npos)
      << "docs/algorithms.md is not what `tidepool algorithms --table` prints; paste it again";
}

TEST(RegistryTest, EveryPresetResolves) {
  for (const AlgorithmEntry& e : Algorithms()) {
    AlgorithmConfig c;
    c.name = e.name;
    EXPECT_EQ(UsesReplay(c), !e.off_policy.empty());
    if (UsesReplay(c)) {
      EXPECT_NE(Resolve(c, 16).status().message().find("model: {policy: mlp}"), std::string::npos);
      EXPECT_FALSE(DescribeAlgorithm(e).empty());
      continue;
    }
    if (FindAdvantage(e.advantage.name)->Uses(Provision::kTeacher)) c.teacher = "a folder";
    const auto resolved = Resolve(c, 16);
    ASSERT_TRUE(resolved.ok()) << e.name << ": " << resolved.status().ToString();
    EXPECT_EQ(resolved.value().policy.loss->name, e.loss.name);
    EXPECT_FALSE(DescribeAlgorithm(e).empty());
  }
}

TEST(RegistryTest, NamesChooseDefaultsAndKeysOverrideThem) {
  AlgorithmConfig c;
  EXPECT_EQ(Resolve(c, 16).value().aggregation.mode, AggregationMode::kTokenMean);
  EXPECT_EQ(Resolve(c, 16).value().policy.options.Number("clip_high"), 0.2);
  c.name = "dr_grpo";
  const ResolvedAlgorithm dr = Resolve(c, 16).value();
  EXPECT_EQ(dr.advantage_options.Text("scale"), "none");
  EXPECT_EQ(dr.aggregation.mode, AggregationMode::kSeqMeanTokenSumNorm);
  EXPECT_EQ(dr.aggregation.scale, 16);
  c.advantage_scale = "group_std";
  EXPECT_EQ(Resolve(c, 16).value().advantage_options.Text("scale"), "group_std");
  c = {.name = "dapo"};
  EXPECT_EQ(Resolve(c, 16).value().policy.options.Number("clip_high"), 0.28);
  EXPECT_TRUE(Resolve(c, 16).value().zero_variance_filter);
  c = {.name = "grpo", .loss = "sapo", .options = {{"tau_pos", "0.5"}, {"advantage_baseline", "\"loo\""}}};
  EXPECT_EQ(Resolve(c, 16).value().policy.options.Number("tau_pos"), 0.5);
  EXPECT_EQ(Resolve(c, 16).value().advantage_options.Text("baseline"), "loo");
  EXPECT_EQ(Resolve(c, 16).value().aggregation.mode, AggregationMode::kSeqMeanTokenMean);
}

TEST(RegistryTest, ContradictionsNameTheKeyAndTheReason) {
  const auto error = [](const AlgorithmConfig& c) {
    const auto resolved = Resolve(c, 16);
    return resolved.ok() ? std::string("no error") : resolved.status().message();
  };
  EXPECT_EQ(error({.name = "magic"}).substr(0, 29), "algorithm.name: found 'magic'");
  EXPECT_NE(error({.name = "decoupled_ppo", .correction = "tis"})
                .find("algorithm.correction: is tis, but loss decoupled has a behaviour weight"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .tis_max = 3}).find("algorithm.tis_max: is 3, but nothing is corrected"),
            std::string::npos);
  EXPECT_EQ(error({.name = "icepop", .tis_max = 3}), "no error");
  EXPECT_NE(error({.name = "dr_grpo", .advantage_eps = 0.1}).find("algorithm.advantage_eps"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .filter_rounds = 3}).find("algorithm.filter_rounds"), std::string::npos);
  EXPECT_EQ(error({.name = "grpo", .keep_groups = {"reward >= 0.1"}, .filter_rounds = 3}), "no error");
  EXPECT_NE(error({.name = "grpo", .keep_groups = {"reward > 0.1"}}).find("algorithm.keep_groups"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .overlong_factor = 0.5}).find("algorithm.overlong_factor"),
            std::string::npos);
  EXPECT_NE(error({.name = "dppo", .correction = "tis"}).find("corrected twice"), std::string::npos);
  EXPECT_NE(error({.name = "gmpo", .aggregation = "token-mean"})
                .find("algorithm.aggregation: is token-mean, but loss gmpo has one value per row"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .aggregation = "seq-mean"}).find("algorithm.aggregation"),
            std::string::npos);
  EXPECT_NE(
      error({.name = "grpo", .dual_clip = 0.5}).find("algorithm.dual_clip: is 0.5; it has to be above 1"),
      std::string::npos);
  EXPECT_NE(error({.name = "sapo", .clip_low = 0.1}).find("algorithm.clip_low: loss sapo"),
            std::string::npos);
  EXPECT_NE(error({.name = "reinforce_pp", .filter = "zero_variance"}).find("algorithm.filter"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .advantage = "vtrace"})
                .find("algorithm.advantage: vtrace needs a critic and environments"),
            std::string::npos);
  EXPECT_NE(error({.name = "gmpo", .kl = {.coef = 0.1}})
                .find("algorithm.kl.coef: is not 0, but loss gmpo takes no KL term"),
            std::string::npos);
  EXPECT_NE(error({.name = "ppo", .kl = {.coef = 0.1, .place = KlPlace::kReward, .score_term = true}})
                .find("algorithm.kl.score_term"),
            std::string::npos);
  EXPECT_NE(
      error({.name = "gdpo", .kl = {.coef = 0.1, .place = KlPlace::kReward}}).find("algorithm.kl.place"),
      std::string::npos);
  EXPECT_NE(error({.name = "grpo", .kl = {.target = 0.1}}).find("algorithm.kl.coef: is 0, and kl.target"),
            std::string::npos);
  EXPECT_NE(error({.name = "grpo", .kl = {.coef = 0.1, .score_term = true, .straight_through_k2 = true}})
                .find("keep one"),
            std::string::npos);
  EXPECT_NE(error({.name = "decoupled_ppo", .m2po = 0.1})
                .find("algorithm.m2po: is set, but loss decoupled takes no weights per token"),
            std::string::npos);
  EXPECT_NE(
      error({.name = "grpo", .reject_threshold = "2"}).find("algorithm.reject_threshold: bounds a criterion"),
      std::string::npos);
  EXPECT_NE(error({.name = "grpo", .reject = "token_k7", .reject_threshold = "2"}).find("algorithm.reject:"),
            std::string::npos);
  EXPECT_NE(error({.name = "on_policy_distill"}).find("algorithm.teacher: is missing"), std::string::npos);
  EXPECT_NE(error({.name = "grpo", .teacher = "x"}).find("algorithm.teacher: is read by nothing"),
            std::string::npos);
}

TEST(RegistryTest, SaysWhichModelsAreNeeded) {
  const ResolvedAlgorithm grpo = Resolve({}, 16).value();
  EXPECT_FALSE(grpo.needs_critic() || grpo.needs_reference() || grpo.needs_teacher() ||
               grpo.needs_old_first());
  EXPECT_TRUE(Resolve({.name = "ppo"}, 16).value().needs_critic());
  EXPECT_TRUE(Resolve({.name = "grpo", .kl = {.coef = 0.1}}, 16).value().needs_reference());
  EXPECT_TRUE(Resolve({.name = "grpo", .loss = "ref_kl"}, 16).value().needs_reference());
  EXPECT_TRUE(Resolve({.name = "grpo", .kl = {.coef = 0.1, .place = KlPlace::kReward}}, 16)
                  .value()
                  .needs_old_first());
  EXPECT_TRUE(Resolve({.name = "grpo", .teacher = "x", .teacher_coef = 0.5}, 16).value().needs_teacher());
  EXPECT_EQ(FilterOf({.name = "dapo"}), "zero_variance");
  EXPECT_EQ(FilterOf({.name = "dapo", .filter = "none"}), "none");
}

}  // namespace
}  // namespace tidepool::algorithms
