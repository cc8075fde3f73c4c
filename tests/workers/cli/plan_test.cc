// `tidepool plan`: layouts that fit, what is left out and why, and the config that is written. Profiles of
// hardware are found near the program, whatever the folder.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::json;

const std::string kSplit = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_split.yaml";

// Of 12 million parameters, whose matrices two slots can divide.
std::vector<std::string> Plan(const std::vector<std::string>& more, int64_t slots = 3) {
  std::vector<std::string> words = {"plan", kSplit, "cluster.slots=" + std::to_string(slots)};
  for (const char* key :
       {"hidden_size=512", "intermediate_size=1536", "layers=4", "heads=8", "kv_heads=4", "head_size=64"})
    words.push_back(std::string("model.init.") + key);
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json Planned(const std::vector<std::string>& more, int64_t slots = 3) {
  std::vector<std::string> words = Plan(more, slots);
  words.emplace_back("--json");
  const CliResult r = RunCli(words);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  return Json::parse(r.out, nullptr, false);
}

TEST(PlanTest, AModelThatDoesNotFitWholeIsSharedBetweenTheSlotsThatTrain) {
  // Whole, a slot that trains takes 454 MiB.
  const Json roomy = Planned({"--memory-gb", "2"}), tight = Planned({"--memory-gb", "0.4", "--top", "50"});
  EXPECT_TRUE(roomy["too_large"].empty()) << roomy.dump(1);
  ASSERT_FALSE(tight["layouts"].empty());
  bool zero = false, tensor = false;
  for (const Json& layout : tight["layouts"]) {
    EXPECT_TRUE(layout["zero"] > 0 || layout["tp"] > 1) << layout.dump();
    EXPECT_LE(layout["train_slot_bytes"], 400'000'000) << layout.dump();
    EXPECT_LE(layout["other_slot_bytes"], 400'000'000) << layout.dump();
    zero = zero || layout["zero"] > 0;
    tensor = tensor || layout["tp"] > 1;
  }
  EXPECT_TRUE(zero && tensor) << tight.dump(1);
  ASSERT_FALSE(tight["too_large"].empty());
  const Json& left_out = tight["too_large"][0];
  EXPECT_EQ(left_out["bytes"].get<int64_t>() - left_out["missing_bytes"].get<int64_t>(), 400'000'000);
  EXPECT_NE(left_out["parts"].get<std::string>().find("; "), std::string::npos) << "which key helps";
  EXPECT_TRUE(tight["given_too_large"].is_object()) << "one slot trains, with all of the optimizer";
}

TEST(PlanTest, AGivenLayoutThatCannotRunIsNotAmongThoseToChooseFrom) {
  const CliResult r = RunCli({"plan", "configs/test/rl_split.yaml", "cluster.slots=4",
                              "scheduler.actor_slots=2", "train.mesh.tp=2", "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  const Json plan = Json::parse(r.out, nullptr, false);
  EXPECT_NE(plan.value("given_refused", "").find("train.mesh.tp: the model has 1 key and value heads"),
            std::string::npos)
      << plan.dump(1);
  for (const Json& layout : plan["layouts"]) EXPECT_EQ(layout["tp"], 1) << layout.dump();
}

TEST(PlanTest, WhereNothingFitsItSaysWhichPartIsTooLargeHowMuchIsMissingAndWhichKeyHelps) {
  const CliResult r = RunCli(Plan({"--memory-gb", "0.29"}));
  EXPECT_EQ(r.exit_code, 2) << r.out;
  EXPECT_EQ(r.out, "");
  for (const char* words :
       {"no layout of 3 slots fits (memory: 277 MiB a slot, of --memory-gb)",
        "for their weights, split, 2 of 3 slots train, tp 2, ", " more than there are: weights 96.2 MiB, ",
        "; take a smaller model, or model.dtype: bfloat16"})
    EXPECT_NE(r.err.find(words), std::string::npos) << words << "\n" << r.err;
}

TEST(PlanTest, MicroBatchesShrinkBeforeALayoutIsGivenUp) {
  const std::vector<std::string> rows = {"train.micro_batch_tokens=4096", "train.groups_per_step=64",
                                         "rollout.group_size=8", "data.max_prompt_tokens=24",
                                         "train.mesh.tp=1"};
  std::vector<std::string> tight = rows;
  tight.insert(tight.end(), {"--memory-gb", "0.6", "--top", "50"});
  const Json planned = Planned(tight);
  ASSERT_FALSE(planned["layouts"].empty()) << planned.dump(1);
  for (const Json& layout : planned["layouts"]) {
    EXPECT_LT(layout["micro_batch_tokens"], 4096) << layout.dump();
    EXPECT_GE(layout["micro_batch_tokens"], 32) << "the longest row has to fit";
  }
}

TEST(PlanTest, WhatTheConfigRefusesIsLeftOutInItsOwnWords) {
  const Json planned = Planned({"algorithm.name=ppo"});
  std::string why;
  for (const Json& refused : planned["refused"]) {
    const auto text = refused["why"].get<std::string>();
    if (text.find("critic") != std::string::npos) why = text;
  }
  ASSERT_NE(why, "") << planned.dump(1);
  const CliResult said =
      RunCli({"validate", kSplit, "algorithm.name=ppo", "cluster.slots=3", "scheduler.placement=colocated",
              "model.init.kv_heads=2", "train.mesh.tp=3"});
  EXPECT_EQ(said.exit_code, 2);
  EXPECT_NE(said.err.find(why), std::string::npos) << why << "\n" << said.err;
  for (const Json& layout : planned["layouts"]) EXPECT_EQ(layout["tp"], 1);
}

TEST(PlanTest, TheSameConfigGivesTheSameAnswer) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--json"}, {"--memory-gb", "0.4"}}) {
    const CliResult a = RunCli(Plan(more)), b = RunCli(Plan(more));
    EXPECT_EQ(a.exit_code, 0) << a.err;
    EXPECT_EQ(a.out, b.out);
  }
}

TEST(PlanTest, TheLayoutAsGivenIsAmongThem) {
  const Json planned = Planned({"--top", "1"});
  for (const Json& layout : planned["layouts"]) {
    if (!layout["given"]) continue;
    EXPECT_EQ(layout["placement"], "split");
    EXPECT_TRUE(layout["changes"].empty());
    return;
  }
  FAIL() << "not there";
}

TEST(PlanTest, TheBestIsWrittenAsAConfigThatExtendsTheOneThatWasGiven) {
  const ScratchFolder scratch;
  std::filesystem::create_directories("jobs");
  scratch.Write("jobs/base.yaml", "extends: " + kSplit + "\nname: base\n");
  const std::vector<std::string> words = {"plan", "jobs/base.yaml", "cluster.slots=3",
                                          "model.init.kv_heads=2", "--json"};
  const CliResult plan = RunCli(words);
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const Json layouts = Json::parse(plan.out)["layouts"];
  ASSERT_GT(layouts.size(), 1U);
  for (const size_t place : {0U, 1U}) {
    const std::string file = "mine" + std::to_string(place) + ".yaml";
    std::vector<std::string> apply = words;
    apply.insert(apply.end(), {"--apply", file, "--pick", std::to_string(place + 1)});
    const CliResult r = RunCli(apply);
    ASSERT_EQ(r.exit_code, 0) << r.err;
    std::ifstream in(file);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    EXPECT_NE(text.find("\nextends: jobs/base.yaml\n"), std::string::npos) << text;
    EXPECT_NE(text.find("slots: 3  # given to plan"), std::string::npos) << text;
    EXPECT_EQ(text.find("seed"), std::string::npos) << "keys that are as they were stay where they are";
    const auto read = config::LoadConfig(file);
    ASSERT_TRUE(read.ok()) << read.status().message() << text;
    const JobConfig& c = read->config;
    const Json& l = layouts[place];
    EXPECT_EQ(l["placement"], Name(c.scheduler.placement));
    EXPECT_EQ(l["actor_slots"], c.scheduler.actor_slots);
    EXPECT_EQ(l["tp"], c.train.mesh.tp);
    EXPECT_EQ(l["zero"], c.train.zero);
    EXPECT_EQ(l["micro_batch_tokens"], c.train.micro_batch_tokens);
    EXPECT_EQ(c.cluster.slots, 3);
    EXPECT_EQ(c.name, "base");
    EXPECT_EQ(RunCli({"validate", file}).exit_code, 0);
    // What is there stays.
    const CliResult again = RunCli(apply);
    EXPECT_EQ(again.exit_code, 2);
    EXPECT_NE(again.err.find("--apply: " + file + " is there already; name a new file"), std::string::npos);
    EXPECT_EQ(again.out, "");
    std::ifstream after(file);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(after), {}), text);
  }
}

