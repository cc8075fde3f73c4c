// `tidepool compare` from names to the page.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/workers/cli/runner.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;

void WriteRun(const ScratchFolder& scratch, const std::string& folder, const std::string& rate,
              double reward) {
  const std::string dir = "runs/" + folder;
  scratch.Write(
      dir + "/config.yaml",
      "name: quick   # x.yaml:1\njob: rl\ntrain:\n  steps: 2\n  learning_rate: " + rate + "   # override\n");
  scratch.Write(dir + "/summary.json", R"({"exit":0,"finished":true,"steps":2})");
  scratch.Write(dir + "/metrics.jsonl",
                R"({"step":1,"version":1,"lineage":0,"wall_s":2,"metrics":{"critic/score/mean":0.75}}
{"step":2,"version":2,"lineage":0,"wall_s":4,"metrics":{"critic/score/mean":)" +
                    std::to_string(reward) + "}}\n");
}

TEST(CompareTest, TableJsonAndPageOfTwoRuns) {
  const ScratchFolder scratch;
  WriteRun(scratch, "quick-20260101T000000Z", "0.001", 0.5);
  WriteRun(scratch, "quick-20260301T000000Z", "0.002", 0.875);
  const CliResult table = RunCli({"compare", "quick-20260101", "quick-20260301T000000Z"});
  ASSERT_EQ(table.exit_code, 0) << table.err;
  for (const char* text : {"train.learning_rate     0.001", "0.002", "0.5 (0.75)", "0.875 (0.875)", "2/2",
                           "finished", "runs/compare.html"})
    EXPECT_NE(table.out.find(text), std::string::npos) << text << " in\n" << table.out;
  EXPECT_EQ(table.out.find("train.steps"), std::string::npos) << "equal keys are left out";
  EXPECT_TRUE(std::filesystem::exists("runs/compare.html"));
  std::filesystem::remove("runs/compare.html");

  const json data = json::parse(RunCli({"compare", "--json", "quick-20260101", "quick-20260301"}).out);
  EXPECT_EQ(data["config"], json({{{"key", "train.learning_rate"}, {"runs", {"0.001", "0.002"}}}}));
  EXPECT_EQ(data["metrics"][0]["runs"][0], json({{"first", 0.75}, {"last", 0.5}, {"best", 0.75}}));
  EXPECT_EQ(data["runs"][1]["run"], "quick-20260301T000000Z");
  EXPECT_FALSE(std::filesystem::exists("runs/compare.html"));
}

TEST(CompareTest, SaysWhatIsWrong) {
  const ScratchFolder scratch;
  WriteRun(scratch, "quick-20260101T000000Z", "0.001", 0.5);
  WriteRun(scratch, "slow-20260101T000000Z", "0.001", 0.5);
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), "compare");
    const CliResult r = RunCli(words);
    EXPECT_EQ(r.exit_code, 2);
    return r.err;
  };
  EXPECT_NE(error({"quick"}).find("name 2 to 8"), std::string::npos);
  EXPECT_NE(error({"quick", "quick-20260101T000000Z"}).find("named twice"), std::string::npos);
  EXPECT_NE(error({"quick", "./runs/quick-20260101T000000Z"}).find("named twice"), std::string::npos);
  EXPECT_NE(error({"quick", "none"}).find("no such run"), std::string::npos);
  EXPECT_NE(error({"quick", "slow", "--metric", "critic/score/meen"}).find("did you mean critic/score/mean"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists("runs/compare.html"));
}

}  // namespace
}  // namespace tidepool::workers
