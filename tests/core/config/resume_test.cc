#include "core/config/resume.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/config/render.h"

namespace tidepool::config {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kConfig = "configs/test/rl_colocated.yaml";

// A folder of the test's own.
struct Folder {
  Folder() : path(fs::path(testing::TempDir()) / ("resume_" + std::to_string(::getpid()))) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  [[nodiscard]] std::string Write(const std::string& name, const std::string& text) const {
    const fs::path to = path / name;
    fs::create_directories(to.parent_path());
    std::ofstream(to) << text;
    return to.string();
  }
  fs::path path;
};

JobConfig Load(const std::vector<std::string>& overrides) {
  const auto loaded = LoadConfig(kConfig, overrides);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded->config;
}

std::vector<std::string> Texts(const std::vector<Difference>& differences) {
  std::vector<std::string> texts;
  for (const Difference& d : differences) texts.push_back(d.ToString());
  return texts;
}

TEST(ResumeTest, SomeKeysMayChangeAndOthersMayNot) {
  const JobConfig old = Load({});
  const auto free = Differences(
      old, Load({"train.steps=9", "train.learning_rate=1e-5", "observe.trace=false", "checkpoint.keep=3",
                 "eval.every_steps=2", "scheduler.placement=split", "cluster.slots=2"}));
  EXPECT_TRUE(CheckAllowed(free).ok());
  EXPECT_EQ(free.size(), 7U) << "all are told";
  for (const char* change : {"seed=2", "rollout.group_size=5", "train.groups_per_step=5", "data.size=63",
                             "data.length=2", "model.init.layers=3", "algorithm.name=dr_grpo",
                             "rollout.temperature=0.9", "reward.functions=[exact_answer, format]",
                             "reward.functions.0.weight=2", "scheduler.max_lag_versions=1"}) {
    const Status status = CheckAllowed(Differences(old, Load({change})));
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << change;
  }
  const Status status =
      CheckAllowed(Differences(old, Load({"seed=2", "rollout.group_size=5", "train.steps=9"})));
  EXPECT_THAT(status.message(), HasSubstr("seed: was 1, is 2\nrollout.group_size: was 4, is 5\n"));
  EXPECT_THAT(status.message(), HasSubstr("--fresh"));
  EXPECT_THAT(status.message(), Not(HasSubstr("steps")));
}

TEST(ResumeTest, ServerMayBeElsewhereAndSlowerButGradesTheSame) {
  const auto with = [](const std::string& functions) { return Load({"reward.functions=" + functions}); };
  const JobConfig old = with("[{name: judge, endpoint: 'h:1'}, exact_answer]");
  const auto moved =
      Differences(old, with("[{name: judge, endpoint: 'http://h:2/x', timeout_s: 99}, exact_answer]"));
  EXPECT_EQ(moved.size(), 2U);
  EXPECT_TRUE(CheckAllowed(moved).ok());
  for (const char* other : {"[{name: judge2, endpoint: 'h:1'}, exact_answer]",
                            "[{name: judge, endpoint: 'h:1', weight: 2}, exact_answer]",
                            "[exact_answer, {name: judge, endpoint: 'h:1'}]",
                            "[{name: judge, endpoint: 'h:1'}, {name: exact_answer, endpoint: 'h:1'}]"}) {
    EXPECT_FALSE(CheckAllowed(Differences(old, with(other))).ok()) << other;
  }
  EXPECT_THAT(CheckAllowed(Differences(old, with("[exact_answer]"))).message(),
              HasSubstr("reward.functions: was judge, exact_answer, is exact_answer\n"));
}

TEST(ResumeTest, StepsThatAreDoneCannotBeTakenBack) {
  const auto old = LoadConfig(kConfig, {"train.steps=100"});
  const auto change = [&](const std::string& steps) {
    return ChangesOnResume(*old, *LoadConfig(kConfig, {"train.steps=" + steps}), 61);
  };
  EXPECT_TRUE(change("61").ok()) << "it ends there";
  EXPECT_TRUE(change("200").ok());
  EXPECT_TRUE(ChangesOnResume(*old, *old, 101).ok()) << "a restart within the last step changes nothing";
  const Status refused = change("1").status();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("train.steps: was 100, is 1; but step 61 is done already"));
  const auto config = ChangesOnResume(*old, *LoadConfig(kConfig), 3);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->front().Told(), HasSubstr("an override given earlier, which is not repeated"));
}

