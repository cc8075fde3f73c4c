#include "core/observe/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/observe/chart.h"
#include "core/observe/timeline.h"
#include "core/observe/trace_writer.h"
#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
                     {"fault/worker_killed", step == 9 ? 1.0 : 0.0}};
    }
    if (step % 10 == 0) row.metrics["eval/accuracy"] = 0.2 + x / 40;
    ASSERT_TRUE(writer->Write(row).ok());
  }
  ASSERT_TRUE(
      WriteSamples(
          folder.path(), 20,
          {SampleRow{
              .tid = {1, 0, 0}, .prompt = "rev ab=", .text = "</pre><script>alert(1)</script>", .reward = 1}})
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
  for (const char* text : {"<h1>my-run</h1>", "finished", "seed <b>3</b>", "70.0", "Held-out accuracy",
                           "Where a step&#39;s time goes", "worker 1 · rollout", "rev ab=", "stale",
                           "worker_killed", "controller"}) {
    EXPECT_THAT(html, HasSubstr(text));
  }
  // Nothing is loaded from anywhere, and what a model wrote stays text.
  for (const char* text : {"https://", "src=", "<link", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(text)));
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;/pre&gt;&lt;script&gt;"));
  EXPECT_LT(html.size(), 400000U);
  struct stat info {};
  ASSERT_EQ(::stat((folder / "report.html").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
}

TEST(ReportTest, UnfinishedAndFailedRunsHaveAReportToo) {
  const TempFolder folder;
  WriteText(folder / "config.yaml", "name: x\n");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  EXPECT_THAT(ReadText(folder / "report.html"), HasSubstr("no summary yet"));
  WriteText(folder / "summary.json", R"({"exit":3,"fault":"worker died at start three times"})");
  WriteText(folder / "metrics.jsonl", "nonsense\n");
  ASSERT_TRUE(WriteReport(folder.path()).ok());
  const std::string html = ReadText(folder / "report.html");
  EXPECT_THAT(html, HasSubstr("ended with exit code 3"));
  EXPECT_THAT(html, HasSubstr("worker died at start three times"));
  EXPECT_THAT(html, HasSubstr("metrics.jsonl:1: no metrics row"));
}

TEST(ReportTest, FolderThatIsNoRunIsRefused) {
  const TempFolder folder;
  EXPECT_THAT(WriteReport(folder.path()).message(), HasSubstr("expected a run directory"));
  EXPECT_THAT(WriteReport(folder / "none").message(), HasSubstr("no such folder"));
}

TEST(ChartTest, EscapesAndKeepsUtf8) {
  EXPECT_EQ(Escape("<a href=\"x\">'&\xC3\xA4\x01\xff"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;\xC3\xA4\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(ChartTest, TicksAreRound) {
  EXPECT_THAT(NiceTicks(0, 1, 5), testing::ElementsAre(0, testing::DoubleEq(0.2), testing::DoubleEq(0.4),
                                                       testing::DoubleNear(0.6, 1e-12),
                                                       testing::DoubleEq(0.8), testing::DoubleEq(1)));
  EXPECT_THAT(NiceTicks(3, 97, 5), testing::ElementsAre(20, 40, 60, 80));
  EXPECT_TRUE(NiceTicks(1, 1, 5).empty());
}

TEST(ChartTest, EmptyFlatAndSinglePointSeriesAreNoTrouble) {
  EXPECT_EQ(LineChart({.title = "t"}, {{.name = "a", .color = "red", .points = {}}}), "");
  for (const Points& points :
       {Points{{1, 0}}, Points{{1, 5}, {2, 5}}, Points{{1, -5}, {2, -5}}, Points{{1, 1e300}, {2, -1e300}}}) {
    const std::string html = LineChart({.title = "t"}, {{.name = "a", .color = "red", .points = points}});
    EXPECT_THAT(html, HasSubstr("<polyline"));
    EXPECT_THAT(html, Not(HasSubstr("nan")));
  }
}

TEST(ChartTest, ThinKeepsMeans) {
  Points points;
  for (int i = 0; i < 1000; ++i) points.emplace_back(i, i % 2);
  const Points thin = Thin(points, 100);
  ASSERT_EQ(thin.size(), 100U);
  EXPECT_DOUBLE_EQ(thin[50].second, 0.5);
  EXPECT_EQ(thin.back().first, 999);
}

TEST(TimelineTest, MillionsOfSpansBecomeAFewBars) {
  ReadTrace trace;
  for (int i = 0; i < 300000; ++i) trace.spans.push_back({1, 1, "generate", "rollout", i * 0.001, 0.0009});
  const std::string svg = TimelineSvg(trace, 0, 300, {});
  EXPECT_LT(svg.size(), 20000U);
  EXPECT_THAT(svg, HasSubstr("more, 300000 spans"));
  EXPECT_EQ(TimelineSvg(trace, 400, 500, {}), "");
}

TEST(TimelineTest, MetricsStandInForAMissingTrace) {
  RunData run;
  run.metrics.push_back(
      {.step = 1,
       .version = {},
       .wall_s = 10,
       .metrics = {{"timing_s/step", 4}, {"timing_s/gen", 3}, {"timing_s/update_actor", 1}}});
  const ReadTrace trace = TraceFromMetrics(run);
  ASSERT_EQ(trace.spans.size(), 2U);
  EXPECT_DOUBLE_EQ(trace.spans[0].start_s, 6);
  EXPECT_DOUBLE_EQ(trace.spans[1].start_s, 9);
}

}  // namespace
}  // namespace tidepool::observe
