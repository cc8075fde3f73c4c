#include "core/comm/rendezvous_table.h"

#include <gtest/gtest.h>

#include <thread>

namespace tidepool::comm {
namespace {

using std::chrono::milliseconds;

TEST(RendezvousTableTest, WhoWaitsIsToldWhenAllIsThere) {
  RendezvousTable table;
  std::jthread other([&] {
    EXPECT_TRUE(table.Set("a", "1").ok());
    EXPECT_TRUE(table.Set("b", std::string("\0x", 2)).ok());
  });
  const auto both = table.Get({"b", "a"}, milliseconds(20000));
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(*both, (std::vector<std::string>{std::string("\0x", 2), "1"}));
}

TEST(RendezvousTableTest, NobodyWaitsLongerThanItsPatience) {
  RendezvousTable table;
  const auto got = table.Get({"a"}, milliseconds(30));
  EXPECT_EQ(got.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(got.status().message().find("'a' is not there after 30 ms"), std::string::npos);
}

TEST(RendezvousTableTest, NumbersAreAddedUp) {
  RendezvousTable table;
  EXPECT_EQ(*table.Add("n", 3), 3);
  EXPECT_EQ(*table.Add("n", -5), -2);
  EXPECT_EQ(table.Get({"n"}, milliseconds(0))->front(), "-2");
  EXPECT_TRUE(table.Set("t", "text").ok());
  EXPECT_EQ(table.Add("t", 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(table.Set("m", std::to_string(INT64_MAX)).ok());
  EXPECT_EQ(table.Add("m", 1).status().code(), StatusCode::kInvalidArgument);
}

TEST(RendezvousTableTest, WhatIsTooMuchIsRefused) {
  RendezvousTable table;
  EXPECT_EQ(table.Set("", "x").code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table.Set(std::string(RendezvousTable::kMostKeyBytes + 1, 'k'), "").code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(table.Set("k", std::string(RendezvousTable::kMostValueBytes + 1, 'v')).code(),
            StatusCode::kResourceExhausted);
  const std::string large(RendezvousTable::kMostValueBytes, 'v');
  Status last;
  int taken = 0;
  for (; taken < 100 && last.ok(); ++taken) last = table.Set("k" + std::to_string(taken), large);
  EXPECT_EQ(last.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(taken, 64);                        // 63 and their names, and the one that was refused
  EXPECT_TRUE(table.Set("k0", "small").ok());  // what was there counts no more
  EXPECT_TRUE(table.Set("again", large.substr(1000)).ok());
}

TEST(RendezvousTableTest, AGroupThatIsOverKeepsNothing) {
  RendezvousTable table;
  EXPECT_TRUE(table.Set("a", "1").ok());
  table.Close("rank 1 is gone");
  for (const Status& said :
       {table.Set("a", "1"), table.Get({"a"}, milliseconds(0)).status(), table.Add("n", 1).status()}) {
    EXPECT_EQ(said.code(), StatusCode::kNotFound);
    EXPECT_EQ(said.message(), "the training group is over: rank 1 is gone");
  }
}

}  // namespace
}  // namespace tidepool::comm
