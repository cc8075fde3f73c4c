#include "core/observe/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/observe/trace_writer.h"
#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// What the page would show of a run: its block of data, as the browser reads it.
json DataOf(const std::string& html) {
  const std::string open = "id=\"run\">";
  const size_t at = html.find(open) + open.size();
  return json::parse(html.substr(at, html.find("</script>", at) - at), nullptr, false);
}

void WriteRun(const TempFolder& folder) {
  WriteText(folder / "config.yaml",
            "# Overrides: none\nname: my-run                # default\njob: rl                     # "
            "x.yaml:2\nseed: 3                     # override\n");
  auto writer = MetricsWriter::Create(folder / "metrics.jsonl");
  for (int step = 0; step <= 20; ++step) {
    const double x = step;
    MetricsRow row{.step = step, .version = {0, step}, .wall_s = 2 * x, .metrics = {}};
    if (step > 0) {
      row.metrics = {{"critic/score/mean", x / 20},
                     {"response_length/mean", 5},
                     {"staleness/max", 1},
                     {"perf/throughput", 1000 + x},
                     {"actor/grad_norm", 1},
                     {"training/rollout_logp_diff/max", 1e-4},
                     {"timing_s/gen", 1.2},
                     {"timing_s/update_actor", 0.5},
                     {"timing_s/step", 1.9},
                     {"drop/stale", step == 7 ? 2.0 : 0.0},
                     {"worker/restarts", step >= 9 ? 1.0 : 0.0}};
    }
    if (step % 10 == 0) row.metrics["eval/accuracy"] = 0.2 + x / 40;
    ASSERT_TRUE(writer->Write(row).ok());
  }
  ASSERT_TRUE(WriteSamples(folder.path(), 20,
                           {SampleRow{.tid = {1, 0, 0},
                                      .prompt = "rev ab=",
                                      .text = "</pre><script>alert(1)</script>",
                                      .reward = 1,
                                      .details = {{"judge", "</pre><script>alert(2)</script>"}}}})
                  .ok());
  auto trace = TraceWriter::Create(folder / "trace/w1.json.gz", {.worker = 1, .worker_name = "worker 1"});
  trace.value()->NameRole(1, "rollout");
  for (int i = 0; i < 1000; ++i)
    trace.value()->Add({.name = "generate",
                        .category = "rollout",
                        .role = 1,
                        .start = {FromSeconds(0.04 * i)},
                        .duration = FromSeconds(0.03),
                        .args = {}});
}

