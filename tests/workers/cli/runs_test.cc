// `tidepool runs` over folders that say of themselves what they are.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"
#include "core/storage/run_directory.h"
#include "tests/workers/cli/runner.h"
#include "workers/cli/run_list.h"
#include "workers/cli/run_status.h"
#include "workers/cli/table.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;

const char* const kConfig =
    "name: quick\njob: rl   # x.yaml:2\ndata:\n  task: reverse   # x.yaml:4\ntrain:\n  steps: 30\n";

TEST(RunsTest, ListsNewestFirstWithFirstLastAndBestFigures) {
  const ScratchFolder scratch;
  const std::string old = "runs/quick-20260101T000000Z", young = "runs/quick-20260301T000000Z";
  scratch.Write(old + "/config.yaml", kConfig);
  scratch.Write(old + "/summary.json", R"({"exit":0,"finished":true,"steps":30,"why":"all steps done"})");
  scratch.Write(old + "/metrics.jsonl",
                R"({"step":0,"metrics":{"eval/accuracy":0.25,"eval/total":8.0}}
{"step":1,"metrics":{"critic/score/mean":0.5,"critic/score/max":9.0}}
{"step":2,"metrics":{"critic/score/mean":0.75}}
{"step":3,"metrics":{"critic/score/mean":null}}
{"step":3,"metrics":{"critic/score/mean":0.625,"eval/accuracy":0.5}}
)");
  scratch.Write(young + "/config.yaml", kConfig);
  scratch.Write(young + "/summary.json", R"({"exit":3,"steps":4,"why":"worker died"})");
  const json list = json::parse(RunCli({"runs", "--json"}).out);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["run"], "quick-20260301T000000Z");
  EXPECT_EQ(list[0]["state"], "failed");
  EXPECT_EQ(list[0]["last_line"], "worker died");
  EXPECT_FALSE(list[0].contains("learned"));
  const json& done = list[1];
  EXPECT_EQ(done["state"], "finished");
  EXPECT_EQ(done["job"], "rl");
  EXPECT_EQ(done["task"], "reverse");
  EXPECT_EQ(done["step"], 30);
  EXPECT_EQ(done["steps"], 30);
  EXPECT_EQ(
      done["learned"],
      json({{"metric", "critic/score/mean"}, {"first", 0.5}, {"best", 0.75}, {"last", 0.625}, {"step", 3}}));
  EXPECT_EQ(done["held_out"]["first"], 0.25);
  EXPECT_EQ(done["held_out"]["last"], 0.5);
  EXPECT_GT(done["age_s"], 0);
  const std::string table = RunCli({"runs"}).out;
  EXPECT_NE(table.find("reward 0.625 (best 0.75)"), std::string::npos) << table;
  EXPECT_NE(table.find("accuracy 25.0% -> 50.0% at step 3  "), std::string::npos)
      << "not of step 30: " << table;
  EXPECT_NE(table.find("2 runs in runs"), std::string::npos) << table;
}

// The controller died in a call of a plug-in: last_words is all that it left of its end.
TEST(RunsTest, AnEndThatLastWordsTellHasTheCodeOfTheProcessAndNoEmptyParts) {
  const ScratchFolder scratch;
  for (const auto& [words, code] :
       {std::pair("error: the process was killed by SIGSEGV while it ran policy x on a plan", 139),
        std::pair("error: the process was killed by SIGABRT while it ran policy x on a plan", 134),
        std::pair("error: the process was ended by a call of exit() while it ran policy x on a plan", 3),
        std::pair("error: policy x did not return within 2 s on a plan", 3)}) {
    scratch.Write("runs/quick/config.yaml", kConfig);
    scratch.Write("runs/quick/last_words", std::string(words) + "\n");
    const json told = json::parse(RunCli({"status", "runs/quick", "--json"}).out);
    EXPECT_EQ(told["state"], "failed");
    EXPECT_EQ(told["summary"]["exit"], code) << words;
    EXPECT_EQ(told["summary"]["why"], std::string(words).substr(7));
    const std::string shown = RunCli({"status", "runs/quick"}).out;
    EXPECT_NE(shown.find("exit code " + std::to_string(code) + " after 0 steps\n"), std::string::npos)
        << shown;
    EXPECT_EQ(shown.find("seconds"), std::string::npos) << shown;
  }
}

