#include "workers/controller/reward_outage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config/load.h"

namespace tidepool::workers {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

JobConfig Job() {
  auto loaded = config::LoadConfig("configs/test/rl_colocated.yaml",
                                   {"reward.functions=[{name: judge, endpoint: \"unix:/x\", timeout_s: 2}]",
                                    "reward.concurrency=4", "reward.max_retries=2"});
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded->config;
}

const std::vector<up::Unreachable> kAway = {{0, "Connection refused"}};

// What a server says may contain the name and endpoint of another one.
TEST(RewardOutageTest, ACauseIsNotReadForNames) {
  JobConfig job = Job();
  job.reward.functions.push_back({.name = "slow", .endpoint = "unix:/y", .timeout_s = 3600});
  const std::vector<up::Unreachable> away = {{0, "the proxy before slow at unix:/y hangs"},
                                             {7, "no function"}};
  EXPECT_THAT(
      UnreachableText(job, away, /*any_graded=*/true),
      AllOf(HasSubstr("judge at unix:/x: the proxy before slow at unix:/y hangs; it is tried again for "
                      "2.0s"),
            Not(HasSubstr("no function"))));
}

// Nothing is said then: "rewards wait for ; ..." would name no server.
TEST(RewardOutageTest, ServersOfNoFunctionOfTheConfigAreNotWaitedFor) {
  const std::vector<up::Unreachable> away = {
      {7, "no function"}, {0, "Connection refused"}, {-1, "no function"}};
  const auto own = ServersOf(Job().reward, away);
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own[0].cause, "Connection refused");
  EXPECT_TRUE(ServersOf(Job().reward, std::span(away).first(1)).empty());
}

TEST(RewardOutageTest, AnOutageIsToldWithItsEndAndTheKeysOfIt) {
  EXPECT_THAT(
      UnreachableText(Job(), kAway, /*any_graded=*/false),
      AllOf(
          HasSubstr(
              "rewards wait for judge at unix:/x: Connection refused; it is tried again for 2.0s (timeout_s"),
          HasSubstr("after 3 quick tries"),
          HasSubstr("once 65 samples are lost (scheduler.infra_drop_stop), or all of the first 32")));
  EXPECT_THAT(UnreachableText(Job(), kAway, /*any_graded=*/true),
              AllOf(HasSubstr("once 65 samples are lost"), Not(HasSubstr("all of the first"))));
}

// 16 samples a step: the run ends with 65 of 320, or with the first 32.
TEST(RewardOutageTest, FailuresAreToldWithTheTimeUntilTheyEndTheRun) {
  JobConfig job = Job();
  EXPECT_THAT(
      FailingText(job, "no answer", /*any_graded=*/true),
      AllOf(HasSubstr("a grading failed: no answer. "), HasSubstr("65 samples are lost"),
            HasSubstr("in 1m42s or more: 3 tries a sample (reward.max_retries) of 2.0s"),
            HasSubstr("4 calls at a time (reward.workers times reward.concurrency)")));  // 3 x 17 x 2 s
  EXPECT_THAT(FailingText(job, "no answer", /*any_graded=*/false), HasSubstr("in 48.0s or more"));
  job.reward.batch = 8;  // 1 + 2 x 8 rounds
  EXPECT_THAT(FailingText(job, "no answer", /*any_graded=*/false), HasSubstr("in 34.0s or more"));
}

TEST(RewardOutageTest, AFunctionThatFailsHasNoTimeOutsToWaitFor) {
  JobConfig job = Job();
  job.reward.functions = {{.name = "exact_answer"}};
  EXPECT_THAT(FailingText(job, "it threw", /*any_graded=*/true),
              AllOf(HasSubstr("65 samples are lost"), Not(HasSubstr("time-out")), Not(HasSubstr("tries"))));
}

}  // namespace
}  // namespace tidepool::workers
