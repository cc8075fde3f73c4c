#include "core/base/limited_call.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

namespace tidepool {
namespace {

using namespace std::chrono_literals;

const PluginCall kCall{.what = "task mine (mine.cc)", .on = "question 7", .limit_s = 0.3};

// Longer than any limit here; a process that is not ended is seen by its exit code.
void Hang() { std::this_thread::sleep_for(30s); }

TEST(LimitedTest, WhatAPlugInThrowsIsNamed) {
  EXPECT_EQ(Limited(kCall, [] { return 3; }), 3);
  const auto threw = [](auto what) -> std::string {
    try {
      Limited(kCall, [&] { throw what; });
    } catch (const PluginThrew& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(threw(std::runtime_error("no such place")),
            "task mine (mine.cc) threw an exception on question 7: no such place");
  EXPECT_EQ(threw(42), "task mine (mine.cc) threw something that is no std::exception on question 7");
}

TEST(LimitedCallDeathTest, OneThatDoesNotComeBackEndsTheProcessByName) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hangs = [] {
    { const LimitedCall quick({.what = "task quick (quick.cc)", .on = "question 1", .limit_s = 0.1}); }
    const LimitedCall call(kCall);
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(hangs(), testing::ExitedWithCode(3),
              "^error: task mine \\(mine.cc\\) did not return within 0.3 s on question 7; correct it\n$");
}

TEST(LimitedCallDeathTest, OneWithoutALimitHasTheLongestOfTheUsualOnes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hangs = [] {
    LimitedCall::UsualLimit(0.5, "cluster.plugin_timeout_s");
    LimitedCall::UsualLimit(0.2, "another");
    { const LimitedCall quick(kCall); }
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(hangs(), testing::ExitedWithCode(3),
              "^error: task mine \\(mine.cc\\) did not return within 0.5 s \\(cluster.plugin_timeout_s\\) on "
              "question 7; correct it, or raise cluster.plugin_timeout_s\n$");
}

TEST(LimitedCallDeathTest, WhoeverIsToldToStopDoesNotWaitForOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stopped = [] {
    LimitedCall::StopIf([] { return true; });
    std::this_thread::sleep_for(300ms);  // no call is under way
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(stopped(), testing::ExitedWithCode(3),
              "^error: stopped by a signal while it ran task mine \\(mine.cc\\) on question 7\n$");
}

TEST(LimitedCallDeathTest, AChildThatIsForkedHasNoLimitOfThisProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto forks = [] {
    { const LimitedCall first(kCall); }
    const pid_t child = ::fork();
    if (child == 0) {
      const LimitedCall call(kCall);
      std::this_thread::sleep_for(600ms);
      std::exit(5);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::exit(WEXITSTATUS(status));
  };
  EXPECT_EXIT(forks(), testing::ExitedWithCode(5), "^$");
}

}  // namespace
}  // namespace tidepool
