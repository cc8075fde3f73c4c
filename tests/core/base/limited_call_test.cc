#include "core/base/limited_call.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace tidepool {
namespace {

using namespace std::chrono_literals;

const PluginCall kCall{.what = "task mine (mine.cc)", .on = "question 7", .limit_s = 0.3};

// Longer than any limit here; a process that is not ended is seen by its exit code.
void Hang() { std::this_thread::sleep_for(30s); }

TEST(LimitedCallTest, WhatAPlugInThrowsIsNamed) {
  EXPECT_EQ(LimitedCall(kCall).Run([] { return 3; }), 3);
  const auto threw = [](auto what) -> std::string {
    try {
      LimitedCall(kCall).Run([&] { throw what; });
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

TEST(LimitedCallDeathTest, OneThatComesBackJustInTimeEndsNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_time = [] {
    for (int i = 0; i < 3; ++i) {
      const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7", .limit_s = 1.5});
      std::this_thread::sleep_for(1200ms);  // the thread that watches looks a dozen times
    }
    std::this_thread::sleep_for(700ms);  // long after the limits of all
    std::exit(5);
  };
  EXPECT_EXIT(in_time(), testing::ExitedWithCode(5), "^$");
}

TEST(LimitedCallDeathTest, OneWithoutALimitHasTheUsualOneThatIsSetLast) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto hangs = [] {
    LimitedCall::Usual({20, "of the run before"});
    LimitedCall::Usual({0.5, "cluster.plugin_timeout_s"});
    { const UsualLimitFor beside({0.2, "of a config that is read beside it"}); }
    { const LimitedCall quick(kCall); }
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(hangs(), testing::ExitedWithCode(3),
              "^error: task mine \\(mine.cc\\) did not return within 0.5 s \\(cluster.plugin_timeout_s\\) on "
              "question 7; correct it, or raise cluster.plugin_timeout_s\n$");
}

// A terminal that is held, a pipe that nobody reads: what is shown there holds no end up.
TEST(LimitedCallDeathTest, OutputThatNobodyReadsDoesNotHoldTheEndUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The process that hangs runs this test from its beginning, and is to know the same file.
  ::setenv("LAST_WORDS_OF_TEST", (testing::TempDir() + "last_words-" + std::to_string(::getpid())).c_str(),
           /*overwrite=*/0);
  const std::string words = std::getenv("LAST_WORDS_OF_TEST");
  const auto hangs = [&] {
    int ends[2];
    if (::pipe(ends) != 0) std::exit(1);
    ::dup2(ends[1], STDOUT_FILENO);
    RunningCall::TellIn("", words);
    std::thread([] {
      for (;;) std::puts("what is shown");
    }).detach();
    const LimitedCall call(kCall);
    Hang();
    std::exit(0);
  };
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EXIT(hangs(), testing::ExitedWithCode(3), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  std::ifstream in(words);
  std::string line;
  std::getline(in, line);
  EXPECT_EQ(line, "error: task mine (mine.cc) did not return within 0.3 s on question 7; correct it");
  std::filesystem::remove(words);
}

TEST(LimitedCallDeathTest, WhoeverIsToldToStopDoesNotWaitForOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stopped = [] {
    LimitedCall::StopAt({.signals = [] { return 2; }});
    std::this_thread::sleep_for(300ms);  // no call is under way
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(stopped(), testing::ExitedWithCode(3),
              "^error: stopped by a signal while it ran task mine \\(mine.cc\\) on question 7\n$");
}

TEST(LimitedCallDeathTest, AfterOneSignalACallIsToldAndWaitedForForAWhile) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stopped = [] {
    LimitedCall::StopAt({.signals = [] { return 1; }, .patience = 1s});
    for (int i = 0; i < 15; ++i) {
      const LimitedCall quick({.what = "task quick (quick.cc)", .on = "question 1"});
      std::this_thread::sleep_for(100ms);  // together longer than one is waited for
    }
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(
      stopped(), testing::ExitedWithCode(3),
      "^the end waits for task mine \\(mine.cc\\) on question 7 to come back; a second signal ends it "
      "now\nerror: stopped by a signal, and did not wait longer than 1 s for task mine \\(mine.cc\\) on "
      "question 7 to come back\n$");
}

TEST(LimitedCallDeathTest, WhoeverIsToldToStopOtherwiseSaysByWhomAndWhatIsWaitedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stopped = [] {
    LimitedCall::StopAt(
        {.signals = [] { return 1; },
         .patience = 1s,
         .by = "its controller",
         .tell = [](const std::string& what) { std::fprintf(stderr, "%s\n", what.c_str()); }});
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7"});
    Hang();
    std::exit(0);
  };
  EXPECT_EXIT(
      stopped(), testing::ExitedWithCode(3),
      "^the end waits for task mine \\(mine.cc\\) on question 7\nerror: stopped by its controller, and did "
      "not wait longer than 1 s for task mine \\(mine.cc\\) on question 7 to come back\n$");
}

TEST(LimitedCallDeathTest, ACallThatIsUnderWayForLongIsToldOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto held = [] {
    LimitedCall::TellHeld(
        [](const PluginCall& call) { std::fprintf(stderr, "held: %s\n", call.on.c_str()); });
    for (int i = 0; i < 6; ++i) {
      const LimitedCall quick({.what = "task quick (quick.cc)", .on = "a quick one", .limit_s = 0.8});
      std::this_thread::sleep_for(100ms);
    }
    {
      const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 7", .limit_s = 2.4});
      std::this_thread::sleep_for(1800ms);
    }
    LimitedCall::TellHeld({});
    const LimitedCall call({.what = "task mine (mine.cc)", .on = "question 8", .limit_s = 2});
    std::this_thread::sleep_for(1500ms);
    std::exit(5);
  };
  EXPECT_EXIT(held(), testing::ExitedWithCode(5), "^held: question 7\n$");
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

TEST(LimitedCallDeathTest, AChildThatIsToCallPlugInsItselfHasTheirLimits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto forks = [] {
    { const LimitedCall first(kCall); }
    const pid_t child = ::fork();
    if (child == 0) {
      LimitedCall::WatchThisProcess();
      const LimitedCall call(kCall);
      Hang();
      ::_exit(5);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::exit(WEXITSTATUS(status));
  };
  EXPECT_EXIT(forks(), testing::ExitedWithCode(3),
              "^error: task mine \\(mine.cc\\) did not return within 0.3 s on question 7; correct it\n$");
}

TEST(LimitedCallDeathTest, WithoutAThreadForTheLimitsCallsAreMadeAllTheSame) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto none = [] {
    const rlimit few{.rlim_cur = 0, .rlim_max = 0};
    ::setrlimit(RLIMIT_NPROC, &few);
    if (::getuid() == 0 && ::setuid(65534) != 0) std::exit(1);  // root has as many as it likes
    for (int i = 0; i < 2; ++i) {
      const LimitedCall call(kCall);
      std::this_thread::sleep_for(400ms);
    }
    std::exit(5);
  };
  EXPECT_EXIT(
      none(), testing::ExitedWithCode(5),
      "^warning: no thread can be started \\(.*\\), so a call of a plug-in that does not come back is not "
      "ended at its limit\n$");
}

}  // namespace
}  // namespace tidepool
