// Turns of an environment worker: those without room wait beside the others, and what nobody plays any more
// is known.

#include "workers/side/turn_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNow{0};

down::EnvStep Step(int64_t ordinal, int32_t att = 0) { return {.tid = {ordinal, 0, 0}, .att = att}; }

class TurnQueueTest : public testing::Test {
 protected:
  TurnQueue::Turn Next(milliseconds patience = kNow) {
    auto turn = turns_.Take(patience);
    EXPECT_TRUE(turn.has_value());
    return turn ? *std::move(turn) : TurnQueue::Turn{};
  }
  TurnQueue turns_;
};

TEST_F(TurnQueueTest, ATurnWithoutRoomLetsOthersPassAndIsFirstWhenAGameEnds) {
  for (int64_t i = 1; i <= 3; ++i) turns_.Put(Step(i));
  TurnQueue::Turn first = Next();
  EXPECT_EQ(first.step.tid.ordinal, 1);
  EXPECT_FALSE(first.had_no_room());
  turns_.NoRoom(std::move(first));
  const TurnQueue::Turn second = Next();
  EXPECT_EQ(second.step.tid.ordinal, 2);
  EXPECT_TRUE(turns_.Done(second, /*freed=*/true));
  const TurnQueue::Turn again = Next();
  EXPECT_EQ(again.step.tid.ordinal, 1);
  EXPECT_TRUE(again.had_no_room());
  EXPECT_EQ(Next().step.tid.ordinal, 3);
  EXPECT_FALSE(turns_.Take(kNow).has_value());
}

TEST_F(TurnQueueTest, ATurnWithoutRoomIsTriedAgainThoughNoGameEndsHere) {
  turns_.Put(Step(1));
  for (int i = 0; i < 3; ++i) turns_.NoRoom(Next(milliseconds(10000)));
  EXPECT_FALSE(turns_.Take(kNow).has_value());
}

TEST_F(TurnQueueTest, WhatNobodyPlaysAnyMoreIsTakenAndNotWanted) {
  turns_.Put(Step(1));
  turns_.Put(Step(2));
  const TurnQueue::Turn in_play = Next();
  turns_.End({1, 0, 0}, 0);
  turns_.End({2, 0, 0}, 0);
  turns_.Put(Step(2));     // of its reward
  turns_.Put(Step(1, 1));  // another attempt
  const TurnQueue::Turn waited = Next();
  EXPECT_FALSE(waited.wanted);
  EXPECT_FALSE(turns_.Done(waited, false));
  EXPECT_TRUE(Next().wanted);
  EXPECT_TRUE(Next().wanted);
  EXPECT_FALSE(turns_.Done(in_play, false)) << "its end came while it was played";
}

TEST_F(TurnQueueTest, AnEndReachesATurnThatWaitsForRoomAtOnce) {
  turns_.Put(Step(1));
  for (int i = 0; i < 4; ++i) turns_.NoRoom(Next(milliseconds(10000)));
  turns_.End({1, 0, 0}, 0);
  const auto turn = turns_.Take(kNow);
  ASSERT_TRUE(turn.has_value());
  EXPECT_FALSE(turn->wanted);
}

}  // namespace
}  // namespace tidepool::workers
