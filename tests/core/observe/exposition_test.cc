#include "core/observe/exposition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace tidepool::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ExpositionTest, AFigureIsNamedByItsUnitAndItsPartsAreLabels) {
  const auto family = [](const char* figure) {
    const auto shown = MetricName(figure);
    return shown ? shown->family : "none";
  };
  EXPECT_EQ(family("timing_s/step"), "tidepool_timing_step_seconds");
  EXPECT_EQ(family("pool/held_s/rollout"), "tidepool_pool_held_rollout_seconds");
  EXPECT_EQ(family("rollout/tok_s"), "tidepool_rollout_tokens_per_second");
  EXPECT_EQ(family("critic/score/mean"), "tidepool_critic_score_mean");
  EXPECT_EQ(family("eval/total"), "tidepool_eval_all") << "_total is what counters end in";
  EXPECT_EQ(family("episode/count"), "tidepool_episode_number") << "_count is a histogram's";
  EXPECT_EQ(family("somebody/else"), "none");
  const auto reward = MetricName("reward/format:[a/b]/mean");
  ASSERT_TRUE(reward);
  EXPECT_EQ(reward->family, "tidepool_reward_mean");
  EXPECT_EQ(reward->labels, (Labels{{"name", "format:[a/b]"}}));
  EXPECT_THAT(reward->help, HasSubstr("One reward function, unweighted"));
  const auto part = MetricName("eval/reward/exact_answer/mean");
  ASSERT_TRUE(part);
  EXPECT_EQ(part->family, "tidepool_eval_reward_mean_by_name") << "the whole is no part of a sum";
  EXPECT_EQ(family("eval/reward/mean"), "tidepool_eval_reward_mean");
  const auto pairs = MetricName("eval/dpo/accuracy");
  ASSERT_TRUE(pairs);
  EXPECT_EQ(pairs->labels, (Labels{{"job", "dpo"}, {"what", "accuracy"}}));
}

// Who looks at a page knows nothing of the table that a line is from.
TEST(ExpositionTest, HelpLinesAreSentences) {
  std::istringstream lines{std::string(MetricsGlossary())};
  int names = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `tidepool_") && !line.starts_with("| `process_")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    Exposition m;
    m.Gauge(name, 1);
    const std::string text = m.Text(), begin = "# HELP " + name + " ";
    ASSERT_TRUE(text.starts_with(begin)) << line;
    const std::string help = text.substr(begin.size(), text.find('\n') - begin.size());
    EXPECT_TRUE(help[0] == '1' || (help[0] >= 'A' && help[0] <= 'Z')) << help;
    EXPECT_TRUE(help.ends_with('.')) << help;
    EXPECT_EQ(line.find("`, `"), std::string::npos) << "two names, one sentence: " << line;
    ++names;
  }
  EXPECT_GT(names, 50);
  EXPECT_THAT(MetricName("timing_s/journal")->help, testing::StartsWith("Waiting for the journal"));
}

TEST(ExpositionTest, TextHasHelpTypeAndEscapedLabels) {
  Exposition m;
  m.Counter("tidepool_faults_total", 2, {{"class", "a\"b\\c\nd"}});
  m.Gauge("tidepool_step", 7);
  m.Gauge("tidepool_unknown", 1);
  m.Figures({{"critic/score/mean", 0.5}, {"mine/own", 1}});
  DurationHistogram durations;
  durations.Add(0.001);
  durations.Add(0.3);
  durations.Add(1e6);
  m.Durations("tidepool_step_seconds", durations);
  const std::string text = m.Text();
  EXPECT_THAT(text, HasSubstr("# TYPE tidepool_faults_total counter\n"
                              "tidepool_faults_total{class=\"a\\\"b\\\\c\\nd\"} 2\n"));
  EXPECT_THAT(text,
              HasSubstr("# HELP tidepool_step_seconds How long steps took, by the clock on the wall.\n"));
  EXPECT_THAT(text, HasSubstr("tidepool_step_seconds_bucket{le=\"0.001\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("tidepool_step_seconds_bucket{le=\"0.5\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tidepool_step_seconds_bucket{le=\"3600\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("tidepool_step_seconds_bucket{le=\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("tidepool_step_seconds_count 3\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tidepool_critic_score_mean gauge\ntidepool_critic_score_mean 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("unknown")));
  EXPECT_THAT(text, Not(HasSubstr("mine")));
}

TEST(ExpositionTest, NoTwoNamesOfTheGlossaryAreOneFamily) {
  std::map<std::string, std::string> names;
  std::istringstream lines{std::string(MetricsGlossary())};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(0, line.find(" | ", 2));
    for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      const size_t end = cell.find('`', at + 1);
      const std::string name = cell.substr(at + 1, end - at - 1);
      at = end;
      if (name.find('<') != std::string::npos) continue;
      const auto shown = MetricName(name);
      const std::string family = shown ? shown->family : name;
      const auto [known, fresh] = names.emplace(family, name);
      EXPECT_TRUE(fresh || known->second == name) << name << " and " << known->second << " are " << family;
    }
  }
  EXPECT_GT(names.size(), 150U);
}

}  // namespace
}  // namespace tidepool::observe
