#include "core/base/call_watch.h"

#include <gtest/gtest.h>

namespace tidepool {
namespace {

using namespace std::chrono_literals;

PluginCall Named(const std::string& what, double limit_s = 4) {
  return {.what = what, .on = "sample 1", .limit_s = limit_s};
}
std::string Overdue(CallWatch& watch, CallWatch::Clock::time_point now) {
  const auto late = watch.Overdue(now);
  return late ? late->Late() : "";
}

TEST(CallWatchTest, ACallThatIsNotBackInTimeIsNamedAndOneThatIsBackIsNot) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(Overdue(watch, now), "");
  const CallWatch::Call slow(watch, Named("slow"), now);
  { const CallWatch::Call quick(watch, Named("quick", 1), now); }
  for (const auto end = now + 3900ms; now < end; now += 100ms) EXPECT_EQ(Overdue(watch, now), "");
  EXPECT_EQ(watch.Oldest()->call.what, "slow");
  EXPECT_EQ(Overdue(watch, now + 100ms), "slow did not return within 4 s on sample 1; correct it");
}

TEST(CallWatchTest, OfSeveralCallsTheOneThatIsLateIsNamedWhereverItStands) {
  CallWatch watch;
  const auto now = CallWatch::Clock::now();
  const auto step = 500ms;  // of looks, so that nobody is taken for absent
  const CallWatch::Call first(watch, Named("first", 9), now);
  const CallWatch::Call second(watch, Named("second", 2), now);
  const CallWatch::Call third(watch, Named("third", 9), now);
  for (auto at = now; at < now + 2s; at += step) EXPECT_EQ(Overdue(watch, at), "");
  EXPECT_EQ(Overdue(watch, now + 2s), "second did not return within 2 s on sample 1; correct it");
  EXPECT_EQ(watch.Oldest()->call.what, "first");
}

// A command looks during its calls alone: that nobody looked before says nothing of them.
TEST(CallWatchTest, TheTimeBeforeACallDoesNotCount) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(Overdue(watch, now), "");
  now += 60s;
  const CallWatch::Call call(watch, Named("it"), now);
  for (const auto end = now + 3900ms; now < end; now += 100ms) EXPECT_EQ(Overdue(watch, now), "");
  EXPECT_EQ(Overdue(watch, now + 100ms), "it did not return within 4 s on sample 1; correct it");
}

TEST(CallWatchTest, WhatIsSaidOfACallThatIsLate) {
  const PluginCall call{.what = "reward mine (mine.cc)",
                        .on = "sample 3.0.1 (question 3)",
                        .limit_s = 0.5,
                        .key = "its timeout_s"};
  EXPECT_EQ(call.Late(),
            "reward mine (mine.cc) did not return within 0.5 s (its timeout_s) on sample 3.0.1 (question 3); "
            "correct it, or raise its timeout_s");
}

TEST(CallWatchTest, ALookThatComesALittleLateIsNoAbsence) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  const CallWatch::Call call(watch, Named("it"), now);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Overdue(watch, now += 900ms), "");
  EXPECT_EQ(Overdue(watch, now += 900ms), "it did not return within 4 s on sample 1; correct it");
}

TEST(CallWatchTest, TheTimeInWhichTheProcessWasStoppedDoesNotCount) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(Overdue(watch, now), "");
  const CallWatch::Call call(watch, Named("it"), now);
  EXPECT_EQ(Overdue(watch, now += 6s), "") << "SIGSTOP for 6 s";
  for (const auto end = now + 3900ms; now < end;) EXPECT_EQ(Overdue(watch, now += 100ms), "");
  EXPECT_EQ(Overdue(watch, now += 100ms), "it did not return within 4 s on sample 1; correct it");
}

}  // namespace
}  // namespace tidepool
