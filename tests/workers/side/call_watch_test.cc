#include "workers/side/call_watch.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

using namespace std::chrono_literals;

PluginCall Named(const std::string& what) {
  return {.what = what, .on = "sample 1", .within = "4 s", .advice = "correct it"};
}
std::string Overdue(CallWatch& watch, CallWatch::Clock::time_point now) {
  const auto late = watch.Overdue(now);
  return late ? late->Late() : "";
}

TEST(CallWatchTest, ACallThatIsNotBackInTimeIsNamedAndOneThatIsBackIsNot) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(Overdue(watch, now), "");
  const CallWatch::Call slow(watch, Named("slow"), 4, now);
  { const CallWatch::Call quick(watch, Named("quick"), 1, now); }
  for (const auto end = now + 3900ms; now < end; now += 100ms) EXPECT_EQ(Overdue(watch, now), "");
  EXPECT_EQ(watch.Oldest()->what, "slow");
  EXPECT_EQ(Overdue(watch, now + 100ms), "slow did not return within 4 s on sample 1; correct it");
}

TEST(CallWatchTest, TheTimeInWhichTheProcessWasStoppedDoesNotCount) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(Overdue(watch, now), "");
  const CallWatch::Call call(watch, Named("it"), 4, now);
  EXPECT_EQ(Overdue(watch, now += 6s), "") << "SIGSTOP for 6 s";
  for (const auto end = now + 3900ms; now < end;) EXPECT_EQ(Overdue(watch, now += 100ms), "");
  EXPECT_EQ(Overdue(watch, now += 100ms), "it did not return within 4 s on sample 1; correct it");
}

}  // namespace
}  // namespace tidepool::workers
