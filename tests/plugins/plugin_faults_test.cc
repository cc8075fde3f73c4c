// A plug-in that lacks what its kind needs is named, with what it lacks, before anything calls it.

#include <gtest/gtest.h>

#include "core/algorithms/registry.h"
#include "core/base/plugin_check.h"
#include "core/environments/control_tasks/control_plugin.h"
#include "core/environments/text_game.h"
#include "core/model/families/family.h"
#include "core/tasks/rewards/reward_plugin.h"
#include "core/tasks/tasks/task_plugin.h"
#include "scheduler/policies/policy_plugin.h"

namespace tidepool {
namespace tasks {
std::string FaultOf(const RewardPlugin& plugin);
std::string FaultOf(const TaskPlugin& plugin);
}  // namespace tasks
namespace environments {
std::string FaultOf(const TextEnvironmentPlugin& plugin);
std::string FaultOf(const ControlPlugin& plugin);
}  // namespace environments
namespace algorithms {
std::string FaultOf(const LossPlugin& plugin);
std::string FaultOf(const AdvantagePlugin& plugin);
std::string FaultOf(const AlgorithmPlugin& plugin);
}  // namespace algorithms
namespace model {
std::string FaultOf(const FamilyPlugin& plugin);
}
namespace scheduler {
std::string FaultOf(const PolicyPlugin& plugin);
}

namespace {

TEST(PluginFaultsTest, AMemberThatIsLeftOutIsNamed) {
  EXPECT_EQ(FaultOf(tasks::RewardPlugin{}), "has no .make");
  EXPECT_EQ(FaultOf(tasks::TaskPlugin{}), "has no .make");
  tasks::TaskPlugin task;
  task.make = [](const auto&, const auto&) { return InvalidArgument("unused"); };
  EXPECT_EQ(FaultOf(task), "has no .units");
  EXPECT_EQ(FaultOf(environments::TextEnvironmentPlugin{}), "has no .make");
  EXPECT_EQ(FaultOf(environments::ControlPlugin{}), "has no .make");
  EXPECT_EQ(FaultOf(algorithms::LossPlugin{}), "has no .terms");
  EXPECT_EQ(FaultOf(algorithms::AdvantagePlugin{}),
            "has no .compute, and no .needs that says what a job would have to provide for one");
  EXPECT_EQ(FaultOf(model::FamilyPlugin{}), "has no .architecture");
  model::FamilyPlugin family = *model::FindFamily("llama");
  EXPECT_EQ(FaultOf(family), "");
  family.write = nullptr;
  EXPECT_EQ(FaultOf(family), "has no .write");
  EXPECT_EQ(FaultOf(scheduler::PolicyPlugin{}), "has no .decide");
}

// TP_PLUGIN asserts it where it stands.
struct HiddenPlace {
  static constexpr std::string_view Words() { return __PRETTY_FUNCTION__; }
};
static_assert(IsAnonymous(HiddenPlace::Words()));
static_assert(
    !IsAnonymous("static constexpr std::string_view tidepool::tasks::RewardPlugin_x_place::Words()"));

TEST(PluginFaultsTest, AnAlgorithmOfPartsThatAreNotThereNamesThem) {
  algorithms::AlgorithmPlugin plugin = *algorithms::FindAlgorithm("grpo");
  EXPECT_EQ(FaultOf(plugin), "");
  plugin.loss.name = "pop";
  EXPECT_TRUE(FaultOf(plugin).starts_with(".loss is 'pop'; there are ")) << FaultOf(plugin);
  plugin.advantage.name = "";
  EXPECT_TRUE(FaultOf(plugin).starts_with(".advantage is ''; there are ")) << FaultOf(plugin);
}

TEST(PluginFaultsTest, ATableWithAFaultEndsTheProgramInWords) {
  const auto whole = WithoutFaults<tasks::RewardPlugin>("Reward", {tasks::RewardPlugins()[0]});
  EXPECT_STREQ(whole.at(0).name, tasks::RewardPlugins()[0].name);
  EXPECT_EXIT(WithoutFaults<tasks::RewardPlugin>(
                  "Reward", {whole[0], {"zz", [] { return tasks::RewardPlugin{}; }, "rewards/zz.cc"}}),
              ::testing::ExitedWithCode(2),
              "^rewards/zz.cc: TP_PLUGIN\\(Reward, zz\\): has no .make; correct it");
}

}  // namespace
}  // namespace tidepool
