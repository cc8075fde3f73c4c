#include "core/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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
namespace fs = std::filesystem;

constexpr const char* kGood = R"(name: good
job: rl
model:
  path: models/some-model
data: {task: products, factors: [2, 9], held_out: 9}
reward: {functions: [{name: exact_answer, weight: 1.0}]}
rollout: {group_size: 8, max_new_tokens: 16}
train:
  groups_per_step: 8
  micro_batch_tokens: 1024
)";

std::string Error(const std::string& text, const std::vector<std::string>& overrides = {}) {
  const auto loaded = LoadConfigText(text, "x.yaml", overrides);
  return loaded.ok() ? "no error" : loaded.status().message();
}

std::string With(const std::string& override) { return Error(kGood, {override}); }

class Folder {
 public:
  Folder()
      : path_(fs::path(testing::TempDir()) /
              ("config_test_" + std::to_string(::getpid()) + "_" +
               testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  std::string Write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

TEST(LoadConfigTest, ReadsValuesAndKeepsDefaults) {
  const auto loaded = LoadConfigText(kGood, "x.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const JobConfig& c = loaded->config;
  EXPECT_EQ(c.name, "good");
  EXPECT_EQ(c.rollout.max_new_tokens, 16);
  EXPECT_EQ(c.rollout.temperature, 1.0);
  EXPECT_EQ(c.data.options.at("factors"), "[2,9]");
  EXPECT_EQ(c.reward.functions.at(0).name, "exact_answer");
  EXPECT_EQ(loaded->OriginOf("train.groups_per_step").ToString(), "x.yaml:9");
  EXPECT_EQ(loaded->OriginOf("train.steps").ToString(), "default");
}

TEST(LoadConfigTest, ExampleConfigsAreValid) {
  for (const auto& entry : fs::recursive_directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml" || !IsJob(entry.path())) continue;
    SCOPED_TRACE(entry.path().string());
    const auto loaded = LoadConfig(entry.path().string());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    std::ifstream in(entry.path());
    std::string first;
    std::getline(in, first);
    EXPECT_TRUE(first.starts_with("# ")) << "says what it runs on";
  }
}

TEST(LoadConfigTest, EveryExampleRunsInBothPlacements) {
  for (const char* name :
       {"configs/quickstart.yaml", "configs/smollm2_products.yaml", "configs/test/rl_colocated.yaml"}) {
    const auto split = LoadConfig(name, {"scheduler.placement=split", "cluster.slots=2",
                                         "cluster.threads_per_slot=1", "scheduler.max_lag_versions=1"});
    EXPECT_TRUE(split.ok()) << split.status().message();
  }
}

TEST(LoadConfigTest, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(Error(std::string(kGood) + "trian: {}\n"),
            "x.yaml:11: trian: unknown key; did you mean 'train'?");
  EXPECT_THAT(Error(std::string(kGood) + "  learning_rat: 1.0e-5\n"),
              HasSubstr("x.yaml:11: train.learning_rat: unknown key; did you mean 'train.learning_rate'?"));
  EXPECT_THAT(With("train.group_size=4"),
              HasSubstr("override 'train.group_size=4': train.group_size: unknown key; did you mean"));
  EXPECT_THAT(With("train.temperature=4"), HasSubstr("did you mean 'rollout.temperature'?"));
  EXPECT_THAT(With("data.factor=[2, 5]"), HasSubstr("did you mean 'data.factors'?"));
  EXPECT_THAT(With("train.lr=1"), HasSubstr("did you mean 'train.learning_rate'?")) << "an abbreviation";
  EXPECT_THAT(With("algorithm.name=GSPO"), HasSubstr("did you mean 'gspo'?"));
  EXPECT_THAT(With("job=grpo"),
              HasSubstr("grpo is an algorithm of job: rl, written algorithm: {name: grpo}"));
  EXPECT_THAT(With("cluster.device=gpu"), HasSubstr("found text 'gpu'; expected one of cpu, cuda"));
  EXPECT_THAT(With("environment.name=x"), HasSubstr("no environment is named 'x'"));
}

TEST(LoadConfigTest, AllErrorsOfAFileAreReported) {
  const std::string message = Error(R"(name: [a]
job: rl
model: {path: m}
data: {task: productz}
reward: {functions: [{name: exact_answr}]}
rollout: {group_size: 1, top_p: 0}
train: {steps: "many", learning_rate: fast}
checkpoint: {keep: 1}
)");
  EXPECT_EQ(
      message,
      "x.yaml:1: name: found a list; expected text\n"
      "x.yaml:4: data.task: no task is named 'productz'; did you mean 'products'?\n"
      "x.yaml:5: reward.functions[0].name: no reward is named 'exact_answr'; did you mean 'exact_answer'? "
      "(a reward of your own needs an endpoint)\n"
      "x.yaml:6: rollout.top_p: found 0; expected a number, above 0 and at most 1\n"
      "x.yaml:6: rollout.group_size: is 1, but grpo compares samples of one prompt and needs 2 or more; "
      "raise it, or write algorithm.name: reinforce_pp\n"
      "x.yaml:7: train.steps: found text 'many'; expected an integer, at least 0 and at most 1000000000; "
      "write it without quotes\n"
      "x.yaml:7: train.learning_rate: found text 'fast'; expected a number, at least 0 and at most 10\n"
      "x.yaml:8: checkpoint.keep: found 1; expected an integer, at least 2 and at most 1000000");
}

TEST(LoadConfigTest, TypesAreStrict) {
  EXPECT_THAT(Error(std::string(kGood) + "deterministic: yes\n"),
              HasSubstr("x.yaml:11: deterministic: found text 'yes'; expected true or false; write true"));
  EXPECT_THAT(Error(std::string(kGood) + "seed: -1\n"), HasSubstr("expected an integer, at least 0"));
  EXPECT_THAT(Error(std::string(kGood) + "seed: 1.0\n"), HasSubstr("without point and exponent"));
  EXPECT_THAT(Error("name: 7\n"), HasSubstr("x.yaml:1: name: found 7; expected text; put it in quotes"));
  EXPECT_THAT(With("train.steps=99999999999999999999"), HasSubstr("expected an integer"));
  EXPECT_THAT(With("train.learning_rate=.nan"), HasSubstr("expected a number"));
  EXPECT_THAT(With("rollout.stop=[1]"), HasSubstr("expected a list of texts"));
  EXPECT_THAT(With("scheduler.placement=colocatd"),
              HasSubstr("expected one of colocated, split, multiplexed, elastic; did you mean 'colocated'?"));
  EXPECT_THAT(With("train=3"), HasSubstr("train: found 3; expected keys below it"));
  EXPECT_THAT(With("data.factors=[9, 2]"),
              HasSubstr("data.factors: expected a range [lo, hi] of integers from 0 to 9999; found [9,2]"));
}

TEST(LoadConfigTest, SeedTakesAllOf64Bits) {
  const auto loaded = LoadConfigText(kGood, "x.yaml", {"seed=18446744073709551615"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.seed, UINT64_MAX);
}

TEST(LoadConfigTest, OverridesWinAndTheLastOneMost) {
  const auto loaded = LoadConfigText(
      kGood, "x.yaml",
      {"train.steps=5", "train.steps=7", "rollout.stop=[\"\\n\", b]", "name=12",
       "reward.functions.0.weight=2", "data.factors=[3, 4]", "data.held_out=1", "train.learning_rate=1e-4"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.train.steps, 7);
  EXPECT_EQ(loaded->config.train.learning_rate, 1e-4);
  EXPECT_THAT(loaded->config.rollout.stop, testing::ElementsAre("\n", "b"));
  EXPECT_EQ(loaded->config.name, "12");  // a shell takes quotes away
  EXPECT_EQ(loaded->config.reward.functions.at(0).weight, 2.0);
  EXPECT_EQ(loaded->config.data.options.at("factors"), "[3,4]");
  EXPECT_EQ(loaded->OriginOf("train.steps").ToString(), "override");
  EXPECT_THAT(loaded->OriginOf("train.steps").Where(), HasSubstr("override 'train.steps="));
}

TEST(LoadConfigTest, BadOverridesAreNamed) {
  EXPECT_THAT(With("train.steps"), HasSubstr("override 'train.steps': expected key=value"));
  EXPECT_THAT(With("name.x=1"), HasSubstr("'x' would be a key of text 'good', which has none"));
  EXPECT_THAT(With("reward.functions.3.weight=1"), HasSubstr("the list has 1 items"));
  EXPECT_THAT(With("train..steps=1"), HasSubstr("single points"));
  EXPECT_THAT(With("train.steps=[1"), HasSubstr("not valid YAML"));
  EXPECT_THAT(With("extends=y.yaml"), HasSubstr("cannot be given on the command line"));
}

TEST(LoadConfigTest, ExtendsLaysAFileOnTopOfAnother) {
  Folder folder;
  folder.Write("base/base.yaml", std::string(kGood) + "  steps: 3\nrollout: null\n");
  folder.Write("base/base.yaml", std::string(kGood) + "  steps: 3\n");
  const std::string path = folder.Write(
      "child.yaml",
      "extends: base/base.yaml\nname: child\ntrain: {groups_per_step: 4}\nreward:\n  functions: [format]\n");
  const auto loaded = LoadConfig(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.name, "child");
  EXPECT_EQ(loaded->config.train.groups_per_step, 4);
  EXPECT_EQ(loaded->config.train.steps, 3);
  ASSERT_EQ(loaded->config.reward.functions.size(), 1U);  // lists are replaced
  EXPECT_EQ(loaded->config.reward.functions[0].name, "format");
  EXPECT_THAT(loaded->OriginOf("train.steps").ToString(), HasSubstr("base/base.yaml:11"));
  EXPECT_THAT(loaded->OriginOf("name").ToString(), HasSubstr("child.yaml:2"));
}

TEST(LoadConfigTest, NullTakesAnInheritedKeyAway) {
  Folder folder;
  folder.Write("base.yaml", kGood);
  const std::string path = folder.Write("child.yaml",
                                        "extends: base.yaml\nmodel: {path: null, init: {max_position: 64, "
                                        "alphabet: \"0123456789*=\"}}\ndata: {style: terse}\n");
  const auto loaded = LoadConfig(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_TRUE(loaded->config.model.path.empty());
  EXPECT_TRUE(loaded->config.model.init.has_value());
}

TEST(LoadConfigTest, OptionsGoWithTheTaskThatIsReplaced) {
  Folder folder;
  folder.Write("base.yaml", kGood);
  folder.Write("rows.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n");
  const auto child = [&](const std::string& data) {
    return LoadConfig(folder.Write("child.yaml", "extends: base.yaml\ndata: {" + data + "}\n"));
  };
  const auto other = child("task: reverse");
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_FALSE(other->config.data.options.contains("factors"));
  const auto rows = child("task: null, path: rows.jsonl, held_out: 0");
  EXPECT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ(child("task: products")->config.data.options.at("factors"), "[2,9]") << "it is the same task";
  EXPECT_THAT(child("task: reverse, factors: [2, 9]").status().message(),
              HasSubstr("child.yaml:2: data.factors: unknown key"));

  const auto typed = LoadConfig(folder.Write("base.yaml", kGood), {"data.length=3", "data.task=reverse"});
  ASSERT_TRUE(typed.ok()) << typed.status().message();
  EXPECT_EQ(typed->config.data.options.at("length"), "3") << "it was typed for the new one";
  EXPECT_FALSE(typed->config.data.options.contains("factors"));
  EXPECT_THAT(With("data.task=null"), Not(HasSubstr("unknown key")));
}

TEST(LoadConfigTest, OptionsGoWithTheControlTaskThatIsReplaced) {
  Folder folder;
  const std::string base = folder.Write(
      "base.yaml", "extends: " + (fs::current_path() / "configs/control/cartpole.yaml").string() + "\n" +
                       "environment: {name: frozen_lake_grid, map: 8x8, slippery: false, instances: 4}\n");
  const auto child =
      LoadConfig(folder.Write("child.yaml", "extends: base.yaml\nenvironment: {name: cartpole}\n"));
  ASSERT_TRUE(child.ok()) << child.status().message();
  EXPECT_TRUE(child->config.rl()->environment.options.empty());
  EXPECT_EQ(child->config.rl()->environment.instances, 4) << "it is no option of the task";
  const auto typed = LoadConfig(base, {"environment.name=cartpole"});
  ASSERT_TRUE(typed.ok()) << typed.status().message();
  EXPECT_TRUE(typed->config.rl()->environment.options.empty());
}

TEST(LoadConfigTest, AWarningNamesTheOptionsThatWentWithTheirTask) {
  Folder folder;
  folder.Write("base.yaml", kGood);
  const auto child = [&](const std::string& data, const std::vector<std::string>& overrides = {}) {
    const auto loaded =
        LoadConfig(folder.Write("child.yaml", "extends: base.yaml\ndata: {" + data + "}\n"), overrides);
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    std::vector<std::string> told;
    for (const std::string& warning : loaded->warnings)
      if (warning.find("left out") != std::string::npos) told.push_back(warning);
    return told;
  };
  EXPECT_THAT(
      child("task: reverse"),
      testing::ElementsAre(HasSubstr("child.yaml:2: data.task: data.factors of products is left out")));
  EXPECT_THAT(child("task: products"), testing::IsEmpty());
  EXPECT_THAT(
      child("task: reverse, length: 3", {"data.task=products"}),
      testing::ElementsAre(HasSubstr("data.factors of products is left out"),
                           HasSubstr("override 'data.task=products': data.task: data.length of reverse")));
  folder.Write("rows.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n");
  EXPECT_THAT(child("task: null, path: rows.jsonl, held_out: 0"),
              testing::ElementsAre(testing::EndsWith("left out, because data.task is taken away")));
}

TEST(LoadConfigTest, ExtendsInACircleIsRefused) {
  Folder folder;
  const std::string a = folder.Write("a.yaml", "# a\nextends: b.yaml\n");
  folder.Write("b.yaml", "extends: ./a.yaml\n");
  const auto loaded = LoadConfig(a);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(), HasSubstr("b.yaml:1: extends: "));
  EXPECT_THAT(loaded.status().message(), HasSubstr("a config cannot be built on itself"));
  const auto missing = LoadConfig(folder.Write("c.yaml", "extends: no.yaml\n"));
  EXPECT_THAT(missing.status().message(), HasSubstr("no.yaml: no such file"));
}

TEST(LoadConfigTest, MissingFileAndFolderAreTold) {
  EXPECT_EQ(LoadConfig("no/such.yaml").status().code(), StatusCode::kNotFound);
  EXPECT_THAT(LoadConfig("configs").status().message(), HasSubstr("is a folder"));
}

TEST(LoadConfigTest, PathsAreLookedUpBesideTheFileAndThenInTheCurrentDirectory) {
  Folder folder;
  const std::string row = "{\"prompt\": \"a\", \"answer\": \"b\"}\n";
  folder.Write("jobs/rows.jsonl", row);
  folder.Write("rows.jsonl", row);
  const std::string jobs = fs::canonical(fs::path(folder.Write("jobs/held.jsonl", row)).parent_path());
  const std::string path = folder.Write(
      "jobs/x.yaml", std::string("job: rl\nmodel: {path: nowhere}\ndata: {path: rows.jsonl, "
                                 "eval_path: held.jsonl}\nreward: {functions: [exact_answer]}\n"));
  const fs::path before = fs::current_path();
  // The config means the same wherever it is read.
  for (const fs::path& from : {before, fs::path(jobs).parent_path(), fs::path("/")}) {
    fs::current_path(from);
    const auto loaded = LoadConfig(from == "/" ? fs::path(jobs) / "x.yaml" : fs::path(path));
    fs::current_path(before);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(loaded->config.data.path, jobs + "/rows.jsonl");
    EXPECT_EQ(loaded->config.data.eval_path, jobs + "/held.jsonl");
    EXPECT_EQ(loaded->config.model.path, "nowhere");
    ASSERT_EQ(loaded->warnings.size(), 1U);
    EXPECT_THAT(loaded->warnings[0], HasSubstr("x.yaml:2: model.path: 'nowhere' is not there (tried " + jobs +
                                               "/nowhere and " + (from / "nowhere").string() + ")"));
  }
  // What is not beside the file is of the current directory; so is what the command line says, at once.
  fs::current_path(fs::path(jobs).parent_path());
  const auto beside = LoadConfig("jobs/x.yaml", {"data.path=rows.jsonl", "model.path=jobs/"});
  fs::current_path(before);
  ASSERT_TRUE(beside.ok()) << beside.status().message();
  EXPECT_EQ(beside->config.data.path, fs::path(jobs).parent_path().string() + "/rows.jsonl");
  EXPECT_EQ(beside->config.model.path, jobs);
}

TEST(LoadConfigTest, ASocketOfARewardServerIsFoundFromAnyDirectory) {
  Folder folder;
  const std::string text =
      "model: {path: m}\ndata: {path: d}\nreward: {functions: [{name: a, endpoint: \"unix:a.sock\"}, "
      "{name: b, endpoint: \"unix:b.sock\"}, {name: c, endpoint: \"localhost:1\"}]}\n";
  const std::string path = folder.Write("x.yaml", text);
  const std::string beside = folder.Write("a.sock", "");
  const auto loaded = LoadConfig(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.reward.functions[0].endpoint, "unix:" + beside);
  EXPECT_EQ(loaded->config.reward.functions[1].endpoint, "unix:" + (fs::current_path() / "b.sock").string());
  EXPECT_EQ(loaded->config.reward.functions[2].endpoint, "localhost:1");
}

TEST(LoadConfigTest, ModelAndDataComeFromOnePlace) {
  EXPECT_THAT(With("model=null"), HasSubstr("model: has neither path nor init"));
  EXPECT_THAT(With("model.init.layers=2"), HasSubstr("written beside model.init"));
  EXPECT_THAT(With("data=null"), HasSubstr("data: has neither task nor path"));
  EXPECT_THAT(Error(kGood, {"data.path=x.jsonl"}), HasSubstr("written beside data.task"));
  EXPECT_THAT(With("data.eval_path=x.jsonl"), HasSubstr("data.eval_path: belongs to data.path"));
}

TEST(LoadConfigTest, HeldOutIsBoundedByTheTask) {
  EXPECT_THAT(With("data.held_out=30"),
              HasSubstr("data.held_out: expected 0 to 18, half of the 36 unordered pairs"));
  const auto loaded = LoadConfigText(kGood, "x.yaml", {"data.held_out=null"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->config.data.held_out, 9);  // a quarter of 36
}

TEST(LoadConfigTest, RlRules) {
  EXPECT_THAT(
      With("rollout.group_size=1"),
      HasSubstr("rollout.group_size: is 1, but grpo compares samples of one prompt and needs 2 or more"));
  EXPECT_THAT(
      With("algorithm.name=gigpo"),
      HasSubstr(
          "algorithm.name: advantage gigpo is over turns of episodes, and this job has no environment"));
  EXPECT_THAT(With("rollout.temperature=0"), HasSubstr("rollout.temperature: is 0"));
  EXPECT_THAT(With("rollout.top_p=1.5"), HasSubstr("above 0 and at most 1"));
  EXPECT_THAT(With("reward=null"), HasSubstr("reward.functions: is empty"));
  EXPECT_THAT(With("reward.functions=[{name: mine}]"), HasSubstr("no reward is named 'mine'"));
  EXPECT_EQ(With("reward.functions=[{name: mine, endpoint: \"unix:/tmp/x\"}]"), "no error");
  EXPECT_EQ(With("reward.functions=[{name: mine, endpoint: \"http://127.0.0.1:7001/grade\"}]"), "no error");
  EXPECT_THAT(
      With("reward.functions=[{name: mine, endpoint: \"https://judge/\"}]"),
      HasSubstr("reward.functions[0].endpoint: found 'https://judge/'; expected http://HOST:PORT/PATH"));
  EXPECT_EQ(With("reward.functions=[{name: reward_model, path: /tmp}, {name: \"judge:tone\", path: /tmp, "
                 "score_max: 5}, {name: judge, endpoint: \"localhost:1\"}]"),
            "no error");
  EXPECT_THAT(
      With("reward.functions=[reward_model]"),
      HasSubstr("reward.functions[0].name: reward_model: grades by a model, and none is named; add `path: "
                "FOLDER` beside it"));
  EXPECT_THAT(
      With("reward.functions=[{name: exact_answer, path: /tmp}]"),
      HasSubstr("reward.functions[0].path: is a key of judge and reward_model, and this is exact_answer; "
                "remove it"));
  EXPECT_THAT(With("reward.functions=[{name: mine, endpoint: \"localhost:1\", max_tokens: 8}]"),
              HasSubstr("and this is mine at an endpoint; remove it"));
  EXPECT_THAT(With("reward.functions=[{name: reward_model, path: /tmp, score_max: 5}]"),
              HasSubstr("reward.functions[0].score_max: is a key of judge, and this is reward_model"));
  EXPECT_THAT(With("reward.functions=[{name: judge, path: /tmp, score_pattern: \"(\"}]"),
              HasSubstr("reward.functions[0].score_pattern: bad regular expression"));
  EXPECT_EQ(With("reward.functions=[\"format:^a+$\"]"), "no error");
  EXPECT_THAT(With("reward.functions=[\"format:(\"]"), HasSubstr("bad regular expression"));
  EXPECT_EQ(With("algorithm.kl.coef=0.1"), "no error");
  EXPECT_THAT(With("algorithm.kl.coef=-0.1"),
              HasSubstr("algorithm.kl.coef: found -0.1; expected a number, at least 0"));
  EXPECT_THAT(With("algorithm.kl.estimator=k4"), HasSubstr("algorithm.kl.estimator"));
  EXPECT_THAT(With("algorithm.kl.coeff=0.1"),
              HasSubstr("algorithm.kl.coeff: unknown key; did you mean 'algorithm.kl.coef'?"));
  EXPECT_THAT(With("algorithm.critic.clip=0.2"),
              HasSubstr("algorithm.critic.clip: advantage grpo has no critic"));
  EXPECT_THAT(With("reward.shaping.leave_one_out=true"),
              HasSubstr("reward.shaping.leave_one_out: says how the mean is formed"));
  EXPECT_THAT(With("preference.beta=0.2"),
              HasSubstr("preference.beta: belongs to job: dpo, and this is job: rl"));
  EXPECT_THAT(With("train.minibatches=9"), HasSubstr("more than the 8 groups of a step"));
}

TEST(LoadConfigTest, AnEnvironmentWithoutItsNameIsRefused) {
  EXPECT_THAT(Error(std::string(kGood) + "environment:\n  max_turns: 3\n  latency: {median_s: 1}\n"),
              testing::AllOf(HasSubstr("x.yaml:12: environment.max_turns: belongs to an environment, and "
                                       "environment.name is missing"),
                             HasSubstr("x.yaml:13: environment.latency.median_s: belongs to")));
  for (const char* key : {"workers=2", "size=4096", "step_timeout_s=60", "held_out=3"})
    EXPECT_THAT(With(std::string("environment.") + key), HasSubstr("environment.name is missing")) << key;
  const std::string unknown = Error(kGood, {"environment.name=x", "environment.max_turns=3"});
  EXPECT_THAT(unknown, Not(HasSubstr("is missing")));
}

// Where nothing reads a key, a value of its own is refused; the usual one, which every resolved config has,
// is not.
TEST(LoadConfigTest, KeysThatNothingReadsAreRefused) {
  const std::string data = "model: {path: m}\ndata: {task: reverse}\n";
  const std::vector<std::string> sampling = {"temperature=0.5", "top_k=2", "top_p=0.5", "min_p=0.1",
                                             "record_routing=true"};
  const std::vector<std::string> generation = {
      "stop=[a]",         "stop_token_ids=[3]",   "chunk_tokens=8",         "max_concurrent=2",
      "block_tokens=8",   "kv_cache_tokens=4096", "max_batched_tokens=512", "kv_on_update=keep",
      "cuda_graphs=false"};
  for (const std::string job : {"dpo", "reward_model", "sft", "distill"}) {
    const std::string text =
        data + "job: " + job + "\n" + (job == "distill" ? "distill: {teacher: t}\n" : "");
    EXPECT_EQ(Error(text, {"rollout.temperature=1", "rollout.kv_on_update=recompute"}), "no error") << job;
    for (const std::string& key : sampling)
      EXPECT_THAT(Error(text, {"rollout." + key, "eval.every_steps=2"}),
                  HasSubstr("but a job: " + job + " draws no samples to train on"))
          << key;
    const bool pairs = job == "dpo" || job == "reward_model";
    for (const std::string& key : generation) {
      EXPECT_THAT(Error(text, {"rollout." + key}), HasSubstr("but a job: " + job + " generates ")) << key;
      const std::string evaluated = Error(text, {"rollout." + key, "eval.every_steps=2"});
      if (pairs) {
        EXPECT_THAT(evaluated, HasSubstr("generates nothing")) << key;
      } else {
        EXPECT_EQ(evaluated, "no error") << key;
      }
    }
    EXPECT_THAT(
        Error(text, {"eval.samples=3"}),
        HasSubstr(job == "distill" ? "eval.samples: is 3, but a job: distill is evaluated on" : "no error"));
    EXPECT_EQ(Error(text, {"eval.samples=3", "eval.every_steps=2"}), "no error");
  }
  EXPECT_EQ(Error(data + "job: sft\nrollout: {temperature: 0.5}\n"),
            "x.yaml:4: rollout.temperature: is 0.5, but a job: sft draws no samples to train on, and "
            "evaluation is greedy; remove it (null takes an inherited one away)");

  EXPECT_THAT(With("rollout.repack_s=2"), HasSubstr("rollout.repack_s: is 2, but it moves pinned samples"));
  EXPECT_EQ(With("rollout.repack_s=5"), "no error");
  EXPECT_EQ(Error(kGood, {"rollout.repack_s=2", "rollout.pin_version=true"}), "no error");
  for (const char* mode : {"first_done", "tail_rounds"}) {
    const std::string key = std::string("scheduler.oversample_mode=") + mode;
    EXPECT_THAT(With(key), HasSubstr(std::string("is ") + mode + ", but there are no surplus groups"));
    EXPECT_EQ(Error(kGood, {key, "scheduler.oversample=1.5"}), "no error");
  }
  EXPECT_EQ(Error(kGood, {"scheduler.oversample_mode=tail_rounds", "scheduler.max_lag_versions=1"}),
            "no error");
  EXPECT_THAT(With("train.min_learning_rate_ratio=0.1"),
              HasSubstr("train.min_learning_rate_ratio: is 0.1, but train.schedule is constant"));
  EXPECT_EQ(Error(kGood, {"train.min_learning_rate_ratio=0.1", "train.schedule=linear"}), "no error");
  // A slip in the key that it hangs on is said once.
  EXPECT_THAT(Error(kGood, {"train.min_learning_rate_ratio=0.1", "train.schedule=liner"}),
              Not(HasSubstr("train.schedule is constant")));
}

TEST(LoadConfigTest, PoliciesAreScheduledByTheSameRules) {
  const auto with = [](const std::vector<std::string>& overrides) {
    const auto loaded = LoadConfig("configs/test/control.yaml", overrides);
    return loaded.ok() ? "no error" : loaded.status().message();
  };
  EXPECT_EQ(with({"rollout.admission=reserve", "train.router_aux_coef=0"}), "no error");
  EXPECT_THAT(with({"rollout.admission=adaptive"}),
              HasSubstr("rollout.admission: is adaptive, but means nothing to a policy of control tasks"));
  EXPECT_THAT(with({"train.router_aux_coef=0.1"}), HasSubstr("train.router_aux_coef: is 0.1, but means"));
  EXPECT_THAT(with({"scheduler.infra_drop_alarm=0.5"}), HasSubstr("the alarm lies above the stop"));
  EXPECT_THAT(with({"rollout.pin_version=true", "scheduler.on_stale=mask"}),
              HasSubstr("a pinned sample ends on one version"));
  EXPECT_THAT(with({"scheduler.oversample_mode=first_done"}), HasSubstr("there are no surplus groups"));
}

TEST(LoadConfigTest, SplitNeedsSlotsForBoth) {
  EXPECT_THAT(With("scheduler.placement=split"), HasSubstr("split needs 2 or more slots"));
  EXPECT_THAT(Error(kGood, {"scheduler.placement=split", "cluster.slots=2", "scheduler.actor_slots=2"}),
              HasSubstr("leaves none to generate"));
  EXPECT_EQ(Error(kGood, {"scheduler.placement=split", "cluster.slots=2"}), "no error");
  EXPECT_EQ(With("scheduler.max_lag_versions=2"), "no error");  // colocated may run ahead as well
}

TEST(LoadConfigTest, TheLeastSlotsOfARunCanDoItsJob) {
  const auto error = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"cluster.slots=4", "train.groups_per_step=12"});
    return Error(kGood, overrides);
  };
  EXPECT_EQ(error({"cluster.min_slots=1"}), "no error");
  EXPECT_THAT(error({"cluster.min_slots=5"}),
              HasSubstr("cluster.min_slots: is 5, but there are 4 slots (cluster.slots); lower it"));
  EXPECT_THAT(
      error({"cluster.min_slots=1", "scheduler.placement=split"}),
      HasSubstr("cluster.min_slots: is 1, but with scheduler.placement split one slot trains and another"));
  EXPECT_THAT(error({"cluster.min_slots=2", "scheduler.placement=elastic", "scheduler.rollout_floor=2"}),
              HasSubstr("which leaves none to train; write 3 or more"));
  EXPECT_THAT(error({"cluster.min_slots=3", "deterministic=true"}),
              HasSubstr("deterministic promises the same"));
  EXPECT_THAT(error({"cluster.min_slots=3", "scheduler.uneven_dp=false"}), HasSubstr("need not divide"));
  EXPECT_THAT(error({"scheduler.placement=elastic", "deterministic=true"}),
              HasSubstr("scheduler.placement: is elastic, which changes how many slots train"));
  EXPECT_EQ(error({"cluster.min_slots=4", "deterministic=true", "scheduler.uneven_dp=false"}), "no error");
  EXPECT_EQ(error({"cluster.min_slots=2", "deterministic=true", "scheduler.placement=split"}), "no error");
}

TEST(LoadConfigTest, AnOptimizerIsOffloadedOnlyWhereAnotherRoleNeedsItsMemory) {
  const std::string disk = "train.offload_optimizer=disk";
  EXPECT_EQ(With(disk), "no error");
  EXPECT_EQ(Error(kGood, {disk, "scheduler.placement=multiplexed", "cluster.slots=2"}), "no error");
  EXPECT_THAT(
      Error(kGood, {disk, "scheduler.placement=split", "cluster.slots=2"}),
      HasSubstr("train.offload_optimizer: is disk, but with scheduler.placement split no slot has both"));
  EXPECT_THAT(Error(kGood, {disk, "scheduler.placement=elastic", "cluster.slots=2"}),
              HasSubstr("with scheduler.placement elastic slots that begin to train fetch the state"));
  EXPECT_EQ(Error(kGood, {"train.offload_optimizer=none", "scheduler.placement=split", "cluster.slots=2"}),
            "no error");
  const std::string sft = "job: sft\nmodel: {path: m}\ndata: {task: reverse}\n";
  EXPECT_THAT(Error(sft, {disk}), HasSubstr("this job: sft only trains"));
  EXPECT_EQ(Error(sft, {disk, "eval.every_steps=2"}), "no error");
}

TEST(LoadConfigTest, TheBestCheckpointIsKnownByAnEvaluationOfItsStep) {
  const auto best = [](const std::string& metric, std::vector<std::string> more = {}) {
    more.push_back("checkpoint.keep_best=" + metric);
    return Error(kGood, more);
  };
  const std::vector<std::string> good = {"checkpoint.every_steps=5", "eval.every_steps=10"};
  EXPECT_EQ(best("eval/reward/mean", good), "no error");
  EXPECT_EQ(best("eval/accuracy", good), "no error");
  EXPECT_EQ(best("eval/reward/exact_answer/mean", good), "no error");
  EXPECT_EQ(best("''"), "no error");
  EXPECT_THAT(
      best("eval/reward/other/mean", good),
      HasSubstr("checkpoint.keep_best: is eval/reward/other/mean, which no evaluation of this job has; "
                "one of eval/reward/mean, eval/accuracy, eval/reward/exact_answer/mean"));
  EXPECT_THAT(best("critic/score/mean", good), HasSubstr("which no evaluation of this job has"));
  EXPECT_THAT(best("eval/return/mean", good), HasSubstr("which no evaluation of this job has"));
  EXPECT_THAT(best("eval/accuracy"), HasSubstr("needs evaluations on the way; write eval.every_steps"));
  EXPECT_THAT(best("eval/accuracy", {"checkpoint.every_steps=4", "eval.every_steps=10"}),
              HasSubstr("evaluations are every 10 steps and checkpoints every 4; make eval.every_steps a "
                        "multiple"));
  EXPECT_THAT(best("eval/accuracy", {"checkpoint.every_steps=0", "eval.every_steps=10"}),
              HasSubstr("checkpoints at the start and the end alone"));
  const std::string dpo = "job: dpo\nmodel: {path: m}\ndata: {task: reverse}\n";
  EXPECT_THAT(
      Error(dpo, {"checkpoint.keep_best=eval/accuracy"}),
      HasSubstr("no evaluation of this job has; one of eval/loss, eval/dpo/accuracy, eval/dpo/margin"));
  EXPECT_THAT(Error(dpo, {"checkpoint.keep_best=eval/loss"}), HasSubstr("write eval.every_steps"));
  EXPECT_EQ(Error(dpo, {"checkpoint.keep_best=eval/dpo/margin", good[0], good[1]}), "no error");
  const std::string sft = "job: sft\nmodel: {path: m}\ndata: {task: reverse}\n";
  EXPECT_EQ(Error(sft, {"checkpoint.keep_best=eval/loss", good[0], good[1]}), "no error");
  EXPECT_EQ(Error(sft, {"checkpoint.keep_best=eval/accuracy", good[0], good[1]}), "no error");
}

TEST(LoadConfigTest, WhatLeavesTheHostIsEncryptedOrRefused) {
  const auto error = [](std::vector<std::string> overrides) { return Error(kGood, overrides); };
  for (const char* bind : {"0.0.0.0", "10.0.0.1", "example.org", "::", "127.evil.org"}) {
    const std::string key = std::string("cluster.bind='") + bind + "'";
    EXPECT_THAT(With(key), HasSubstr("write cluster.weight_transport: stream")) << bind;
    EXPECT_EQ(error({key, "cluster.weight_transport=stream", "cluster.advertise=10.0.0.1"}), "no error")
        << bind;
  }
  for (const char* any : {"0.0.0.0", "'::'", "0"})
    EXPECT_THAT(error({std::string("cluster.bind=") + any, "cluster.weight_transport=stream"}),
                HasSubstr("cluster.advertise"));
  // Sums of gradients are not.
  EXPECT_THAT(error({"cluster.bind=10.0.0.1", "cluster.weight_transport=stream", "cluster.slots=2"}),
              HasSubstr("the sums of their gradients are not encrypted"));
  EXPECT_EQ(error({"cluster.bind=10.0.0.1", "cluster.weight_transport=stream", "cluster.slots=2",
                   "cluster.trusted_fabric=true"}),
            "no error");
  EXPECT_EQ(error({"cluster.bind=10.0.0.1", "cluster.weight_transport=stream", "cluster.slots=2",
                   "scheduler.placement=split"}),
            "no error");
  for (const char* bind : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    EXPECT_EQ(With(std::string("cluster.bind='") + bind + "'"), "no error") << bind;
  }
}

TEST(LoadConfigTest, WhatWorkersDialIsAHostThatTheyReach) {
  const auto error = [](const std::string& bind, const std::string& advertise) {
    return Error(kGood, {"cluster.bind=" + bind, "cluster.weight_transport=stream",
                         "cluster.advertise='" + advertise + "'"});
  };
  for (const char* good : {"node-1", "10.0.0.1", "fd00::7", "[fd00::7]", "fd00::a:7"})
    EXPECT_EQ(error("0.0.0.0", good), "no error") << good;
  for (const char* with_port : {"node-1:4000", "10.0.0.1:0", "[fd00::7]:4000"})
    EXPECT_THAT(error("0.0.0.0", with_port), HasSubstr("write the host alone, the port is cluster.port"));
  EXPECT_THAT(error("0.0.0.0", "0.0.0.0"), HasSubstr("which no worker can dial"));
  EXPECT_THAT(error("127.0.0.1", "node-1"), HasSubstr("which nobody reaches at node-1"));
  EXPECT_EQ(error("127.0.0.1", "localhost"), "no error");
}

TEST(LoadConfigTest, AFrameOfRowsHasToFitAMessage) {
  EXPECT_THAT(With("security.max_control_bytes=524288"), HasSubstr("no batch would ever arrive"));
  EXPECT_THAT(With("security.max_frame_bytes=8388608"), HasSubstr("no batch would ever arrive"));
}

TEST(LoadConfigTest, RowsHaveToFitTheMicroBatch) {
  EXPECT_THAT(
      With("data.max_prompt_tokens=1009"),
      HasSubstr("x.yaml:10: train.micro_batch_tokens: the longest row has 1009 prompt + 16 new tokens"));
  EXPECT_EQ(With("data.max_prompt_tokens=1008"), "no error");
  EXPECT_THAT(With("train.micro_batch_tokens=16"), HasSubstr("does not fit train.micro_batch_tokens = 16"));
  EXPECT_THAT(With("rollout.kv_cache_tokens=8"), HasSubstr("does not fit rollout.kv_cache_tokens = 8"));
  const auto loaded = LoadConfigText(kGood, "x.yaml");
  EXPECT_EQ(loaded->config.data.max_prompt_tokens, 1008);  // the default gives way
  EXPECT_THAT(loaded->OriginOf("data.max_prompt_tokens").ToString(),
              HasSubstr("what train.micro_batch_tokens leaves"));
}

TEST(LoadConfigTest, RowsHaveToFitTheModelsPositions) {
  const Folder folder;
  const std::string model =
      fs::path(
          folder.Write("m/config.json",
                       R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32,
    "max_position_embeddings": 48, "eos_token_id": 1})"))
          .parent_path()
          .string();
  const std::vector<std::string> at = {"model.path=" + model};
  const auto rl = LoadConfigText(kGood, "x.yaml", at);
  ASSERT_TRUE(rl.ok()) << rl.status().message();
  EXPECT_EQ(rl->config.data.max_prompt_tokens, 32) << "48 less max_new_tokens";
  EXPECT_THAT(rl->OriginOf("data.max_prompt_tokens").ToString(),
              HasSubstr("what max_position_embeddings of model.path leaves"));
  EXPECT_THAT(Error(kGood, {at[0], "data.max_prompt_tokens=33"}),
              HasSubstr("33 prompt + 16 new tokens (data.max_prompt_tokens, rollout.max_new_tokens) and does "
                        "not fit max_position_embeddings of model.path = 48; lower them"));
  EXPECT_EQ(Error(kGood, {at[0], "train.micro_batch_tokens=2048", "data.max_prompt_tokens=1024"}), "no error")
      << "as a run's resolved config has it";
  EXPECT_EQ(Error(kGood, {at[0], "rollout.max_new_tokens=48"}), "no error")
      << "generate: an answer ends where the positions do";
  for (const std::string job : {"sft", "dpo"}) {
    for (const std::string& from : {"path: " + model, std::string("init: {max_position: 48}")}) {
      const std::string text = "job: " + job + "\nmodel: {" + from + "}\ndata: {task: reverse}\n";
      const auto loaded = LoadConfigText(text, "x.yaml");
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      EXPECT_EQ(loaded->config.data.max_prompt_tokens, 47) << text;
      EXPECT_EQ(Error(text, {"data.max_prompt_tokens=64"}), "no error")
          << "rows are named when they are read";
    }
  }
}

TEST(LoadConfigTest, AListOfKeysHasEachOnce) {
  const std::string message = Error(std::string(kGood) + "y: 1\n");
  const size_t list = message.find("y: unknown key; the top level has ");
  ASSERT_NE(list, std::string::npos) << message;
  const size_t first = message.find(" reward,", list);
  ASSERT_NE(first, std::string::npos) << message;
  EXPECT_EQ(message.find(" reward,", first + 1), std::string::npos) << message;
}

TEST(LoadConfigTest, SftRefusesKeysOfRl) {
  const std::string sft = "job: sft\nmodel: {path: m}\ndata: {task: reverse}\n";
  EXPECT_EQ(Error(sft), "no error");
  EXPECT_THAT(Error(sft + "algorithm: {clip_low: 0.1}\n"),
              HasSubstr("x.yaml:4: algorithm.clip_low: belongs to job: rl"));
  EXPECT_THAT(Error(sft + "reward: {functions: [exact_answer]}\n"),
              HasSubstr("reward.functions: belongs to job: rl"));
  EXPECT_THAT(Error(sft + "rollout: {group_size: 4}\n"), HasSubstr("rollout.group_size: belongs to job: rl"));
  // A supervised job runs on any placement; slots that would generate are idle.
  EXPECT_EQ(Error(sft, {"scheduler.placement=split", "cluster.slots=2"}), "no error");
}

TEST(LoadConfigTest, NewTokensAreOfJobsThatGenerate) {
  const std::string sft = "job: sft\nmodel: {init: {max_position: 64}}\ndata: {task: reverse}\n";
  EXPECT_EQ(Error(sft), "no error");
  EXPECT_EQ(Error(sft, {"train.micro_batch_tokens=64", "data.max_prompt_tokens=64"}), "no error");
  EXPECT_THAT(Error(sft, {"eval.every_steps=5"}),
              HasSubstr("1 prompt + 64 new tokens by default (data.max_prompt"));
}

TEST(LoadConfigTest, TinyModelHasToKnowTheCharactersOfTheTask) {
  const std::string text =
      "model: {init: {max_position: 64, alphabet: \"abc =\"}}\nreward: {functions: [exact_answer]}\ndata: "
      "{task: reverse, letters: abc, held_out: 2, length: 2}\nrollout: {max_new_tokens: 8}\n";
  EXPECT_THAT(
      Error(text),
      HasSubstr("x.yaml:1: model.init.alphabet: lacks 'erv', which questions of task reverse contain"));
  EXPECT_EQ(Error(text, {"model.init.alphabet=abcerv ="}), "no error");
  EXPECT_THAT(Error(text, {"model.init.alphabet=abcerva ="}), HasSubstr("has 'a' twice"));
  EXPECT_THAT(Error(text, {"model.init.alphabet=\"abcerv =\u00e9\""}),
              HasSubstr("has '\u00e9', which is not ASCII"));
}

TEST(LoadConfigTest, WarmStartHasToTrainTheSameModel) {
  Folder folder;
  const std::string model =
      "model: {init: {max_position: 64, alphabet: \"abcerv =\"WARM}}\ndata: {task: reverse, letters: abc, "
      "held_out: 2, length: 2}\nrollout: {max_new_tokens: 8}\n";
  const auto with = [&](const std::string& warm) {
    return std::string(model).replace(model.find("WARM"), 4, warm);
  };
  folder.Write("sft.yaml", "job: sft\n" + with(""));
  const std::string path =
      folder.Write("rl.yaml", "reward: {functions: [exact_answer]}\n" + with(", warm_start: sft.yaml"));
  const auto loaded = LoadConfig(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_THAT(LoadConfig(path, {"model.init.layers=3"}).status().message(),
              HasSubstr("model.init.layers: is 3 here and 4 in the warm start"));
  EXPECT_THAT(LoadConfig(path, {"model.init.warm_start=no.yaml"}).status().message(),
              HasSubstr("no file 'no.yaml'"));
  EXPECT_THAT(LoadConfig(path, {"data.held_out=1"}).status().message(),
              HasSubstr("could train on held-out questions of this job"));
  const auto seeded = LoadConfig(path, {"seed=7"});
  ASSERT_TRUE(seeded.ok()) << seeded.status().message();
  EXPECT_EQ(LoadWarmStart(seeded->config)->config.seed, 7U);
  EXPECT_FALSE(LoadWarmStart(JobConfig{}).ok());
  folder.Write("sft.yaml", "job: rl\nreward: {functions: [exact_answer]}\n" + with(""));
  EXPECT_THAT(LoadConfig(path).status().message(), HasSubstr("expected job: sft"));
  folder.Write("sft.yaml", "job: sft\nsteps: 4\n" + with(""));
  EXPECT_THAT(LoadConfig(path).status().message(), HasSubstr("sft.yaml:2: steps: unknown key"));
}

TEST(LoadConfigTest, EmptyFileIsAnErrorAboutWhatIsMissing) {
  EXPECT_THAT(Error(""), HasSubstr("model: has neither path nor init"));
  EXPECT_THAT(Error("- a\n"), HasSubstr("config: found a list"));
}

// Whatever the bytes, loading ends with a config or with a message, and never dies.
TEST(LoadConfigTest, DamagedTextsNeverDie) {
  const std::string good = kGood;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char c : {'\0', '\n', ':', '{', '[', '"', '&', '*', '!', '-', '\xff', ' '}) {
      std::string text = good;
      text[i] = c;
      const auto loaded = LoadConfigText(text, "x.yaml");
      if (!loaded.ok()) {
        EXPECT_FALSE(loaded.status().message().empty());
      }
    }
    const auto loaded = LoadConfigText(good.substr(0, i), "x.yaml");
    if (!loaded.ok()) {
      EXPECT_THAT(loaded.status().message(), Not(HasSubstr("terminate")));
    }
  }
}

// Who looks at a run is not to play its games.
TEST(LoadConfigTest, GamesArePlayedForWhoAsksAlone) {
  auto loaded = LoadConfigText(
      "name: x\nmodel: {init: {max_position: 128, alphabet: \"abc\"}}\nenvironment: {name: tally}\n"
      "rollout: {max_new_tokens: 64}\n",
      "x.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Status tried = TryGames(*loaded).status();
  EXPECT_EQ(tried.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(tried.message(),
              testing::AllOf(HasSubstr("x.yaml:2: model.init.alphabet: lacks '"),
                             HasSubstr("', which environment tally writes or reads; add them")));
}

TEST(LoadConfigTest, GamesThatThisMachineHasNoProcessForWereNotTriedAndAreNotAtFault) {
  auto loaded = LoadConfigText(
      "name: x\nmodel: {init: {max_position: 128, alphabet: \"abc\"}}\nenvironment: {name: tally}\n"
      "rollout: {max_new_tokens: 64}\n",
      "x.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int free = dup(STDERR_FILENO);
  close(free);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(free), .rlim_max = files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const auto tried = TryGames(*loaded);
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_TRUE(tried.ok()) << tried.status().message();
  EXPECT_THAT(*tried,
              testing::AllOf(testing::StartsWith("x.yaml:3: environment.name: games of environment tally ("),
                             HasSubstr(" were not tried: no child process: pipe2: ")));
}

// A call that may take longer than the run may stand still would be told as a stall, without a name.
TEST(LoadConfigTest, ACallOfAPlugInIsLateBeforeTheRunStalls) {
  const auto load = [](const std::string& cluster) {
    return LoadConfigText(std::string(kGood) + "cluster: {" + cluster + "}\n", "x.yaml");
  };
  const Status late = load("stall_timeout_s: 20, plugin_timeout_s: 40").status();
  EXPECT_EQ(late.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(late.message(), testing::ContainsRegex(
                                  "^x.yaml:[0-9]+: cluster.plugin_timeout_s: is 40 s, more than the 20 s of "
                                  "cluster.stall_timeout_s.*; lower it, or raise cluster.stall_timeout_s$"));
  EXPECT_TRUE(load("stall_timeout_s: 40, plugin_timeout_s: 40").ok());
  const auto adjusted = load("stall_timeout_s: 20");
  ASSERT_TRUE(adjusted.ok()) << adjusted.status().message();
  EXPECT_EQ(adjusted->config.cluster.plugin_timeout_s, 20);
  EXPECT_EQ(load("heartbeat_s: 1")->config.cluster.plugin_timeout_s, 30);
}

}  // namespace
}  // namespace tidepool::config
