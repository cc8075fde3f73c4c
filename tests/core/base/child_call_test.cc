#include "core/base/child_call.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace tidepool {
namespace {

using namespace std::chrono_literals;

TEST(ChildCallTest, WhatTheBodyReturnsArrivesAndNothingElse) {
  int here = 0;
  const std::string large(300000, 'x');
  const auto said = InChild([&](const ChildNote& note) {
    note("the only part", 30s);
    here = 1;
    return large;
  });
  ASSERT_TRUE(said.ok()) << said.status().message();
  EXPECT_EQ(*said, large);
  EXPECT_EQ(here, 0);
}

TEST(ChildCallTest, AnEndThatWasNotMeantIsToldWithTheLastNote) {
  const auto ends = [](const std::function<void()>& how) {
    return InChild([&](const ChildNote& note) {
      note("step 1", 30s);
      note("step 2", 30s);
      how();
      return std::string();
    });
  };
  const auto aborted = ends([] { std::raise(SIGABRT); });
  EXPECT_EQ(aborted.status().code(), StatusCode::kAborted);
  EXPECT_EQ(aborted.status().message(), "step 2: was killed by signal 6 (SIGABRT)");
  EXPECT_EQ(ends([] { ::_exit(7); }).status().message(), "step 2: ended its process with exit status 7");
  const auto threw = ends([] { throw std::runtime_error("no such place"); });
  EXPECT_EQ(threw.status().code(), StatusCode::kInternal);
  EXPECT_EQ(threw.status().message(), "step 2: threw an exception: no such place");
  EXPECT_EQ(ends([] { throw 42; }).status().message(), "step 2: threw something that is no std::exception");
}

TEST(ChildCallTest, AChildThatIsGoneIsNotWaitedForWhereAChildOfItsOwnHoldsThePipe) {
  const auto began = std::chrono::steady_clock::now();
  const auto gone = InChild([&](const ChildNote& note) {
    note("step 1", 8s);
    if (::fork() == 0) {
      std::this_thread::sleep_for(10s);
      ::_exit(0);
    }
    ::_exit(7);
    return std::string();
  });
  EXPECT_EQ(gone.status().message(), "step 1: ended its process with exit status 7");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
}

TEST(ChildCallTest, APartThatDoesNotEndIsKilledAtItsLimitAndOthersDoNotCount) {
  const auto began = std::chrono::steady_clock::now();
  const auto late = InChild([&](const ChildNote& note) {
    note("step 1", 30s);
    note("step 2", 0.05s);
    while (std::chrono::steady_clock::now() < began + 60s) std::this_thread::yield();
    return std::string();
  });
  EXPECT_EQ(late.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.status().message(), "step 2: did not end within 0.05 s");
  EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
}

TEST(ChildCallTest, HowItEndedIsToldApart) {
  const auto ends = [](const std::function<void()>& how) {
    ChildEnd end;
    (void)InChild(
        [&](const ChildNote& note) {
          note("step 1", kNoLimit);
          how();
          return std::string();
        },
        &end);
    return end;
  };
  EXPECT_EQ(ends([] { std::raise(SIGABRT); }).signal, SIGABRT);
  EXPECT_EQ(ends([] { ::_exit(0); }).exit_status, 0);
  const ChildEnd well = ends([] {});
  EXPECT_FALSE(well.signal || well.exit_status);
}

// The child is done long before, as a whole group of processes that a terminal stops would not be.
TEST(ChildCallDeathTest, TimeInWhichTheProcessIsStoppedIsNotThatOfThePart) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto stopped = [] {
    const pid_t self = ::getpid();
    if (::fork() == 0) {
      std::this_thread::sleep_for(300ms);
      ::kill(self, SIGSTOP);
      std::this_thread::sleep_for(3s);
      ::kill(self, SIGCONT);
      ::_exit(0);
    }
    const auto said = InChild([](const ChildNote& note) {
      note("step 1", 2s);
      std::this_thread::sleep_for(1s);
      return std::string("done");
    });
    std::fprintf(stderr, "%s", said.ok() ? said->c_str() : said.status().message().c_str());
    std::exit(5);
  };
  EXPECT_EXIT(stopped(), testing::ExitedWithCode(5), "^done$");
}

TEST(ChildCallTest, AChildEndsWithItsProcess) {
  // The write end is held by the child alone, once the process is gone.
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    (void)InChild([&](const ChildNote& note) {
      note("step 1", kNoLimit);
      (void)!::write(ends[1], "x", 1);
      std::this_thread::sleep_for(30s);
      return std::string();
    });
    ::_exit(0);
  }
  ::close(ends[1]);
  char c = 0;
  ASSERT_EQ(::read(ends[0], &c, 1), 1);
  ::kill(process, SIGKILL);
  ::waitpid(process, nullptr, 0);
  pollfd closed{.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&closed, 1, 10'000), 1) << "it still runs";
  ::close(ends[0]);
}

}  // namespace
}  // namespace tidepool