TEST(ResumeTest, ARunsConfigKeepsItsPast) {
  const Folder folder;
  const auto first = LoadConfig(kConfig, {"train.steps=3", "eval.samples=2", "rollout.stop=['a # b']"});
  ASSERT_TRUE(first.ok()) << first.status().message();
  const std::string path = folder.Write("config.yaml", ResolvedYaml(*first));

  auto second = LoadRunConfig(path, {"train.steps=5"});
  ASSERT_TRUE(second.ok()) << second.status().message();
  const auto changes = Differences(ReadRunConfig(path)->config, second->config);
  EXPECT_THAT(Texts(changes), ElementsAre("train.steps: was 3, is 5"));
  EXPECT_TRUE(Overrides(*second, "eval.samples"));
  AddToHistory(*second, "step 3, 20261121T115502Z", changes);
  (void)folder.Write("config.yaml", ResolvedYaml(*second));

  auto third = LoadRunConfig(path, {"eval.samples=4"});
  ASSERT_TRUE(third.ok()) << third.status().message();
  EXPECT_EQ(third->config.train.steps, 5);
  EXPECT_THAT(third->overrides, ElementsAre("rollout.stop=['a # b']", "train.steps=5", "eval.samples=4"));
  EXPECT_THAT(third->history,
              ElementsAre("Resumed at step 3, 20261121T115502Z:", "  train.steps: was 3, is 5"));
  const std::string text = ResolvedYaml(*third);
  EXPECT_THAT(text, HasSubstr("# Config: configs/test/rl_colocated.yaml\n# Overrides:\n#   rollout.stop"));
  EXPECT_THAT(text, HasSubstr("# Resumed at step 3, 20261121T115502Z:\n#   train.steps: was 3, is 5\n"));
  // Where values came from is what it was, and not the file that was read last.
  EXPECT_THAT(text, testing::ContainsRegex("  letters: \"abcd\" +# configs/test/rl_colocated.yaml:[0-9]+\n"));
  EXPECT_THAT(text, testing::ContainsRegex("  epochs: 1 +# default\n"));
  EXPECT_THAT(text, testing::ContainsRegex("  samples: 4 +# override\n"));
  EXPECT_THAT(text, Not(HasSubstr(path)));
}

// Every kind of job: a policy's config has defaults of its own, for one.
TEST(ResumeTest, NothingDiffersInAConfigThatIsReadBack) {
  const Folder folder;
  int tried = 0;
  for (const char* from : {"configs", "configs/control", "configs/algorithms", "configs/test"}) {
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().extension() != ".yaml") continue;
      SCOPED_TRACE(entry.path());
      const auto written = LoadConfig(entry.path());
      if (!written.ok()) continue;  // a part of other configs
      const auto read = ReadRunConfig(folder.Write("config.yaml", ResolvedYaml(*written)));
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_THAT(Texts(Differences(read->config, written->config)), testing::IsEmpty());
      ++tried;
    }
  }
  EXPECT_GT(tried, 30);
}

TEST(ResumeTest, AFolderMayBeElsewhereIfItIsNotWhereItWas) {
  const Folder folder;
  const std::string model = "{}";
  (void)folder.Write("a/config.json", model);
  (void)folder.Write("b/config.json", model);
  (void)folder.Write("rows.jsonl", "{}");
  (void)folder.Write("same.jsonl", "{}");
  const std::string config = folder.Write(
      "x.yaml", "model: {path: a}\nreward: {functions: [exact_answer]}\ndata: {path: rows.jsonl}\n");
  const auto there = [&](const std::string& key, const std::string& file) {
    const auto loaded = LoadConfig(config, {key + "=" + (folder.path / file).string()});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded->config;
  };
  const std::string run = folder.Write("run/config.yaml", ResolvedYaml(*LoadConfig(config)));
  const JobConfig old = ReadRunConfig(run)->config;
  fs::create_symlink(folder.path / "a", folder.path / "link");
  EXPECT_TRUE(Differences(old, there("model.path", "link")).empty());
  EXPECT_FALSE(CheckAllowed(Differences(old, there("model.path", "b"))).ok()) << "it is another one";
  const auto rows = Differences(old, there("data.path", "same.jsonl"));
  EXPECT_EQ(rows.size(), 1U);
  EXPECT_TRUE(CheckAllowed(rows).ok()) << "what it holds is compared when the run goes on";
  fs::remove_all(folder.path / "a");
  const auto moved = Differences(ReadRunConfig(run)->config, there("model.path", "b"));
  EXPECT_EQ(moved.size(), 1U);
  EXPECT_TRUE(CheckAllowed(moved).ok());
}

}  // namespace
}  // namespace tidepool::config