TEST(ReportTest, PageStandsAloneAndShowsTheRun) {
  const TempFolder folder;
  WriteRun(folder);
  WriteText(
      folder / "summary.json",
      R"({"exit":0,"steps":20,"accuracy":{"before":0.2,"after":0.7},"seconds":{"train":38},"peak_bytes":{"controller":41000000},"version":"0.1.0"})");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  const std::string html = ReadText(folder / "report.html");
  const json data = DataOf(html);
  EXPECT_EQ(data["facts"]["name"], "my-run");
  EXPECT_EQ(data["facts"]["seed"], "3");
  EXPECT_EQ(data["state"], "finished");
  EXPECT_EQ(data["values"]["seed"], "3");
  EXPECT_EQ(data["drops"]["stale"], 2);
  EXPECT_EQ(data["faults"]["worker restarts"], 1);
  EXPECT_EQ(data["peak_bytes"]["controller"], 41000000);
  const json& reward = data["metrics"]["critic/score/mean"];
  EXPECT_EQ(reward["y"].size(), 20U);
  EXPECT_EQ(reward["max"], 1);
  EXPECT_EQ(data["steps"][reward["x"].get<size_t>()][0], 1);
  EXPECT_EQ(data["clock"][5], json::array({5, 10}));
  EXPECT_EQ(data["trace"]["lanes"], json::array({"worker 1 · rollout"}));
  EXPECT_EQ(data["samples"][0]["rows"][0]["prompt"], "rev ab=");
  // Nothing is loaded from anywhere, and what a model wrote stays text.
  for (const char* text : {"https://", " src=", "<link", "@import", "url(", "innerHTML"})
    EXPECT_THAT(html, Not(HasSubstr(text)));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_EQ(data["samples"][0]["rows"][0]["text"], "</pre><script>alert(1)</script>");
  EXPECT_EQ(data["samples"][0]["rows"][0]["details"]["judge"], "</pre><script>alert(2)</script>");
  EXPECT_LT(html.size(), 400000U);
  struct stat info {};
  ASSERT_EQ(::stat((folder / "report.html").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST(ReportTest, UnfinishedAndFailedRunsHaveAReportToo) {
  const TempFolder folder;
  WriteText(folder / "config.yaml", "name: x\n");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  EXPECT_EQ(DataOf(ReadText(folder / "report.html"))["state"], "");
  WriteText(folder / "summary.json", R"({"exit":0,"stopped":true,"finished":false})");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  EXPECT_EQ(DataOf(ReadText(folder / "report.html"))["state"], "stopped");
  WriteText(folder / "summary.json", R"({"exit":3,"fault":"worker died at start three times"})");
  WriteText(folder / "metrics.jsonl", "nonsense\n");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  const json data = DataOf(ReadText(folder / "report.html"));
  EXPECT_EQ(data["exit_code"], 3);
  EXPECT_EQ(data["state"], "failed");
  EXPECT_EQ(data["facts"]["fault"], "worker died at start three times");
  EXPECT_THAT(data["problems"].dump(), HasSubstr("metrics.jsonl:1: no metrics row"));
}

TEST(ReportTest, SaysHowARunEndedThatCouldNotWriteItsSummary) {
  const TempFolder folder;
  WriteText(folder / "config.yaml", "name: x\n");
  WriteText(folder / "status.json", R"({"state":"running","step":7,"version":"0:7"})");
  const auto data = [&] {
    EXPECT_TRUE(WriteReport(folder.path()).ok());
    return DataOf(ReadText(folder / "report.html"));
  };
  EXPECT_EQ(data()["state"], "") << "it was killed";
  WriteText(folder / "last_words",
            "error: the process was killed by SIGSEGV while it ran policy mine (mine.cc) on a plan\n");
  json said = data();
  EXPECT_EQ(said["state"], "failed");
  EXPECT_EQ(said["exit_code"], 139);
  EXPECT_EQ(said["facts"]["why"],
            "the process was killed by SIGSEGV while it ran policy mine (mine.cc) on a plan");
  EXPECT_EQ(said["facts"]["steps"], "7");
  ASSERT_TRUE(std::filesystem::remove(folder / "last_words"));
  WriteText(folder / "status.json", R"({"state":"failed","step":7,"exit":3,"why":"the disk is full"})");
  said = data();
  EXPECT_EQ(said["state"], "failed");
  EXPECT_EQ(said["facts"]["why"], "the disk is full");
}

TEST(ReportTest, FolderThatIsNoRunIsRefused) {
  const TempFolder folder;
  EXPECT_THAT(WriteReport(folder.path()).message(), HasSubstr("expected a run directory"));
  EXPECT_THAT(WriteReport(folder / "none").message(), HasSubstr("no such folder"));
}

TEST(ReportTest, BytesThatAreNoTextLeaveThePageReadable) {
  RunData run;
  run.folder = "r";
  run.problems = {"\xC3\xA4\x01\xff</script>"};
  EXPECT_EQ(DataOf(ReportHtml(run))["problems"][0], "\xC3\xA4\x01\xEF\xBF\xBD</script>");
}

TEST(ReportTest, LongCurvesAreThinnedToMeans) {
  RunData run;
  for (int i = 0; i < 4000; ++i)
    run.metrics.Take({.step = i, .version = {}, .wall_s = i * 0.5, .metrics = {{"a", i % 2}}});
  const json data = ReportData(run);
  const json& a = data["metrics"]["a"];
  ASSERT_EQ(a["y"].size(), 400U);
  EXPECT_EQ(a["y"][50], 0.5);
  EXPECT_EQ(a["max"], 1) << "of all values";
  EXPECT_EQ(data["steps"][0].back(), 3999);
  EXPECT_EQ(data["clock"].back(), json::array({3999, 1999.5}));
  EXPECT_LE(data["clock"].size(), 401U);
}

TEST(ReportTest, MillionsOfSpansBecomeSomeThousands) {
  RunData run;
  for (int i = 0; i < 300000; ++i)
    run.trace.spans.push_back({1, i % 2, "generate", "rollout", i * 0.001, 0.0009});
  const json spans = ReportData(run)["trace"]["spans"];
  EXPECT_LE(spans.size(), 12000U);
  int64_t count = 0;
  for (const json& span : spans) count += span[5].get<int64_t>();
  EXPECT_EQ(count, 300000);
  EXPECT_EQ(ReportData(RunData{})["trace"]["spans"], json::array());
}

TEST(ReportTest, SpansThatAlternateAreMergedToo) {
  RunData run;  // a slot whose two roles take turns: no two neighbours are alike
  for (int i = 0; i < 40000; ++i) {
    const bool train = i % 2 != 0;
    run.trace.spans.push_back(
        {1, 0, train ? "train" : "generate", train ? "actor" : "rollout", i * 1.0, train ? 0.2 : 0.9});
  }
  const json trace = ReportData(run)["trace"];
  EXPECT_LE(trace["spans"].size(), 12000U);
  int64_t count = 0, rollout = 0;
  for (const json& span : trace["spans"]) {
    count += span[5].get<int64_t>();
    rollout += trace["categories"][span[1].get<size_t>()] == "rollout" ? 1 : 0;
  }
  EXPECT_EQ(count, 40000);
  EXPECT_GT(trace["spans"].size(), 1000U) << "a time line still";
  EXPECT_GT(rollout, static_cast<int64_t>(trace["spans"].size()) * 9 / 10) << "what took the most time";
}

}  // namespace
}  // namespace tidepool::observe
