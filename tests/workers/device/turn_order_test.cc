#include "workers/device/turn_order.h"

#include <gtest/gtest.h>

#include <chrono>

namespace tidepool::workers {
namespace {

using std::chrono::seconds;
constexpr TimePoint kBegin{};
constexpr int kFirst = 0, kSecond = 0;  // sessions: their addresses

TEST(TurnOrderTest, SameWorkGoesInTheOrderInWhichItWasAskedFor) {
  TurnOrder order;
  const auto a = order.Ask(TurnKind::kTrains, kBegin), b = order.Ask(TurnKind::kTrains, kBegin);
  EXPECT_EQ(order.Next(kBegin), a);
  order.AskAgain(a, TurnKind::kTrains, kBegin + seconds(1));  // the next piece of the same step
  EXPECT_EQ(order.Next(kBegin), a);
  EXPECT_EQ(order.Next(kBegin), b);
  EXPECT_EQ(order.Next(kBegin), std::nullopt);
}

TEST(TurnOrderTest, NobodyTrainsWhileASessionGenerates) {
  TurnOrder order;
  order.SetGenerates(&kFirst, true);
  const auto trains = order.Ask(TurnKind::kTrains, kBegin);
  EXPECT_EQ(order.Next(kBegin), std::nullopt);  // the one that generates is between two steps
  const auto step = order.Ask(TurnKind::kGenerates, kBegin);
  EXPECT_EQ(order.Next(kBegin), step);
  order.SetGenerates(&kFirst, false);
  EXPECT_EQ(order.Next(kBegin), trains);
}

TEST(TurnOrderTest, NobodyGeneratesWhileOneWaitsToTrain) {
  TurnOrder order;
  const auto a = order.Ask(TurnKind::kTrains, kBegin);
  EXPECT_EQ(order.Next(kBegin), a);
  const auto b = order.Ask(TurnKind::kTrains, kBegin);
  order.SetGenerates(&kFirst, true);
  order.SetGenerates(&kSecond, true);
  const auto step = order.Ask(TurnKind::kGenerates, kBegin);
  EXPECT_EQ(order.Next(kBegin), b);
  EXPECT_EQ(order.Next(kBegin), step);
  (void)order.Ask(TurnKind::kTrains, kBegin);
  EXPECT_EQ(order.Next(kBegin), std::nullopt);  // the next phase
}

TEST(TurnOrderTest, WhatIsShortGoesBeforeBoth) {
  TurnOrder order;
  order.SetGenerates(&kFirst, true);
  const auto step = order.Ask(TurnKind::kGenerates, kBegin), command = order.Ask(TurnKind::kShort, kBegin);
  EXPECT_EQ(order.Next(kBegin), command);
  EXPECT_EQ(order.Next(kBegin), step);
}

TEST(TurnOrderTest, WhoHasWaitedForLongGoesBeforeAll) {
  TurnOrder order;
  order.SetGenerates(&kFirst, true);
  const auto trains = order.Ask(TurnKind::kTrains, kBegin);
  const TimePoint later = kBegin + TurnOrder::kPatience;
  const auto step = order.Ask(TurnKind::kGenerates, later), command = order.Ask(TurnKind::kShort, later);
  EXPECT_EQ(order.Next(later), trains);
  EXPECT_EQ(order.Next(later), command);
  EXPECT_EQ(order.Next(later), step);
}

}  // namespace
}  // namespace tidepool::workers