TEST(RunsTest, FiguresOfALongRunAreOfAllItsLinesAndWhyThereAreNoneIsSaid) {
  const ScratchFolder scratch;
  scratch.Write("runs/long/config.yaml", kConfig);
  std::string lines = R"({"step":0,"metrics":{"actor/loss":7}})"
                      "\n";
  for (int step = 1; step <= 3000; ++step) {
    lines += R"({"step":1,"metrics":{"filler":")" + std::string(4000, 'x') + R"(","critic/score/mean":)" +
             std::to_string(step == 2000 ? 9999 : step) + "}}\n";
  }
  scratch.Write("runs/long/metrics.jsonl", lines);
  const auto brief = BriefOf("runs/long");
  ASSERT_TRUE(brief.ok() && brief->learned);
  EXPECT_EQ(brief->learned->metric, "critic/score/mean");
  EXPECT_EQ(brief->learned->first, 1);
  EXPECT_EQ(brief->learned->best, 9999);
  EXPECT_EQ(brief->learned->last, 3000);
  scratch.Write("runs/other/config.yaml", kConfig);
  std::filesystem::create_directories("runs/other/metrics.jsonl");
  EXPECT_NE(BriefOf("runs/other")->last_line.find("metrics.jsonl"), std::string::npos);
}

// The dashboard looks every few seconds, and the metrics of a long run are hundreds of megabytes.
TEST(RunsTest, ALookAgainReadsOnlyTheLinesThatWereAdded) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  const auto row = [](int step, const char* score) {
    return "{\"step\":" + std::to_string(step) + R"(,"metrics":{"critic/score/mean":)" + score + "}}\n";
  };
  const std::string file = "runs/a/metrics.jsonl";
  scratch.Write(file, row(1, "0.25") + R"({"step":2,"metrics":{"critic/sc)");
  BriefReader reader("runs/a");
  EXPECT_EQ(reader.Read()->learned->last, 0.25);
  scratch.Write(file, row(1, "0.99") + row(2, "0.50"));  // the first line is known already
  const auto brief = reader.Read();
  EXPECT_EQ(brief->learned->first, 0.25);
  EXPECT_EQ(brief->learned->best, 0.5);
  EXPECT_EQ(brief->learned->step, 2);
  scratch.Write(file, row(3, "0.75"));  // it became shorter: another one
  EXPECT_EQ(reader.Read()->learned->first, 0.75);
}

TEST(RunsTest, AnEvaluationBeforeTrainingIsNotThePresentOne) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  scratch.Write("runs/a/metrics.jsonl", R"({"step":0,"metrics":{"eval/accuracy":0.25}}
{"step":9,"metrics":{"critic/score/mean":0.5}}
)");
  const std::string table = RunCli({"runs"}).out;
  EXPECT_NE(table.find("accuracy 25.0% at step 0  "), std::string::npos) << table;
}

// An evaluation whose graded rewards were all 0 writes an accuracy; the run as a whole measures its reward.
TEST(RunsTest, HeldOutIsWhatTheRunSaysThatItMeasures) {
  const ScratchFolder scratch;
  const std::string dir = "runs/quick";
  scratch.Write(dir + "/config.yaml", kConfig);
  scratch.Write(dir + "/metrics.jsonl", R"({"step":0,"metrics":{"eval/accuracy":0,"eval/reward/mean":0}}
{"step":2,"metrics":{"eval/reward/mean":0.5}}
{"step":4,"metrics":{"eval/reward/mean":0.4}}
)");
  scratch.Write(dir + "/status.json",
                R"({"held_out":{"measure":"reward","before":{"step":0,"value":0},
                    "last":{"step":4,"value":0.4},"best":{"step":2,"value":0.5}}})");
  const auto brief = BriefOf(dir);
  ASSERT_TRUE(brief.ok());
  ASSERT_TRUE(brief->held_out);
  EXPECT_EQ(brief->held_out->metric, "eval/reward/mean");
  EXPECT_EQ(brief->held_out->first, 0);
  EXPECT_EQ(brief->held_out->best, 0.5);
  EXPECT_EQ(brief->held_out->last, 0.4);
}

TEST(RunsTest, SmallestLossIsTheBestAndLinkedFilesCountOnce) {
  const ScratchFolder scratch;
  const std::string dir = "elsewhere/teach";
  scratch.Write(dir + "/config.yaml",
                "name: teach\njob: sft\ndata:\n  task: \"\"\n  path: data/mine.jsonl\n");
  scratch.Write(dir + "/metrics.jsonl", R"({"step":1,"metrics":{"actor/loss":9,"sft/loss":2.5}}
{"step":2,"metrics":{"sft/loss":1.5}}
{"step":3,"metrics":{"sft/loss":2}}
)");
  const int64_t before = BriefOf(dir)->bytes;
  scratch.Write(dir + "/final/a", std::string(1 << 20, 'x'));
  std::filesystem::create_hard_link(dir + "/final/a", dir + "/final/b");
  const auto brief = BriefOf(dir);
  ASSERT_TRUE(brief.ok());
  EXPECT_EQ(brief->state, "new");
  EXPECT_EQ(brief->task, "mine.jsonl");
  EXPECT_EQ(brief->learned->metric, "sft/loss");
  EXPECT_EQ(brief->learned->best, 1.5);
  EXPECT_GE(brief->bytes - before, 1 << 20);
  EXPECT_LT(brief->bytes - before, 2 << 20);
  EXPECT_NE(RunCli({"runs", "elsewhere"}).out.find("loss 2 (best 1.5)"), std::string::npos);
}

