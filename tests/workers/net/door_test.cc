#include "workers/net/door.h"

#include <gtest/gtest.h>

#include "proto/control.pb.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

struct DoorTest : testing::Test, Door::Streams {
  Door door{/*max_queued=*/3, this};
  std::vector<ConnectionId> woken;
  std::map<ConnectionId, double> ends;  // in so many seconds
  void Wake(ConnectionId id) override { woken.push_back(id); }
  void End(ConnectionId id, Duration after) override { ends[id] = Seconds(after); }

  static v1::Frame Framed(std::deque<FromWorker> messages) {
    v1::Frame frame;
    Pack(messages, 0, kFrameBytes, &frame);
    return frame;
  }
  static v1::Frame Hello(scheduler::WorkerKind kind, const std::string& run = "run") {
    return Framed({{0, 0, up::Hello{.run_id = run, .kind = kind}}});
  }
  static ToWorker Numbered(int64_t seq) { return {seq, 0, down::ForgetGroup{.gid = {seq}}}; }
};

TEST_F(DoorTest, LetsInWhoSaysHelloToThisRunWithTheTokenOfItsKind) {
  using scheduler::WorkerKind;
  EXPECT_TRUE(Door::Greeting("run", CallerRole::kReward, Hello(WorkerKind::kReward)).ok());
  const auto code = [](CallerRole role, const v1::Frame& first) {
    return Door::Greeting("run", role, first).status().code();
  };
  EXPECT_EQ(code(CallerRole::kReward, Hello(WorkerKind::kDevice)), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(CallerRole::kEnvironment, Hello(WorkerKind::kDevice)), StatusCode::kPermissionDenied);
  EXPECT_EQ(code(CallerRole::kDevice, Hello(WorkerKind::kDevice, "other")), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(CallerRole::kDevice, Framed({{1, 0, up::FinalSaved{}}})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(CallerRole::kDevice, Framed({{0, 0, up::Hello{.run_id = "run"}}, {1, 0, up::FinalSaved{}}})),
            StatusCode::kInvalidArgument);
}

TEST_F(DoorTest, HearsNothingOfAFrameInWhichAWorkerSaysWhatItMayNot) {
  const std::vector<FromWorker> frame = {{0, 0, up::Heartbeat{}}, {1, 0, up::Graded{}}};
  EXPECT_TRUE(Door::Heard(CallerRole::kReward, frame).ok());
  EXPECT_TRUE(Door::Heard(CallerRole::kEnvironment, frame).ok()) << "of a fragment";
  EXPECT_EQ(Door::Heard(CallerRole::kDevice, frame).code(), StatusCode::kPermissionDenied);
  for (const CallerRole role : {CallerRole::kDevice, CallerRole::kReward})
    EXPECT_EQ(Door::Heard(role, std::vector<FromWorker>{{1, 0, up::EnvStepped{}}}).code(),
              StatusCode::kPermissionDenied)
        << Name(role);
  EXPECT_FALSE(Door::Heard(CallerRole::kDevice, std::vector<FromWorker>{{0, 0, up::Hello{}}}).ok())
      << "a second one";
}

// The writer of a stream is woken, and before it looks, more is announced.
TEST_F(DoorTest, WhatWasSentBeforeAHoldLeavesAtItsEnd) {
  const ConnectionId a = door.Open();
  door.Send(a, Numbered(1));
  door.Hold();
  EXPECT_FALSE(door.HasUnsent(a));
  woken.clear();
  door.Release();
  EXPECT_EQ(woken, std::vector<ConnectionId>{a});
}

TEST_F(DoorTest, WhatIsHeldLeavesTogetherAndARefusalDoesNotWait) {
  const ConnectionId a = door.Open(), b = door.Open();
  door.Hold();
  door.Hold();
  door.Send(a, Numbered(1));
  door.Send(b, Numbered(1));
  door.Refuse(b, {"no place"});
  door.Release();
  EXPECT_EQ(woken, std::vector<ConnectionId>{b});
  EXPECT_FALSE(door.HasUnsent(a));
  door.Release();
  EXPECT_EQ(door.TakeUnsent(a).size(), 1u);
  door.Send(b, Numbered(2));
  const auto last = door.TakeUnsent(b);
  ASSERT_EQ(last.size(), 2u) << "and nothing behind it";
  EXPECT_TRUE(std::holds_alternative<down::Refuse>(last.back().body));
  EXPECT_EQ(ends[b], Seconds(Door::kRefusalDeadline));
  EXPECT_EQ(door.Closed(b, "cancelled"), "no place");
}

TEST_F(DoorTest, AReaderThatDoesNotReadIsClosedAndForgotten) {
  const ConnectionId id = door.Open();
  for (int64_t seq = 1; seq <= 3; ++seq) door.Send(id, Numbered(seq));
  EXPECT_FALSE(ends.contains(id));
  door.Send(id, Numbered(4));
  EXPECT_EQ(ends.at(id), 0);
  EXPECT_FALSE(door.HasUnsent(id)) << "it would never go";
  EXPECT_EQ(door.Closed(id, "cancelled"), "the worker does not read its commands");
  door.Send(id, Numbered(5));
  EXPECT_NE(door.Open(), id);
}

}  // namespace
}  // namespace tidepool::workers
