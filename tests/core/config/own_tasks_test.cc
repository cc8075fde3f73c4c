// What is said of tasks that are wrong by themselves, before anything is trained on them. This program has a
// table of tasks of its own, in place of the one that the build writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/load.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

// `twice`: every second one is there before.
Question OfPick(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  const int64_t code = options.Text("how") == "twice" ? pick.code / 2 : pick.code;
  return NumberQuestion("what is " + std::to_string(code) + "?", code);
}

TaskPlugin Own(const char* option) {
  const Option how = ChoiceOption("how", {"once", "twice"}, "each question is there so often");
  Option other = how;
  other.name = option;
  return SpaceTask(
      {.doc = "for this test", .options = {how, other}},
      [](const OptionValues&) -> StatusOr<std::vector<int64_t>> { return std::vector<int64_t>{40}; },
      &OfPick);
}

TaskPlugin Sound() { return Own("free"); }
TaskPlugin OfAKey() { return Own("path"); }  // data.path

constexpr Plugin<TaskPlugin> kTasks[] = {{"of_a_key", &OfAKey, "mine/of_a_key.cc"},
                                         {"sound", &Sound, "mine/sound.cc"}};

}  // namespace

std::span<const Plugin<TaskPlugin>> TaskPlugins() { return kTasks; }

}  // namespace tidepool::tasks

namespace tidepool::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

StatusOr<LoadedConfig> Load(const std::string& data) {
  return LoadConfigText("name: own\njob: rl\nmodel:\n  path: models/some\ndata: {" + data +
                            ", held_out: 10}\nreward: {functions: [exact_answer]}\nrollout: {group_size: 8, "
                            "max_new_tokens: 16}\n",
                        "x.yaml");
}

TEST(OwnTasksTest, AnOptionWithTheNameOfAKeyIsRefusedWithTheFileOfTheTask) {
  const auto loaded = Load("task: of_a_key");
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(
      loaded.status().message(),
      HasSubstr("x.yaml:5: data.task: option 'path' of of_a_key has the name of the key data.path, which "
                "takes what is written there; give it another name in mine/of_a_key.cc"));
}

TEST(OwnTasksTest, QuestionsThatAreThereTwiceAreToldOf) {
  const auto once = Load("task: sound");
  ASSERT_TRUE(once.ok()) << once.status().message();
  EXPECT_THAT(once->warnings, Not(Contains(HasSubstr("there before"))));
  const auto twice = Load("task: sound, how: twice");
  ASSERT_TRUE(twice.ok()) << twice.status().message();
  EXPECT_THAT(twice->warnings,
              Contains(AllOf(HasSubstr("x.yaml:5: data.task: 20 of the first 40 questions of task sound are "
                                       "there before ("),
                             HasSubstr("give each pick a question of its own in mine/sound.cc"))));
}

}  // namespace
}  // namespace tidepool::config
