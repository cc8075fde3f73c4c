#include "core/observe/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tidepool::observe {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

ComparedRun RunOf(const std::string& folder, std::map<std::string, std::string> config,
                  std::map<std::string, MetricSpan> metrics) {
  const std::string name = config["name"];
  return {name, folder, "runs/" + folder, std::move(config), {"algorithm.clip", "seed"}, std::move(metrics)};
}

TEST(ComparisonTest, KeysThatAreEqualAreLeftOutAndMissingOnesAreSaid) {
  const auto c = Compare({RunOf("a",
                                {{"name", "x"},
                                 {"seed", "1"},
                                 {"train.steps", "5"},
                                 {"eval.every", "2"},
                                 {"algorithm.clip", "0.2"}},
                                {}),
                          RunOf("b", {{"name", "x"}, {"seed", "2"}, {"train.steps", "5"}}, {})});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->labels, (std::vector<std::string>{"a", "b"})) << "their names are equal";
  const json data = ComparisonData(*c);
  EXPECT_EQ(data["config"], json({{{"key", "eval.every"}, {"runs", {"2", nullptr}}},
                                  {{"key", "seed"}, {"runs", {"1", "2"}}}}));
}

TEST(ComparisonTest, JobsOfDifferentKindsCompareWhatTheyShare) {
  const MetricSpan loss{3, 1, 0.5, 3}, speed{10, 30, 10, 40};
  const auto c =
      Compare({RunOf("a", {{"name", "sft"}}, {{"sft/loss", loss}, {"perf/throughput", speed}}),
               RunOf("b", {{"name", "rl"}}, {{"critic/score/mean", speed}, {"perf/throughput", speed}})});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->labels, (std::vector<std::string>{"sft", "rl"}));
  ASSERT_EQ(c->metrics.size(), 1U);
  EXPECT_EQ(c->metrics[0].metric, "perf/throughput");
  EXPECT_EQ(c->metrics[0].runs[1]->last, 30);
  EXPECT_EQ(c->metrics[0].runs[1]->best, 40);
}

TEST(ComparisonTest, AnyMetricMayBeNamedAndSmallerLossesAreBetter) {
  const std::vector<ComparedRun> runs = {
      RunOf("a", {}, {{"sft/loss", {3, 1, 0.5, 3}}, {"response_length/mean", {9, 8, 7, 9}}}),
      RunOf("b", {}, {})};
  const auto c = Compare(runs, {"sft/loss", "response_length/mean"});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->metrics[0].runs[0]->best, 0.5);
  EXPECT_FALSE(c->metrics[0].runs[1]);
  EXPECT_FALSE(c->metrics[1].runs[0]->best) << "neither longer nor shorter is better";
  const auto none = Compare(runs, {"sft/los"});
  EXPECT_EQ(none.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(none.status().message(), HasSubstr("there are sft/loss; docs/metrics.md"));
  EXPECT_THAT(Compare(runs, {"sft/lass"}).status().message(), HasSubstr("did you mean sft/loss?"));
}

TEST(ComparisonTest, AValueThatChangedInTheRunIsNotShownAsTheWholeRuns) {
  RunData changed, plain;
  changed.config_yaml =
      "# Resumed at step 2, 20261125T091426Z:\n#   train.learning_rate: was 0.001, is 1e-05\n"
      "train:\n  learning_rate: 1e-05  # override\n";
  plain.config_yaml = "train:\n  learning_rate: 1e-05  # override\n";
  const auto c = Compare({ComparedRunOf(changed, "x", {}), ComparedRunOf(plain, "y", {})});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(ComparisonData(*c)["config"],
            json({{{"key", "train.learning_rate"}, {"runs", {"0.001, from step 2 1e-05", "1e-05"}}}}));
}

TEST(ComparisonTest, ThePageStandsAlone) {
  RunData run;
  run.folder = "</script><b>";
  run.metrics.Take({.step = 1, .version = {}, .wall_s = 1, .metrics = {{"a", 1}}});
  const auto c = Compare({ComparedRunOf(run, "x", run.Spans()), ComparedRunOf(run, "y", run.Spans())});
  ASSERT_TRUE(c.ok());
  const std::string html = ComparisonHtml({run, run}, *c);
  for (const char* text :
       {"https://", " src=", "<link", "@import", "url(", "innerHTML", "</script><b>", "{{"})
    EXPECT_THAT(html, Not(HasSubstr(text)));
}

}  // namespace
}  // namespace tidepool::observe
