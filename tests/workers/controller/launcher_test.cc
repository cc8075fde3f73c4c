#include "workers/controller/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tidepool::workers {
namespace {

using testing::HasSubstr;
using testing::Not;

struct LauncherTest : testing::Test {
  LauncherTest() {
    std::filesystem::create_directories(dir);
    std::ofstream(log) << "2026-01-31T12:00:00.123Z level=error event=x text=\"of an earlier life\"\n";
  }
  ~LauncherTest() override { std::filesystem::remove_all(dir); }

  // Runs a shell with `script`, which gets further arguments from the launcher.
  Ended Run(const std::string& script, int signal = 0) {
    Launcher launcher(/*outlive=*/false);
    const Status started = launcher.Start(2, {"/bin/sh", "-c", script, "sh"}, log);
    EXPECT_TRUE(started.ok()) << started.message();
    if (signal != 0) launcher.Kill(2, signal);
    const auto ended = launcher.EndAll(std::chrono::seconds(20), Duration{0});
    EXPECT_EQ(ended.size(), 1U);
    return ended.empty() ? Ended{} : ended.front();
  }

  const std::string dir = testing::TempDir() + "launcher-" + std::to_string(getpid());
  const std::string log = dir + "/w.log";
};

TEST_F(LauncherTest, AWorkerThatFailsIsToldInItsOwnWords) {
  const Ended ended =
      Run("echo '2026-01-31T12:00:01.123Z level=info event=start' >&2;"
          "echo '2026-01-31T12:00:02.123Z level=error role=reward event=attach_failed text=\"x.token: chmod "
          "600 it\"' >&2;"
          "echo '2026-01-31T12:00:03.123Z level=info event=end exit=2' >&2; exit 2");
  EXPECT_EQ(ended.place, 2);
  EXPECT_FALSE(ended.in_order);
  EXPECT_TRUE(ended.for_good());
  EXPECT_THAT(ended.why, HasSubstr("process " + std::to_string(ended.pid) +
                                   " ended with exit status 2: x.token: chmod 600 it"));
}

TEST_F(LauncherTest, WhatALoaderOrALibrarySaysIsToldToo) {
  const Ended ended = Run("echo 'libtorch_cpu.so: cannot open shared object file' >&2; exit 127");
  EXPECT_THAT(ended.why, HasSubstr("exit status 127: libtorch_cpu.so: cannot open"));
}

TEST_F(LauncherTest, WordsOfAnEarlierLifeAreNotThoseOfThisOne) {
  EXPECT_THAT(Run("exit 7").why, testing::EndsWith("ended with exit status 7"));
}

TEST_F(LauncherTest, AProcessThatIsKilledIsNotBlamedForWhatItSaidBefore) {
  const Ended ended = Run("echo 'a note' >&2; kill -9 $$");
  EXPECT_THAT(ended.why, testing::EndsWith("was killed by signal 9 (SIGKILL)"));
  EXPECT_EQ(ended.exit_status, std::nullopt);
}

TEST_F(LauncherTest, AnEndInOrderNeedsNoReason) {
  const Ended ended = Run("echo 'all is well' >&2");
  EXPECT_TRUE(ended.in_order);
  EXPECT_EQ(ended.exit_status, 0);
  EXPECT_THAT(ended.why, Not(HasSubstr("well")));
}

TEST_F(LauncherTest, HowAPlugInEndedItsProcessIsSaidOnce) {
  const Ended ended = Run(
      "echo 'error: the process was ended by a call of exit() while it ran reward quits (quits.cc) on sample "
      "1.0.0' >&2; echo 'reward quits (quits.cc)' >&3; exit 3");
  EXPECT_THAT(ended.why, testing::EndsWith("status 3: while it ran reward quits (quits.cc) on sample 1.0.0"));
  EXPECT_EQ(ended.exit_status, 3);
  EXPECT_EQ(ended.blames, "reward quits (quits.cc)");
}

// A plug-in's own words may look like anything.
TEST_F(LauncherTest, WhoIsToBlameIsNotReadOutOfWhatWasSaid) {
  const std::string slander = "echo 'while it ran reward innocent (innocent.cc) on sample 1.0.0' >&2; ";
  EXPECT_EQ(Run(slander + "exit 3").blames, "");
  EXPECT_EQ(Run(slander + "echo 'reward first (a.cc)' >&3; echo 'reward last (b.cc)' >&3; kill -9 $$").blames,
            "reward last (b.cc)");
}

TEST_F(LauncherTest, AProgramLearnsWhereToReport) {
  EXPECT_EQ(
      Run("test \"$1\" = --parent=" + std::to_string(getpid()) + " && test \"$2\" = --report=3").in_order,
      true);
}

// What a former controller started is no child of this one.
TEST_F(LauncherTest, AnAdoptedProcessIsKilledAndSeenToEnd) {
  const std::string file = dir + "/pid";
  ASSERT_EQ(std::system(("sleep 60 >/dev/null 2>&1 & echo $! > " + file).c_str()), 0);
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 1);
  Launcher launcher(/*outlive=*/true);
  launcher.Adopt(3, pid);
  EXPECT_EQ(launcher.Pid(3), pid);
  EXPECT_TRUE(launcher.Reap().empty());
  launcher.Kill(3, SIGSTOP);
  launcher.Kill(3, SIGKILL);
  const auto ended = launcher.EndAll(std::chrono::seconds(20), Duration{0});
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended.front().place, 3);
  EXPECT_EQ(ended.front().pid, pid);
  EXPECT_THAT(ended.front().why, HasSubstr("process " + std::to_string(pid) + " ended or was killed"));
}

}  // namespace
}  // namespace tidepool::workers
