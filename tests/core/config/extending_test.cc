// A config that is written on top of another, and layouts that are tried without reading the file again.

#include "core/config/extending.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/config/layout_rules.h"
#include "core/config/load.h"
#include "core/config/resume.h"

namespace tidepool::config {
namespace {

const std::string kConfigs = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/";

TEST(ExtendingYamlTest, SaysWhatOverridesSayAndIsReadToTheSameJob) {
  const std::string base = kConfigs + "test/rl_split.yaml";
  const std::vector<std::pair<std::string, std::string>> given = {
      {"model.init.kv_heads", "2"},
      {"name", "\"5\""},
      {"model.init.alphabet", "\"abcdrev =#:\""},
      {"reward.functions", "[{name: exact_answer, weight: 1.0}, {name: \"format:[ab]\", weight: 0.5}]"},
      {"reward.functions.1.weight", "0.25"},
      {"rollout.stop", "[\"a\", \"true\", \"1\"]"},
      {"train.learning_rate", "2.5e-4"},
      {"data.letters", "abcde"},
      {"data.size", "10"},
      {"checkpoint.every_steps", "null"},
      {"train.mesh.tp", "1"},
      {"train.zero", "1"},
      {"train.zero", "0"}};
  std::vector<std::string> overrides;
  Extension file{.extends = base, .head = {"one", "two\nlines"}, .values = {}};
  for (const auto& [key, value] : given) {
    overrides.push_back(key + "=" + value);
    file.values.push_back({key, value, "why"});
  }
  const auto text = ExtendingYaml(file);
  ASSERT_TRUE(text.ok()) << text.status().message();
  EXPECT_TRUE(text->starts_with("# one\n# two lines\nextends: ")) << *text;
  EXPECT_NE(text->find("  kv_heads: 2  # why\n"), std::string::npos) << *text;
  EXPECT_NE(text->find("  every_steps: null  # why\n"), std::string::npos) << *text;
  const auto typed = LoadConfig(base, overrides);
  ASSERT_TRUE(typed.ok()) << typed.status().message();
  const auto read = LoadConfigText(*text, "new.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message() << *text;
  for (const Difference& d : Differences(typed->config, read->config)) ADD_FAILURE() << d.ToString() << *text;
}

TEST(ExtendingYamlTest, APartOfAnInheritedListIsRefused) {
  const auto text =
      ExtendingYaml({.extends = "x.yaml",
                     .head = {},
                     .values = {{"reward.functions", "null", ""}, {"reward.functions.0.weight", "2", ""}}});
  EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(text.status().message().find("reward.functions.0.weight: "), std::string::npos);
}

// The rules are those by which the file is read.
TEST(LayoutProblemsTest, SayOfALayoutWhatReadingItSays) {
  const std::vector<std::vector<std::string>> jobs = {
      {"cluster.slots=4", "model.init.kv_heads=2"},
      {"cluster.slots=4", "model.init.kv_heads=2", "checkpoint.recovery_every_steps=1"},
      {"cluster.slots=4", "model.init.kv_heads=2", "algorithm.name=ppo"},
      {"cluster.slots=4", "model.init.kv_heads=2", "train.offload_optimizer=disk"},
      {"cluster.slots=4", "model.init.kv_heads=2", "cluster.device=cuda"},
      {"cluster.slots=4", "model.init.kv_heads=2", "scheduler.rollout_floor=2"}};
  int64_t refused = 0, allowed = 0;
  for (const std::vector<std::string>& job : jobs) {
    const auto base = LoadConfig(kConfigs + "test/rl_colocated.yaml", job);
    ASSERT_TRUE(base.ok()) << base.status().message();
    for (const PlacementKind placement : AllOf<PlacementKind>()) {
      for (const int64_t actors : {1, 2, 3, 4}) {
        for (const int64_t tp : {1, 2, 3}) {
          for (const int64_t zero : {0, 1, 2, 3}) {
            std::vector<std::string> typed = job;
            typed.push_back(std::string("scheduler.placement=") + Name(placement));
            typed.push_back("scheduler.actor_slots=" + std::to_string(actors));
            typed.push_back("train.mesh.tp=" + std::to_string(tp));
            typed.push_back("train.zero=" + std::to_string(zero));
            SCOPED_TRACE(testing::PrintToString(typed));
            LoadedConfig tried = *base;
            tried.config.scheduler.placement = placement;
            tried.config.scheduler.actor_slots = actors;
            tried.config.train.mesh.tp = tp;
            tried.config.train.zero = zero;
            const std::vector<std::string> problems = LayoutProblems(tried);
            const auto read = LoadConfig(kConfigs + "test/rl_colocated.yaml", typed);
            EXPECT_EQ(read.ok(), problems.empty()) << read.status().message();
            for (const std::string& problem : problems)
              EXPECT_NE(read.status().message().find(problem), std::string::npos) << problem;
            ++(problems.empty() ? allowed : refused);
          }
        }
      }
    }
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(allowed, 50);
}

}  // namespace
}  // namespace tidepool::config