TEST(PlanTest, FilesThatWereGivenByTheirPathAreFoundFromElsewhere) {
  const ScratchFolder scratch;
  scratch.Write("job.yaml",
                "name: x\nmodel: {init: {max_position: 64, alphabet: \"ab\"}}\ndata: {path: none.jsonl}\n"
                "rollout: {max_new_tokens: 8}\nreward: {functions: [exact_answer]}\n");
  scratch.Write("rows.jsonl", "{\"prompt\": \"ab\", \"answer\": \"a\"}\n");
  std::filesystem::create_directories("out");
  const CliResult r = RunCli({"plan", "job.yaml", "data.path=rows.jsonl", "--apply", "out/job.yaml"});
  ASSERT_EQ(r.exit_code, 0) << r.err;
  std::filesystem::current_path("out");
  const auto read = config::LoadConfig("job.yaml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_TRUE(std::filesystem::exists(read->config.data.path)) << read->config.data.path;
}

TEST(PlanTest, WhatItCannotDoIsRefusedByName) {
  const ScratchFolder scratch;
  const auto refused = [](const std::vector<std::string>& words, const std::string& why) {
    const CliResult r = RunCli(words);
    EXPECT_EQ(r.exit_code, 2) << r.out;
    EXPECT_NE(r.err.find(why), std::string::npos) << r.err;
  };
  refused({"plan", kSplit, "--pick", "2"}, "--pick: says what --apply writes");
  refused({"plan", kSplit, "--apply", "nowhere/x.yaml"}, "--apply: nowhere is no folder");
  refused({"plan", kSplit, "--apply", "x.yaml", "--pick", "1000"}, "--pick: is 1000, and ");
  // On the command line a section takes the place of the inherited one, in a file it is laid on top.
  refused({"plan", kSplit, "rollout={group_size: 4, max_new_tokens: 8}", "--apply", "x.yaml"},
          "--apply: x.yaml could not say what was given to plan; write it into a config first: rollout.");
  EXPECT_FALSE(std::filesystem::exists("x.yaml"));
  const std::string configs = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/";
  refused({"plan", configs + "test/sft.yaml"}, "job is sft");
  refused({"plan", configs + "control/cartpole.yaml"}, "model.policy: a policy of control tasks");
  refused({"plan", kSplit, "--memory-gb", "0"}, "--memory-gb");
}

}  // namespace
}  // namespace tidepool::workers
