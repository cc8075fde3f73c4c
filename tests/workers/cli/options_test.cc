// An option that a command cannot act on is refused by its name.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/config/load.h"
#include "tests/workers/cli/runner.h"
#include "workers/cli/host_cores.h"

namespace tidepool::workers {
namespace {

void ExpectRefused(const std::vector<std::string>& words, const std::string& why) {
  const CliResult r = RunCli(words);
  EXPECT_EQ(r.exit_code, 2) << r.out;
  EXPECT_NE(r.err.find(why), std::string::npos) << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(SimulateOptionsTest, ThoseOfJobConfigsAreNotForWorkloads) {
  const std::string workload = "configs/simulate/faults.yaml";
  const std::string why = ": is for job configs, and " + workload + " is a workload; leave it out";
  ExpectRefused({"simulate", workload, "train.steps=3"}, "train.steps=3" + why);
  ExpectRefused({"simulate", workload, "--hardware", "h100"}, "--hardware" + why);
  ExpectRefused({"simulate", workload, "--mean-tokens", "8"}, "--mean-tokens" + why);
  ExpectRefused({"simulate", workload, "--pace", "x.yaml"}, "--pace" + why);
  ExpectRefused({"simulate", workload, "--like", "runs/x"}, "--like" + why);
  ExpectRefused({"simulate", workload, "--json"}, "--json" + why);
}

TEST(SimulateOptionsTest, ThoseOfWorkloadsAreNotForJobConfigs) {
  ExpectRefused({"simulate", "configs/test/rl_colocated.yaml", "--sweep"}, "--sweep: is for workloads, and ");
  const CliResult r = RunCli({"simulate", "configs/test/rl_colocated.yaml", "--hardware", "h100", "--json"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("\"hardware\":\"NVIDIA H100"), std::string::npos) << r.out;
}

TEST(SimulateOptionsTest, AnUnknownProfileIsToldFromThoseThatThereAre) {
  for (const char* command : {"simulate", "plan"}) {
    ExpectRefused({command, "configs/test/rl_colocated.yaml", "--hardware", "tpu"},
                  "--hardware: found 'tpu', which is neither a file nor a profile; there are a100, ");
    ExpectRefused({command, "configs/test/rl_colocated.yaml", "--hardware", "h10"}, "did you mean 'h100'?");
  }
}

TEST(SimulateOptionsTest, ControlTasksAreRefusedByName) {
  ExpectRefused({"simulate", "configs/control/cartpole.yaml"},
                "model.policy is mlp; what is simulated generates tokens with a language model");
}

TEST(SimulateOptionsTest, APaceFileHasItsOwnHardware) {
  const std::string pace = "configs/pace/small_cpu.yaml";
  ExpectRefused({"simulate", "configs/test/rl_colocated.yaml", "--hardware", "h100", "--pace", pace},
                "--hardware: found h100, but " + pace + " (--pace) says the hardware");
  ExpectRefused({"plan", "configs/test/rl_colocated.yaml", "--hardware", "h100", "cluster.pace=" + pace},
                pace + " (cluster.pace) says the hardware");
}

TEST(UsageTest, WhatWasNotExpectedSaysWhatToType) {
  // As other programs have it: a key as an option.
  ExpectRefused(
      {"validate", "x.yaml", "--learning-rate", "3"},
      "--learning-rate: not expected by `tidepool validate`; keys of the config are written without "
      "dashes: train.learning_rate=VALUE");
  ExpectRefused({"samples", "x", "--min-rewar=1"}, "did you mean --min-reward?");
  ExpectRefused({"samples", "x", "2"}, "2: not expected by `tidepool samples`");
  ExpectRefused({"samples", "x", "--step", "last"}, "--step: found 'last'; expected a number");
  for (const char* command : {"samples", "status", "journal", "prune"})
    ExpectRefused({command},
                  "run is required: its folder, or the beginning of its name under runs/; `tidepool runs`");
  ExpectRefused({"compare"}, "no run is named; name 2 to 8, each by its folder or the beginning of its name");
  ExpectRefused({"tasks", "add", "--option", "x=1"}, "there are ");  // and not: did you mean 'gcd'?
  ExpectRefused({"eval", "no/such", "--task", "reverse"}, "--model: no model folder, and as a run: no/such");
}

TEST(RegistryOptionsTest, OnePolicyIsShownByItsName) {
  const CliResult one = RunCli({"policies", "split"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.out.find("in a config  scheduler: {placement: split}"), std::string::npos) << one.out;
  EXPECT_EQ(one.out.find("colocated"), std::string::npos) << one.out;
  ExpectRefused({"policies", "splitt"}, "no policy is named 'splitt'; there are colocated, ");
}

TEST(ModelOptionsTest, WhatWouldBeIgnoredIsRefused) {
  ExpectRefused({"generate", "--model", "m", "--prompt", "a", "--output", "rows.jsonl"},
                "--output is for --input");
  ExpectRefused({"generate", "--model", "m", "--prompt", "a", "--top-p", "0.5"},
                "--top-p: is for sampling, and --temperature is 0");
  ExpectRefused({"eval", "--model", "m", "--data", "rows.jsonl", "--option", "factors=[2,9]"},
                "--option is for --task");
  ExpectRefused({"eval", "--model", "m", "--data", "rows.jsonl", "--held-out", "8"},
                "--held-out is for --task");
  ExpectRefused({"eval", "--model", "m", "--data", "a.jsonl", "--samples", "4"},
                "needs --temperature above 0");
  ExpectRefused({"eval", "--model", "m", "--data", "a.jsonl", "--samples", "4", "--temperature", "1",
                 "--pass-at", "2,8"},
                "--pass-at: 8 of 4 answers");
  ExpectRefused({"eval", "--model", "m", "--data", "a.jsonl", "--data", "a.jsonl"}, "stands there twice");
}

TEST(ConfigOptionsTest, AFileOfRowsIsNoConfig) {
  ExpectRefused(
      {"validate", "mine.jsonl"},
      "mine.jsonl: is a file of rows; expected a config in YAML, which names it: data: {path: mine.jsonl}");
}

TEST(ConfigOptionsTest, AMistypedFileNamesTheNearestOne) {
  const ScratchFolder scratch;
  scratch.Write("configs/quickstart.yaml", "");
  scratch.Write("configs/notes.txt", "");
  ExpectRefused({"validate", "configs/quickstrat.yaml"},
                "configs/quickstrat.yaml: no such file; did you mean configs/quickstart.yaml?");
  ExpectRefused({"validate", "configs/xyz.yaml"}, "no such file; expected a config in YAML");
}

TEST(ValidateTest, AModelThatIsARunNamesTheModelOfTheRun) {
  const ScratchFolder scratch;
  scratch.Write("runs/sft-20260301T000000Z/config.yaml", "name: sft\n");
  scratch.Write("runs/sft-20260301T000000Z/lock", "");
  scratch.Write("runs/sft-20260301T000000Z/final/config.json", "{}");
  scratch.Write("runs/begun/config.yaml", "name: begun\n");
  scratch.Write("runs/begun/lock", "");
  const auto said = [&](const std::string& model) {
    scratch.Write("job.yaml", "name: x\nmodel: {path: " + model +
                                  "}\ndata: {task: reverse}\nreward: {functions: [exact_answer]}\n");
    return RunCli({"validate", "job.yaml"}).err;
  };
  const std::string final_model = "runs/sft-20260301T000000Z/final";
  EXPECT_NE(said("runs/sft-20260301T000000Z").find("is a run and no model folder; give the model"),
            std::string::npos);
  for (const char* name : {"runs/sft-20260301T000000Z", "runs/sft"})
    EXPECT_NE(said(name).find(final_model), std::string::npos) << said(name);
  EXPECT_NE(said("runs/begun").find("it has no final/ yet"), std::string::npos) << said("runs/begun");
  EXPECT_EQ(said("runs/other").find("is a run"), std::string::npos) << said("runs/other");
}

TEST(ValidateTest, AModelAndDataThatAreNotThereAreErrors) {
  const ScratchFolder scratch;
  scratch.Write("job.yaml",
                "name: x\nmodel: {path: nowhere/a/model}\ndata: {path: none.jsonl}\nreward: {functions: "
                "[exact_answer]}\n");
  const CliResult both = RunCli({"validate", "job.yaml"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_EQ(both.out, "");
  for (const char* line : {"job.yaml:2: model.path: nowhere/a/model is no folder; give the folder",
                           "\njob.yaml:3: data.path: none.jsonl: no such file; expected rows"})
    EXPECT_NE(both.err.find(line), std::string::npos) << both.err;
  scratch.Write("hub.yaml",
                "name: x\nmodel: {path: org/Name-1B}\ndata: {path: openai/gsm8k}\nreward: {functions: "
                "[exact_answer]}\n");
  const std::string hub = RunCli({"validate", "hub.yaml"}).err;
  EXPECT_NE(hub.find("`hf download org/Name-1B --local-dir models/name-1b`"), std::string::npos) << hub;
  EXPECT_NE(hub.find("load_dataset(\"openai/gsm8k\""), std::string::npos) << hub;
  EXPECT_EQ(RunCli({"config", "show", "hub.yaml"}).exit_code, 0) << "the keys alone";
}

TEST(ValidateTest, CharactersThatTheModelDoesNotKnowAreErrors) {
  const ScratchFolder scratch;
  scratch.Write(
      "job.yaml",
      "name: x\nmodel: {init: {max_position: 64, alphabet: \"ab\"}}\ndata: {path: rows.jsonl, held_out: 0}\n"
      "rollout: {max_new_tokens: 8}\nreward: {functions: [exact_answer]}\n");
  scratch.Write("rows.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"ac\"}\n");
  const CliResult refused = RunCli({"validate", "job.yaml"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  for (const char* part :
       {"job.yaml:3: 1 of 2 rows have characters without a token: 'c' (U+0063); the model knows the "
        "characters of model.init.alphabet alone",
        "rows.jsonl:2: 'c' (U+0063)\n"})
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  scratch.Write("rows.jsonl",
                "{\"prompt\": \"ab\", \"answer\": \"a\"}\n{\"prompt\": \"aa\", \"answer\": \"b\"}\n");
  EXPECT_EQ(RunCli({"validate", "job.yaml"}).exit_code, 0);
}

TEST(ValidateTest, RowsOfWhichNoneHasTheAnswerThatTheRewardComparesWithAreAnError) {
  const ScratchFolder scratch;
  scratch.Write(
      "job.yaml",
      "name: x\nmodel: {init: {max_position: 64, alphabet: \"ab\"}}\ndata: {path: rows.jsonl, held_out: 0}\n"
      "rollout: {max_new_tokens: 8}\nreward: {functions: [exact_answer]}\n");
  scratch.Write("rows.jsonl", "{\"prompt\": \"ab\"}\n{\"prompt\": \"aa\"}\n");
  const CliResult refused = RunCli({"validate", "job.yaml"});
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(
      refused.err.find("rows.jsonl:1: has no \"answer\", which reward exact_answer compares with; 2 of 2"),
      std::string::npos)
      << refused.err;
}

TEST(ValidateTest, OverridesAreOfAllConfigsThatAreGiven) {
  const ScratchFolder scratch;
  for (const char* name : {"a.yaml", "b.yaml"})
    scratch.Write(name,
                  "name: x\nmodel: {init: {max_position: 64, alphabet: \"abcerv =\"}}\n"
                  "data: {task: reverse, letters: abc, length: [1, 3], held_out: 2}\n"
                  "rollout: {max_new_tokens: 8}\nreward: {functions: [exact_answer]}\n");
  const CliResult good = RunCli({"validate", "a.yaml", "b.yaml", "data.max_prompt_tokens=40"});
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_NE(good.out.find("b.yaml: ok"), std::string::npos) << good.out;
  const size_t first = good.out.find("data.max_prompt_tokens is 40");
  ASSERT_NE(first, std::string::npos) << good.out;
  EXPECT_NE(good.out.find("data.max_prompt_tokens is 40", first + 1), std::string::npos) << good.out;
  const CliResult bad = RunCli({"validate", "a.yaml", "train.steps=none"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("train.steps"), std::string::npos) << bad.err;
  EXPECT_NE(RunCli({"validate", "train.steps=5"}).err.find("name a config, too"), std::string::npos);
}

std::string ThreadsOf(const std::string& cluster, int64_t cores) {
  const auto loaded = config::LoadConfigText(
      "name: x\n"
      "model: {init: {max_position: 64, alphabet: \"abcerv =\"}}\n"
      "data: {task: reverse, letters: abc, length: [1, 3], held_out: 2}\n"
      "rollout: {max_new_tokens: 8}\n"
      "reward: {functions: [exact_answer]}\n"
      "cluster:\n" +
          cluster,
      "a.yaml");
  EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
  return loaded.ok() ? ThreadsWarning(*loaded, cores) : "";
}

TEST(ValidateTest, MoreThreadsThanCoresAreWarnedOfByFileLineAndKey) {
  EXPECT_EQ(ThreadsOf("  threads_per_slot: 4\n", 4), "");
  EXPECT_EQ(ThreadsOf("  slots: 2\n  threads_per_slot: 4\n", 6),
            "a.yaml:8: cluster.threads_per_slot: 2 slots of 4 threads are 8 threads, and this host has 6 "
            "cores, so they "
            "wait for each other and take longer; write cluster.threads_per_slot: 3, or expect that");
  // The number of threads is the default, so what was written is named.
  EXPECT_EQ(ThreadsOf("  slots: 3\n", 2),
            "a.yaml:7: cluster.slots: 3 slots of 2 threads are 6 threads, and this host has 2 cores, so they "
            "wait for each "
            "other and take longer; write cluster.threads_per_slot: 1, with fewer slots where the job can do "
            "with them, or expect that");
  EXPECT_EQ(ThreadsOf("  slots: 4\n  launch_workers: false\n", 2), "") << "they may be on any hosts";

  const ScratchFolder scratch;
  scratch.Write("a.yaml",
                "name: x\nmodel: {init: {max_position: 64, alphabet: \"abcerv =\"}}\n"
                "data: {task: reverse, letters: abc, length: [1, 3], held_out: 2}\n"
                "rollout: {max_new_tokens: 8}\nreward: {functions: [exact_answer]}\n"
                "cluster: {slots: 60, threads_per_slot: 1024}\n");
  const CliResult r = RunCli({"validate", "a.yaml"});
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.err.find("warning: a.yaml:6: cluster.threads_per_slot: 60 slots of 1024 threads"),
            std::string::npos)
      << r.err;
}

TEST(ModelOptionsTest, AModelThatIsNotThereIsNamed) {
  ExpectRefused({"eval", "--model", "no/such", "--task", "reverse"},
                "--model: no model folder, and as a run");
  ExpectRefused({"generate", "--model", "no/such", "--prompt", "a"},
                "--model: no model folder, and as a run");
  ExpectRefused({"export", "no/such", "--out", "x"}, "export: no model folder, and as a run");
  ExpectRefused({"generate", "--model", "org/Name-1B", "--prompt", "a"},
                "get it with `hf download org/Name-1B");
}

}  // namespace
}  // namespace tidepool::workers
