#include "core/base/running_call.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <thread>

#include "core/base/utc_time.h"

namespace tidepool {
namespace {

TEST(RunningCallTest, WhatIsSaidOfACall) {
  const std::string said = WhileItRan("reward mine (rewards/mine.cc)", "sample 3.0.1 (question 3)");
  EXPECT_EQ(said, "while it ran reward mine (rewards/mine.cc) on sample 3.0.1 (question 3)");
  EXPECT_EQ(WithoutHow("error: the process was killed by SIGSEGV " + said + "; correct it and build again"),
            said + "; correct it and build again");
  EXPECT_EQ(WithoutHow("error: " + said), "error: " + said);
}

void Crash(int number) {
  RunningCall::TellCrashes();
  const RunningCall outer("environment game (game.cc)", "turn 2");
  { const RunningCall inner("reward other (other.cc)", "sample 1.0.0"); }
  std::raise(number);
}

// Not tail recursion, and no loop either.
int Deep(volatile int* at) {
  volatile char room[4096] = {};
  room[0] = static_cast<char>(*at);
  *at = *at + 1;
  const int below = Deep(at);
  return below + room[0];
}

TEST(RunningCallDeathTest, ASignalThatEndsTheProcessIsToldWithTheCallThatItHit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(Crash(SIGSEGV), testing::KilledBySignal(SIGSEGV),
              "^error: the process was killed by SIGSEGV while it ran environment game \\(game.cc\\) on turn "
              "2; correct it and build again\n$");
  EXPECT_EXIT(Crash(SIGABRT), testing::KilledBySignal(SIGABRT),
              "^error: the process was killed by SIGABRT while it ran environment game \\(game.cc\\) on turn "
              "2; correct it and build again\n$");
}

// Its exit code would be that of a program that did its work.
TEST(RunningCallDeathTest, AnExitOutOfACallIsToldWithItAndIsAFailure) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exits = [](bool inside) {
    RunningCall::TellCrashes();
    std::jthread([inside] {
      const RunningCall call("reward quits (quits.cc)", "sample 1.0.0");
      if (inside) std::exit(0);
    }).join();
    std::exit(0);
  };
  EXPECT_EXIT(exits(true), testing::ExitedWithCode(3),
              "^error: the process was ended by a call of exit\\(\\) while it ran reward quits "
              "\\(quits.cc\\) on sample 1.0.0; correct it and build again\n$");
  EXPECT_EXIT(exits(false), testing::ExitedWithCode(0), "^$");
}

TEST(RunningCallDeathTest, AChildThatACallForksMayEndAsItLikes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto forks = [](bool crash) {
    RunningCall::TellCrashes();
    int status = 0;
    {
      const RunningCall call("reward forks (forks.cc)", "sample 1.0.0");
      const pid_t child = ::fork();
      if (child == 0 && crash) std::raise(SIGSEGV);
      if (child == 0) std::exit(5);
      ::waitpid(child, &status, 0);
    }
    std::exit(crash ? WTERMSIG(status) : WEXITSTATUS(status));
  };
  EXPECT_EXIT(forks(false), testing::ExitedWithCode(5), "^$");
  EXPECT_EXIT(forks(true), testing::ExitedWithCode(SIGSEGV), "^$");
}

// The name alone goes to the file; its last line counts.
TEST(RunningCallDeathTest, ThePlugInIsReportedToWhoeverStartedTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The processes that crash run this test from its beginning, and are to know the same file.
  ::setenv("REPORT_OF_TEST", (testing::TempDir() + "report-" + std::to_string(::getpid())).c_str(),
           /*overwrite=*/0);
  const std::string path = std::getenv("REPORT_OF_TEST");
  const auto crash = [&](bool inside) {
    const int report = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    RunningCall::TellCrashes(report);
    RunningCall::Blame("reward late (late.cc)");
    if (inside) Crash(SIGSEGV);
    std::raise(SIGSEGV);
  };
  const auto reported = [&] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EXIT(crash(true), testing::KilledBySignal(SIGSEGV), "while it ran");
  EXPECT_EQ(reported(), "reward late (late.cc)\nenvironment game (game.cc)\n");
  EXPECT_EXIT(crash(false), testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_EQ(reported(), "reward late (late.cc)\n");
  std::filesystem::remove(path);
}

TEST(RunningCallDeathTest, TheLastLineIsInTheFilesToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("FILES_OF_TEST", (testing::TempDir() + "files-" + std::to_string(::getpid())).c_str(),
           /*overwrite=*/0);
  const std::string path = std::getenv("FILES_OF_TEST"), log = path + ".log", words = path + ".words";
  const auto crash = [&] {
    std::ofstream(log) << "a line\n";
    RunningCall::TellIn(log, words, "role=controller");
    RunningCall::TellAfterwards("go on with: this");
    Crash(SIGSEGV);
  };
  const auto text = [](const std::string& file) {
    std::ifstream in(file);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EXIT(crash(), testing::KilledBySignal(SIGSEGV), "build again\ngo on with: this\n$");
  EXPECT_TRUE(
      text(words).starts_with("error: the process was killed by SIGSEGV while it ran environment game"))
      << text(words);
  const std::string said = text(words).substr(std::string("error: ").size());
  // As every other line of a log (core/observe/log.h).
  const std::regex line(
      R"re(a line\n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=error role=controller event=died_in_call text="(.*)"\n)re");
  const std::string logged = text(log);
  std::smatch found;
  ASSERT_TRUE(std::regex_match(logged, found, line)) << logged;
  EXPECT_EQ(found[1].str() + "\n", said);
  const auto at = ParseUtcTime(logged.substr(7, 24));
  ASSERT_TRUE(at);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  EXPECT_LT(std::abs(std::chrono::duration_cast<std::chrono::milliseconds>(now).count() - *at), 60'000);
  for (const std::string& file : {log, words}) std::filesystem::remove(file);
}

TEST(RunningCallDeathTest, WhoIsToTellItHasItAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ::setenv("WORDS_OF_TEST", (testing::TempDir() + "words-" + std::to_string(::getpid())).c_str(),
           /*overwrite=*/0);
  const std::string words = std::getenv("WORDS_OF_TEST");
  const auto crash = [&] {
    RunningCall::TellOnlyIn(words);
    Crash(SIGSEGV);
  };
  EXPECT_EXIT(crash(), testing::KilledBySignal(SIGSEGV), "^$");
  EXPECT_TRUE(std::filesystem::file_size(words) > 0);
  std::filesystem::remove(words);
}

TEST(RunningCallTest, QuotedTextIsThatOfALog) {
  LineBuffer line;
  line.AddQuoted("say \"a\\b\"\n\x01");
  EXPECT_EQ(line.text(), R"("say 'a\\b'\n\x01")");
}

TEST(RunningCallDeathTest, WordsAreMadeWhenTheyAreToldAndALongLineIsCut) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto crash = [](size_t more) {
    RunningCall::TellCrashes();
    int64_t turn = 0;
    const std::string what = "environment game (game.cc)" + std::string(more, 'x');
    const RunningCall call(what, LaterWords{[](const void* of, LineBuffer& out) {
                                              out.Add("turn ").Add(*static_cast<const int64_t*>(of));
                                            },
                                            &turn});
    turn = -7;
    std::raise(SIGSEGV);
  };
  EXPECT_EXIT(
      crash(0), testing::KilledBySignal(SIGSEGV),
      "^error: the process was killed by SIGSEGV while it ran environment game \\(game.cc\\) on turn -7; "
      "correct it and build again\n");
  EXPECT_EXIT(crash(10'000), testing::KilledBySignal(SIGSEGV),
              "^error: the process was killed by SIGSEGV while it ran environment game .*xxx\n");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(RunningCallDeathTest, AStackThatIsFullIsToldToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto overflow = [] {
    RunningCall::TellCrashes();
    const RunningCall call("reward deep (deep.cc)", "sample 1.0.0");
    volatile int at = 0;
    std::exit(Deep(&at));
  };
  EXPECT_EXIT(overflow(), testing::KilledBySignal(SIGSEGV),
              "while it ran reward deep \\(deep.cc\\) on sample 1.0.0; ");
}
#endif

}  // namespace
}  // namespace tidepool