TEST(RunsTest, FolderWithoutRunsAndOneThatIsNotThere) {
  const ScratchFolder scratch;
  const CliResult none = RunCli({"runs"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("runs: no such folder"), std::string::npos) << none.err;
  std::filesystem::create_directory("runs");
  const CliResult empty = RunCli({"runs"});
  EXPECT_EQ(empty.exit_code, 0);
  EXPECT_NE(empty.out.find("runs holds no run"), std::string::npos) << empty.out;
}

TEST(RunsTest, ARunWhoseControllerHasSaidNothingYetIsToldFromOneWhereNothingHappened) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  EXPECT_NE(DescribeStatus(RunStatus("runs/a")).find("nothing has happened yet"), std::string::npos);
  RealFileSystem files;
  const auto lock = storage::LockRun(files, "runs/a");
  ASSERT_TRUE(lock.ok()) << lock.status().message();
  const std::string begins = "its controller begins, and has said nothing yet";
  EXPECT_NE(DescribeStatus(RunStatus("runs/a")).find(begins), std::string::npos);
  EXPECT_EQ(BriefOf("runs/a")->last_line, begins);
}

TEST(RunsTest, AnAddressIsToldFromARunAndNeedsTheToken) {
  const ScratchFolder scratch;
  for (const char* command : {"status", "top"}) {
    const CliResult bare = RunCli({command, "127.0.0.1:9100"});
    EXPECT_EQ(bare.exit_code, 2);
    EXPECT_NE(bare.err.find("--token-file"), std::string::npos) << bare.err;
    for (const char* wrong : {"runs/a", "http://127.0.0.1", "127.0.0.1:http", "127.0.0.1:0", ":9100"}) {
      const CliResult none = RunCli({command, wrong, "--token-file", "none"});
      EXPECT_EQ(none.exit_code, 2);
      EXPECT_NE(none.err.find("write HOST:PORT"), std::string::npos) << none.err;
    }
    // The address is one: what is missing is the file.
    EXPECT_EQ(RunCli({command, "http://127.0.0.1:9/", "--token-file", "none"}).err.find("HOST:PORT"),
              std::string::npos);
  }
}

TEST(RunsTest, WhatARunSaysOfItselfIsNoOrderToTheTerminal) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  scratch.Write("runs/a/summary.json", R"({"exit": 3, "why": "a\u001b[2Jb\u009bc"})");
  const std::string said = RunCli({"status", "a"}).out;
  EXPECT_NE(said.find("a?[2Jb?c"), std::string::npos) << said;
}

TEST(RunsTest, AProbeReadsNoJournal) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  scratch.Write("runs/a/journal/0001.tpj", "no journal");
  EXPECT_EQ(RunStatus("runs/a")["state"], "unreadable");
  EXPECT_EQ(RunStatus("runs/a", ReadJournal::kNever)["state"], "new");
  EXPECT_EQ(RunCli({"status", "a", "--healthy"}).exit_code, 3);
}

// While a controller goes on with it, advice to go on with it would only fail.
TEST(RunsTest, ARunThatIsGoneOnWithIsNotOneToGoOnWith) {
  const ScratchFolder scratch;
  const std::string dir = "runs/a", advice = "--resume", begins = "its controller begins";
  scratch.Write(dir + "/config.yaml", kConfig);
  scratch.Write(dir + "/summary.json", R"({"exit":0,"finished":false,"stopped":true,"steps":4})");
  scratch.Write(dir + "/status.json", R"({"state":"stopped","pid":1,"step":4})");
  EXPECT_NE(RunCli({"status", dir}).out.find(advice), std::string::npos);
  RealFileSystem files;
  {
    const auto lock = storage::LockRun(files, dir);
    const json told = json::parse(RunCli({"status", dir, "--json"}).out);
    EXPECT_EQ(told["state"], "stopped");
    EXPECT_EQ(told["begins"], true);
    const std::string shown = RunCli({"status", dir}).out;
    EXPECT_NE(shown.find("stopped; " + begins), std::string::npos) << shown;
    EXPECT_EQ(shown.find(advice), std::string::npos) << shown;
    EXPECT_NE(RunCli({"runs"}).out.find("stopped (begins)"), std::string::npos);
  }
  {
    const auto lock = storage::LockRun(files, dir, "prune");
    const std::string shown = RunCli({"status", dir}).out;
    EXPECT_NE(shown.find("`tidepool prune` is at work on it"), std::string::npos) << shown;
    EXPECT_EQ(shown.find(advice), std::string::npos) << shown;
    EXPECT_EQ(shown.find(begins), std::string::npos) << shown;
  }
  // Its own controller, which has said how it ended and is about to go.
  scratch.Write(dir + "/status.json", R"({"state":"stopped","pid":)" + std::to_string(::getpid()) + "}");
  const auto lock = storage::LockRun(files, dir);
  EXPECT_FALSE(json::parse(RunCli({"status", dir, "--json"}).out).contains("begins"));
}

