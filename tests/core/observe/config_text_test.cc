#include "core/observe/config_text.h"

#include <gtest/gtest.h>

namespace tidepool::observe {
namespace {

TEST(ConfigTextTest, NamesEveryKeyWithItsSectionsAndListItems) {
  const auto values = ConfigValues(
      "# Overrides: none\n"
      "name: x                   # a.yaml:1\n"
      "model:\n"
      "  init:\n"
      "    alphabet: \"ab # c\\\"=\"   # a.yaml:2\n"
      "  path: \"\"                # default\n"
      "reward:\n"
      "  functions:              # a.yaml:5\n"
      "    - name: exact_answer  # a.yaml:5\n"
      "      weight: 1\n"
      "    - name: format\n"
      "  workers: 2\n"
      "data:\n"
      "  letters: [\"a # b\",2] # a.yaml:7\n"
      "  # style: terse          # default of task x\n");
  const std::map<std::string, std::string> expected = {{"name", "x"},
                                                       {"model.init.alphabet", "ab # c\\\"="},
                                                       {"model.path", ""},
                                                       {"reward.functions[0].name", "exact_answer"},
                                                       {"reward.functions[0].weight", "1"},
                                                       {"reward.functions[1].name", "format"},
                                                       {"reward.workers", "2"},
                                                       {"data.letters", "[\"a # b\",2]"}};
  EXPECT_EQ(values, expected);
  EXPECT_TRUE(ConfigValues("\n- \n:\n   \"").size() < 2) << "nonsense is no crash";
}

TEST(ConfigTextTest, AKeyThatAResumeChangedHasAllItsValues) {
  const auto changes = ConfigChanges(
      "# Config: a.yaml\n# Resumed at step 20, 20261125T091426Z:\n#   train.steps: was 20, is 40\n"
      "#   train.learning_rate: was 0.001, is 1e-05\n# Resumed at step 40, 20261126T091426Z:\n"
      "#   train.learning_rate: was 1e-05, is 0.1\nname: x  # was 1, is 2\n");
  EXPECT_EQ(changes, (std::map<std::string, std::string>{
                         {"train.learning_rate", "0.001, from step 20 1e-05, from step 40 0.1"}}));
}

TEST(ConfigTextTest, KnowsWhatNobodySet) {
  EXPECT_EQ(ConfigDefaults("a: 1   # default\nb: \"x # default\"   # mine.yaml:2\nc:\n  d: 2   # preset of "
                           "grpo\n  e: 3   # override\n  f: 4\n"),
            (std::set<std::string>{"a", "c.d"}));
}

}  // namespace
}  // namespace tidepool::observe
