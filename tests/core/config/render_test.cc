#include "core/config/render.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/config/schema.h"

namespace tidepool::config {
namespace {

// configs/ also holds what `tidepool simulate` reads: workloads and hardware profiles.
bool IsJob(const std::filesystem::path& file) {
  const std::string folder = file.parent_path().filename().string();
  return folder != "simulate" && folder != "hardware" && folder != "pace";
}

using ::testing::HasSubstr;
using ::testing::Not;

// Every key and option of a config with its value. Equal texts are equal configs.
std::string CanonicalText(const JobConfig& config) {
  std::string text;
  for (const Key& key : Keys()) {
    if (key.job && *key.job != config.kind()) continue;
    JobConfig copy = config;
    const bool item = key.path.starts_with("reward.functions[]");
    for (size_t i = 0; i < (item ? config.reward.functions.size() : 1); ++i)
      text += key.path + ": " + ValueText(key.field(copy, i)) + "\n";
  }
  const auto append = [&](const std::string& section, const std::map<std::string, std::string>& options) {
    for (const auto& [name, value] : options) text += section + name + ": " + value + "\n";
  };
  append("data.", config.data.options);
  if (config.rl() != nullptr) {
    append("environment.", config.rl()->environment.options);
    append("algorithm.", config.rl()->algorithm.options);
  }
  return text;
}

TEST(RenderTest, WhatIsSetIsShortAndLoadsToTheSame) {
  const auto loaded = LoadConfigText(
      "name: a # b\nmodel: {init: {max_position: 64}}\ndata: {task: reverse}\nreward: {functions: "
      "[exact_answer]}\n"
      "rollout: {max_new_tokens: 8}\n",
      "a.yaml", {"train.steps=3"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const std::string set = SetYaml(*loaded);
  EXPECT_LT(std::count(set.begin(), set.end(), '\n'), 25) << set;
  EXPECT_THAT(set, HasSubstr("\ntrain:\n  steps: 3 "));
  EXPECT_THAT(set, HasSubstr("\nreward:\n  functions: "));
  EXPECT_THAT(set, Not(HasSubstr("default\n")));
  EXPECT_THAT(set, Not(HasSubstr("\nobserve:")));
  const auto again = LoadConfigText(set, "set.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message() << set;
  EXPECT_EQ(CanonicalText(again->config), CanonicalText(loaded->config));
}

TEST(RenderTest, ATinyModelOfWhichNothingIsSetIsKept) {
  const auto loaded = LoadConfigText(
      "name: a\nmodel: {init: {}}\ndata: {task: reverse}\nreward: {functions: [exact_answer]}\n", "a.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const std::string set = SetYaml(*loaded);
  EXPECT_THAT(set, HasSubstr("\nmodel:\n  init: {}\n"));
  const auto again = LoadConfigText(set, "set.yaml");
  ASSERT_TRUE(again.ok()) << again.status().message() << set;
  EXPECT_EQ(CanonicalText(again->config), CanonicalText(loaded->config));
}

TEST(SchemaTest, EveryDefaultObeysItsOwnRange) {
  JobConfig defaults;
  defaults.reward.functions.emplace_back();
  for (const Key& key : Keys()) {
    SCOPED_TRACE(key.path);
    EXPECT_FALSE(key.doc.empty());
    const Field field = key.field(defaults, 0);
    if (const auto* value = std::get_if<int64_t*>(&field)) {
      EXPECT_TRUE(key.range.Holds(static_cast<double>(**value)));
    }
    if (const auto* value = std::get_if<double*>(&field)) {
      EXPECT_TRUE(key.range.Holds(**value));
    }
    if (const auto* value = std::get_if<std::string*>(&field); value != nullptr && !key.choices.empty()) {
      EXPECT_THAT(key.choices, testing::Contains(**value));
    }
  }
}

TEST(ResolvedYamlTest, LoadsAgainToTheSameConfig) {
  const auto file =
      std::filesystem::path(testing::TempDir()) / ("resolved_" + std::to_string(::getpid()) + ".yaml");
  for (const auto& entry : std::filesystem::recursive_directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml" || !IsJob(entry.path())) continue;
    SCOPED_TRACE(entry.path().string());
    std::vector<std::string> overrides = {"train.steps=3", "name=null-"};
    // Other jobs and policies of control tasks say no words that could be stopped at.
    if (const auto plain = LoadConfig(entry.path().string());
        plain.ok() && plain->config.rl() != nullptr && !plain->config.model.is_policy()) {
      overrides.push_back("rollout.stop=['a: \"b\" #c', \"\\n\"]");
    }
    const auto loaded = LoadConfig(entry.path().string(), overrides);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const std::string yaml = ResolvedYaml(*loaded);
    std::ofstream(file) << yaml;
    const auto again = LoadConfig(file.string());
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << yaml;
    EXPECT_EQ(CanonicalText(again->config), CanonicalText(loaded->config));
    EXPECT_THAT(yaml, HasSubstr("#   train.steps=3\n"));
  }
  std::filesystem::remove(file);
}

TEST(ResolvedYamlTest, InstancesOfAServiceAreWritten) {
  for (const std::string given : {"", "environment.instances=2"}) {
    std::vector<std::string> overrides;
    if (!given.empty()) overrides.push_back(given);
    const auto loaded = LoadConfig("configs/test/service_episodes.yaml", overrides);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->config.environment()->instances, given.empty() ? 256 : 2);
    const auto again = LoadConfigText(ResolvedYaml(*loaded), "x.yaml");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->config.environment()->instances, loaded->config.environment()->instances);
  }
}

TEST(ResolvedYamlTest, FilesAsDataLoadAgainToo) {
  for (const std::string data : {"data: {path: a.jsonl}", "data: {path: a.jsonl, held_out: 5}",
                                 "data: {path: a.jsonl, eval_path: b.jsonl}"}) {
    const auto loaded = LoadConfigText(
        "model: {path: m}\nreward: {functions: [exact_answer, {name: mine, endpoint: \"unix:/x\", weight: "
        "0.5}]}\n" +
            data,
        "x.yaml");
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const auto again = LoadConfigText(ResolvedYaml(*loaded), "y.yaml");
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(CanonicalText(again->config), CanonicalText(loaded->config));
  }
}

TEST(ResolvedYamlTest, SaysWhereEachValueCameFrom) {
  const auto loaded = LoadConfig("configs/test/rl_split.yaml", {"train.steps=3"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const std::string yaml = ResolvedYaml(*loaded);
  EXPECT_THAT(yaml, testing::ContainsRegex("  steps: 3 +# override\n"));
  EXPECT_THAT(yaml, testing::ContainsRegex("  placement: split +# configs/test/rl_split.yaml:5\n"));
  EXPECT_THAT(yaml, testing::ContainsRegex("  letters: \"abcd\" +# configs/test/rl_colocated.yaml:[0-9]+\n"));
  EXPECT_THAT(yaml, testing::ContainsRegex("  epochs: 1 +# default\n"));
}

TEST(ResolvedYamlTest, ValuesThatLookLikeSomethingElseAreQuoted) {
  for (const char* text :
       {"true", "1", "1e5", "null", "", "a b", "#x", "a: b", "~", "- a", "\xC3\xA4", "no", "=", "'"}) {
    std::vector<Problem> problems;
    const Node root = ParseYaml("k: " + TextAsYaml(text), {.source = "f"}, problems);
    ASSERT_TRUE(problems.empty()) << text;
    EXPECT_EQ(root.Find("k")->text, text);
    EXPECT_EQ(root.Find("k")->kind, Node::Kind::kScalar) << text;
  }
}

TEST(JsonSchemaTest, CoversEveryKeyAndForbidsOthers) {
  const auto schema = nlohmann::json::parse(JsonSchema());
  EXPECT_EQ(schema["additionalProperties"], false);
  EXPECT_EQ(schema["properties"]["rollout"]["properties"]["group_size"]["minimum"], 1);
  EXPECT_EQ(schema["properties"]["rollout"]["properties"]["group_size"]["default"], 8);
  EXPECT_EQ(schema["properties"]["rollout"]["properties"]["top_p"]["exclusiveMinimum"], 0.0);
  EXPECT_EQ(schema["properties"]["rollout"]["additionalProperties"], false);
  for (const Key& key : Keys()) {
    const nlohmann::json* at = &schema;
    std::string rest = key.path;
    for (size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      std::string name = rest.substr(0, dot);
      rest = rest.substr(dot + 1);
      const bool list = name.ends_with("[]");
      if (list) name.resize(name.size() - 2);
      at = &at->at("properties").at(name);
      if (list) at = &at->at("items").at("anyOf").at(0);
    }
    EXPECT_TRUE(at->at("properties").contains(rest)) << key.path;
  }
}

TEST(ConfigReferenceTest, NamesEveryKeyTaskAndReward) {
  const std::string text = ConfigReference();
  for (const Key& key : Keys())
    EXPECT_THAT(text, HasSubstr("| `" + key.path.substr(key.path.rfind('.') + 1) + "` | "));
  EXPECT_THAT(text, HasSubstr("### `products`"));
  EXPECT_THAT(text, HasSubstr("| `exact_answer` |"));
}

}  // namespace
}  // namespace tidepool::config