TEST(RunsTest, DamagedJournalIsListedAsUnreadable) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", kConfig);
  // Only the last segment may be torn.
  for (const char* name : {"0000.tpj", "0001.tpj"})
    scratch.Write(std::string("runs/a/journal/") + name, std::string(1000, 'x'));
  scratch.Write("runs/b/config.yaml", kConfig);
  const json list = json::parse(RunCli({"runs", "--json"}).out);
  ASSERT_EQ(list.size(), 2U);
  for (const json& run : list) EXPECT_EQ(run["state"], run["run"] == "a" ? "unreadable" : "new") << run;
}

// A plug-in that a run was made with may be gone, or wait for a service that is.
TEST(RunsTest, ARunWhosePlugInsAreNotThereIsToldLikeAnyOther) {
  const ScratchFolder scratch;
  for (const auto& [job, parts] :
       {std::pair(
            "rl",
            "data: {task: gone, depth: 3}\nmodel: {path: m}\nreward: {functions: [gone]}\nalgorithm: {name: "
            "gone, loss: gone, gamma_of_it: 2}\nscheduler: {policy: gone}\n"),
        std::pair("rl",
                  "environment: {name: gone, fault: x}\nmodel: {path: m}\nalgorithm: {advantage: gone}\n"),
        std::pair("rl", "environment: {name: gone, mass: 2}\nmodel: {policy: mlp}\n"),
        std::pair("sft", "data: {task: gone, depth: 3}\nmodel: {init: {warm_start: gone.yaml}}\n")}) {
    SCOPED_TRACE(parts);
    scratch.Write("runs/quick/config.yaml", std::string("name: quick\njob: ") + job + "\n" + parts);
    const json told = json::parse(RunCli({"status", "runs/quick", "--json"}).out);
    EXPECT_EQ(told["name"], "quick");
    EXPECT_EQ(told["job"], job);
    EXPECT_EQ(NameOfPlace(0, ConfigOf("runs/quick")), "device-0");
  }
  scratch.Write("runs/quick/config.yaml", "name: quick\njob: rl\ntrain: {stepz: 3}\n");
  EXPECT_FALSE(ConfigOf("runs/quick")) << "of another version of the program";
}

TEST(RunsTest, ATableLosesItsLeastColumnsUntilItFits) {
  std::vector<Cells> rows = {{"run", "state", "size", "age"}, {"a-long-name", "running", "12 MiB", "3 h"}};
  const std::vector<Cells> whole = rows;
  EXPECT_TRUE(FitTable(rows, 80, {"size", "age"}).empty());
  EXPECT_EQ(rows, whole);
  EXPECT_EQ(FitTable(rows, 26, {"size", "age"}), std::vector<std::string>({"size"}));
  EXPECT_EQ(TableText(rows), "run          state    age\na-long-name  running  3 h\n");
}

TEST(RunsTest, AJournalThatHasNothingToShowSaysWhy) {
  const ScratchFolder scratch;
  scratch.Write("runs/a/config.yaml", "name: quick\njob: rl\ncluster: {slots: 2}\nreward: {workers: 1}\n");
  RealFileSystem files;
  const std::string journal = storage::RunPaths("runs/a").journal();
  {
    auto writer = storage::JournalWriter::Open(files, journal, "a");
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    ASSERT_TRUE((*writer)->Close().ok());
  }
  EXPECT_NE(RunCli({"journal", "runs/a"}).err.find("the journal has no record yet"), std::string::npos);
  {
    auto writer = storage::JournalWriter::Open(files, journal, "a");
    (*writer)->Append(record::EndRun{}, 0);
    ASSERT_TRUE((*writer)->Close().ok());
  }
  const std::string said = RunCli({"journal", "runs/a", "--worker", "9"}).err;
  EXPECT_NE(said.find("--worker 9: the places of this run are 0 to 2\n"), std::string::npos) << said;
}

}  // namespace
}  // namespace tidepool::workers
