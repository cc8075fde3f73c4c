#include "workers/side/call_watch.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

using namespace std::chrono_literals;

TEST(CallWatchTest, ACallThatIsNotBackInTimeIsNamedAndOneThatIsBackIsNot) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(watch.Overdue(now), std::nullopt);
  const CallWatch::Call slow(watch, "slow is late", 4, now);
  { const CallWatch::Call quick(watch, "quick is late", 1, now); }
  for (const auto end = now + 3900ms; now < end; now += 100ms) EXPECT_EQ(watch.Overdue(now), std::nullopt);
  EXPECT_EQ(watch.Overdue(now + 100ms), "slow is late");
}

TEST(CallWatchTest, TheTimeInWhichTheProcessWasStoppedDoesNotCount) {
  CallWatch watch;
  auto now = CallWatch::Clock::now();
  EXPECT_EQ(watch.Overdue(now), std::nullopt);
  const CallWatch::Call call(watch, "it is late", 4, now);
  EXPECT_EQ(watch.Overdue(now += 6s), std::nullopt) << "SIGSTOP for 6 s";
  for (const auto end = now + 3900ms; now < end;) EXPECT_EQ(watch.Overdue(now += 100ms), std::nullopt);
  EXPECT_EQ(watch.Overdue(now += 100ms), "it is late");
}

}  // namespace
}  // namespace tidepool::workers
