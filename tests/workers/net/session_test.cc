#include "workers/net/session.h"

#include <gtest/gtest.h>

#include <map>

#include "workers/controller/loop_clock.h"
#include "workers/net/attachments.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {
namespace {

const Status kCut = Unavailable("cut");

TEST(SessionTest, ANewConnectionGoesOnBehindWhatWasTaken) {
  Session<ToWorker> session;
  for (int i = 1; i <= 4; ++i) session.Put(ToWorker{0, 0, down::ForgetGroup{.gid = {i}}});
  ASSERT_TRUE(session.Connected(0));
  EXPECT_EQ(session.TakeUnsent().size(), 4u);
  EXPECT_TRUE(session.TakeUnsent().empty());
  session.Acked(1);
  ASSERT_TRUE(
      session.Connected(2));  // taken, but its effect is not durable yet: 2 is kept and not said again
  const auto again = session.TakeUnsent();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[0].seq, 3);
  EXPECT_EQ(session.unacknowledged(), 3u);
  EXPECT_FALSE(session.Connected(0)) << "it said that it had taken 1";
  EXPECT_FALSE(session.Connected(5)) << "5 was never sent";
}

TEST(SessionTest, TakesEachMessageOnceAndInOrder) {
  Session<ToWorker> session;
  using Verdict = Session<ToWorker>::Verdict;
  EXPECT_EQ(session.Take(1), Verdict::kNew);
  EXPECT_EQ(session.Take(1), Verdict::kOld);
  EXPECT_EQ(session.Take(3), Verdict::kGap);
  EXPECT_EQ(session.Take(2), Verdict::kNew);
  EXPECT_EQ(session.durable(), 0) << "only who makes effects durable may say so";
}

TEST(WorkerSessionTest, RefusesAnEarlierControllerAndForgetsWhatWasOfIt) {
  WorkerSession session(7, FromSeconds(1));
  session.Send(up::FinalSaved{});  // to nobody
  ASSERT_TRUE(session.Receive({0, 0, down::Attached{4, 0}}, {}).ok());
  EXPECT_TRUE(session.TakeUnsent().empty());
  session.Begin(4);
  session.Send(up::FinalSaved{"of 4"});
  EXPECT_EQ(session.TakeUnsent().size(), 1u);
  Rng rng(1);
  ASSERT_TRUE(session.Disconnected(kCut, {}, rng).has_value());
  EXPECT_EQ(session.Receive({0, 0, down::Attached{3, 0}}, {}).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(session.Receive({0, 0, down::Attached{5, 0}}, {}).ok());
  session.Send(up::FinalSaved{"still of 4"});  // the worker has not begun epoch 5
  session.Begin(5);
  EXPECT_TRUE(session.TakeUnsent().empty());
}

TEST(WorkerSessionTest, DialsWithGrowingPausesAndGivesUpInTime) {
  WorkerSession session(7, FromSeconds(30));
  Rng rng(1);
  TimePoint now;
  Duration longest{0};
  int dials = 0;
  // A controller that answers and hangs up at once gives no new patience.
  for (; dials < 1000; ++dials) {
    const auto pause = session.Disconnected(kCut, now, rng);
    if (!pause) break;
    longest = std::max(longest, *pause);
    now = now + *pause;
    ASSERT_TRUE(session.Receive({0, 0, down::Attached{1, 0}}, now).ok());
  }
  EXPECT_LE(Seconds(longest), 2);
  EXPECT_GE(Seconds(longest), 1);
  EXPECT_GE(Seconds(now.since_start), 30);
  EXPECT_LE(Seconds(now.since_start), 32);
  EXPECT_LT(dials, 45);
}

// A controller that answers, has a command to say and hangs up at once: the pauses grow nevertheless.
TEST(WorkerSessionTest, OnlyAConnectionThatLastedMakesThePausesShortAgain) {
  WorkerSession session(7, FromSeconds(30));
  session.SetPermit(1.5, 30);
  Rng rng(1);
  TimePoint now;
  int64_t command = 0;
  const auto connect = [&](double lasts) {
    ASSERT_TRUE(session.Receive({0, 0, down::Attached{1, 0}}, now).ok());
    ASSERT_TRUE(session.Receive({++command, 0, down::ForgetGroup{.gid = {1}}}, now).ok());
    now = now + FromSeconds(lasts);
  };
  int dials = 0;
  while (now.since_start < FromSeconds(10)) {
    connect(0.02);
    const auto pause = session.Disconnected(kCut, now, rng);
    ASSERT_TRUE(pause.has_value()) << "it heard the controller";
    now = now + *pause;
    ++dials;
  }
  EXPECT_LT(dials, 14);
  connect(1.6);
  EXPECT_LE(Seconds(*session.Disconnected(kCut, now, rng)), 0.05);
}

TEST(WorkerSessionTest, ARefusalThatIsNotForGoodIsAskedAgain) {
  WorkerSession session(7, FromSeconds(30));
  Rng rng(1);
  const Status taken = session.Receive({0, 0, down::Refuse{"taken", /*again=*/true}}, {}).status();
  EXPECT_TRUE(session.Disconnected(taken, {}, rng).has_value());
  const Status fenced = session.Receive({0, 0, down::Refuse{"fenced"}}, {}).status();
  EXPECT_FALSE(session.Disconnected(fenced, {}, rng).has_value());
  for (const Status& refused : {PermissionDenied("role"), Unauthenticated("token"), FailedPrecondition("run"),
                                InvalidArgument("no Hello")}) {
    EXPECT_FALSE(session.Disconnected(refused, {}, rng).has_value()) << refused.ToString();
  }
  // Its controller died, and that of another run listens at the same port. Its own may come back elsewhere.
  ASSERT_TRUE(session.Receive({0, 0, down::Attached{1, 0}}, {}).ok());
  EXPECT_TRUE(session.Disconnected(Unauthenticated("token"), {}, rng).has_value());
  EXPECT_FALSE(session.Disconnected(Unauthenticated("token"), TimePoint{FromSeconds(31)}, rng).has_value());
}

TEST(WorkerSessionTest, RenewalsKeepEveryLeaseThatAJobMayHave) {
  for (const double heartbeat_s : {0.01, 0.05, 0.1, 0.2, 0.5, 5.0, 3600.0}) {
    const double permit_s = 3 * heartbeat_s;
    WorkerSession session(7, FromSeconds(30));
    session.SetPermit(permit_s, 30);
    TimePoint now;
    ASSERT_TRUE(session.Receive({0, 0, down::Attached{1, 0}}, now).ok());
    for (int i = 0; i < 20; ++i) {  // every second renewal is late by a whole turn
      now = now + FromSeconds(RenewalSeconds(permit_s) * (i % 2 == 0 ? 2 : 1));
      EXPECT_FALSE(session.Silent(now)) << heartbeat_s;
      EXPECT_TRUE(session.MayServe(now)) << heartbeat_s;
      ASSERT_TRUE(session.Receive({0, 0, down::PermitRenewal{}}, now).ok());
    }
    now = now + FromSeconds(std::max(1.01 * permit_s, 0.3));
    EXPECT_TRUE(session.Silent(now)) << heartbeat_s;
    EXPECT_FALSE(session.MayServe(now)) << heartbeat_s;
    (void)session.Greet({}, now);
    EXPECT_FALSE(session.Silent(now)) << "the new connection has its time";
    EXPECT_FALSE(session.MayServe(now)) << "to dial is not to hear";
  }
}

TEST(WorkerSessionTest, MakesNoMoreThanTheControllerStores) {
  WorkerSession session(7, FromSeconds(30));
  ASSERT_TRUE(session.Receive({0, 0, down::Attached{1, 0}}, {}).ok());
  session.Begin(1);
  for (size_t i = 0; i < WorkerSession::kMostKept; ++i) {
    EXPECT_TRUE(session.MayServe({}));
    session.Send(up::StepTokens{});
  }
  EXPECT_FALSE(session.MayServe({}));
  ASSERT_TRUE(session.Receive({0, /*ack=*/1, down::PermitRenewal{}}, {}).ok());
  EXPECT_TRUE(session.MayServe({}));
}

struct RecordingWire : Attachments::Wire {
  std::map<ConnectionId, std::vector<ToWorker>> sent;
  std::map<ConnectionId, down::Refuse> refused;
  std::map<ConnectionId, std::string> closed;
  void Send(ConnectionId c, ToWorker m) override { sent[c].push_back(std::move(m)); }
  void Refuse(ConnectionId c, down::Refuse why) override { refused[c] = std::move(why); }
  void Close(ConnectionId c, const std::string& why) override { closed[c] = why; }
};

struct AttachmentsTest : testing::Test {
  RecordingWire wire;
  Attachments attachments{{.ctl_epoch = 4,
                           .device_places = 2,
                           .side_places = 1,
                           .lost_after = FromSeconds(5),
                           .offer_within = FromSeconds(20)},
                          &wire};
  static up::Hello Hello(uint64_t process, int64_t place, int64_t ctl_epoch = 0, int64_t received = 0) {
    up::Hello hello;
    hello.process = process;
    hello.place = place;
    hello.ctl_epoch = ctl_epoch;
    hello.received = received;
    return hello;
  }
  std::vector<Attachments::Event> Open(ConnectionId c, up::Hello hello, double at = 0) {
    return attachments.On(HubOpened{c, std::move(hello), ""}, TimePoint{FromSeconds(at)});
  }
  std::vector<Attachments::Event> Say(ConnectionId c, int64_t seq, FromWorkerBody body, double at = 0) {
    return attachments.On(HubMessage{c, FromWorker{seq, 0, std::move(body)}}, TimePoint{FromSeconds(at)});
  }
  void Welcome(ConnectionId c, uint64_t process) {
    Open(c, Hello(process, 0));
    ASSERT_EQ(Say(c, 1, up::Offer{.last = true}).size(), 1u);
    ASSERT_TRUE(attachments.Welcome(0, process, down::Welcome{.inc = {3}}));
  }
};

TEST_F(AttachmentsTest, AnOfferInSeveralFramesIsOneEvent) {
  Open(1, Hello(9, 0, /*ctl_epoch=*/3));
  up::Offer first{.slots = {{{0}, {0, 8}, 5, {}, 0}}, .chunks = {{{0}, {1, 0, 0}, 0, 10, {}, {}}}};
  EXPECT_TRUE(Say(1, 1, first).empty());
  const auto events =
      Say(1, 2, up::Offer{.slots = {}, .chunks = {{{0}, {2, 0, 0}, 0, 20, {}, {}}}, .last = true});
  ASSERT_EQ(events.size(), 1u);
  const auto& arrived = std::get<Attachments::Arrived>(events[0]);
  ASSERT_EQ(arrived.offer.slots.size(), 1u);
  EXPECT_EQ(arrived.offer.slots[0].holds, (Version{0, 8}));
  ASSERT_EQ(arrived.offer.chunks.size(), 2u);
  EXPECT_EQ(arrived.offer.chunks[1].tokens, 20);
}

// The new connection comes before the end of the old one is seen; nobody is told of anything.
TEST_F(AttachmentsTest, ALaterConnectionOfTheProcessTakesTheSessionOver) {
  Welcome(1, 9);
  attachments.Send(0, down::ForgetGroup{.gid = {1}});
  ASSERT_EQ(wire.sent[1].size(), 3u);  // Attached, Welcome, ForgetGroup
  EXPECT_TRUE(Open(2, Hello(9, 0, 4, /*received=*/1)).empty());
  EXPECT_TRUE(wire.closed.contains(1));
  ASSERT_EQ(wire.sent[2].size(), 2u);
  EXPECT_EQ(std::get<down::Attached>(wire.sent[2][0].body).received, 1);
  EXPECT_EQ(wire.sent[2][1].seq, 2);
  EXPECT_TRUE(Say(1, 2, up::FinalSaved{}).empty()) << "said over the old connection";
  EXPECT_TRUE(attachments.On(HubClosed{1, "end"}, {}).empty());
  EXPECT_EQ(Say(2, 2, up::FinalSaved{}).size(), 1u);
  EXPECT_TRUE(Say(2, 2, up::FinalSaved{}).empty()) << "a second time";
  EXPECT_TRUE(attachments.Tick(TimePoint{FromSeconds(4)}).empty());
}

TEST_F(AttachmentsTest, AcknowledgesOnlyWhatIsDurable) {
  Welcome(1, 9);
  Attachments::Snapshot snapshot;
  attachments.Taken(snapshot);
  Say(1, 2, up::FinalSaved{});
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].back().ack, 0);
  attachments.Acknowledge(snapshot);
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].back().ack, 1) << "the offer, not what was said after the batch was formed";
}

TEST_F(AttachmentsTest, RenewsThePermitOfWhoWasToldNothingElse) {
  Welcome(1, 9);
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].size(), 2u) << "Attached and Welcome were said since";
  attachments.Renew();
  ASSERT_EQ(wire.sent[1].size(), 3u);
  EXPECT_TRUE(std::holds_alternative<down::PermitRenewal>(wire.sent[1].back().body));
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].size(), 3u) << "the renewal was";
  attachments.Send(0, down::ForgetGroup{.gid = {1}});
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].size(), 4u);
  attachments.Renew();
  EXPECT_EQ(wire.sent[1].size(), 5u);
  // A permit may be long, and a worker stops at kMostKept results that are not acknowledged.
  for (int64_t i = 2; i < 2 + Attachments::kMostUntold; ++i) Say(1, i, up::FinalSaved{});
  Attachments::Snapshot snapshot;
  attachments.Taken(snapshot);
  attachments.Acknowledge(snapshot);
  ASSERT_EQ(wire.sent[1].size(), 6u);
  EXPECT_EQ(wire.sent[1].back().ack, 1 + Attachments::kMostUntold);
  attachments.Acknowledge(snapshot);
  EXPECT_EQ(wire.sent[1].size(), 6u);
}

TEST_F(AttachmentsTest, RefusesTheFencedTheStrangerAndItsOwnPast) {
  Welcome(1, 9);
  Open(2, Hello(10, 0));
  ASSERT_TRUE(wire.refused.contains(2)) << "another process in its place";
  EXPECT_TRUE(wire.refused[2].again);
  EXPECT_TRUE(attachments.Fence(0, "too slow"));
  EXPECT_TRUE(wire.refused.contains(1));
  Open(3, Hello(9, 0, 4));
  ASSERT_TRUE(wire.refused.contains(3)) << "a fenced process came again";
  EXPECT_FALSE(wire.refused[3].again);
  const auto events = Open(4, Hello(11, 1, /*ctl_epoch=*/5));
  EXPECT_TRUE(wire.refused.contains(4));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<Attachments::Superseded>(events[0]).ctl_epoch, 5);
  up::Hello grader = Hello(12, 2, /*ctl_epoch=*/1000);
  grader.kind = scheduler::WorkerKind::kReward;
  EXPECT_TRUE(Open(5, grader).empty()) << "a grader's word ends no controller";
  EXPECT_TRUE(wire.refused.contains(5));
}

// Workers that are started by hand, or by a supervisor: the next one need not wait until the last is given
// up.
TEST_F(AttachmentsTest, ANewProcessTakesThePlaceOfOneWhoseConnectionHasEnded) {
  Welcome(1, 9);
  attachments.On(HubClosed{1, "killed"}, TimePoint{FromSeconds(1)});
  const auto events = Open(2, Hello(10, 0), 1.1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<Attachments::Lost>(events[0]).inc, Incarnation{3});
  ASSERT_EQ(wire.sent[2].size(), 1u);
  EXPECT_TRUE(std::holds_alternative<down::Attached>(wire.sent[2][0].body));
  Open(3, Hello(9, 0, 4), 1.2);  // it lived after all
  ASSERT_TRUE(wire.refused.contains(3));
  EXPECT_FALSE(wire.refused[3].again);
  EXPECT_EQ(Say(2, 1, up::Offer{.last = true}).size(), 1u) << "the new one is not touched";
}

// The scheduler's answer waits for the disk; meanwhile the process ends and another one has its place.
TEST_F(AttachmentsTest, AnAnswerIsForTheProcessThatArrived) {
  Open(1, Hello(9, 0));
  ASSERT_EQ(Say(1, 1, up::Offer{.last = true}).size(), 1u);
  attachments.On(HubClosed{1, "killed"}, TimePoint{FromSeconds(1)});
  const auto events = Open(2, Hello(10, 0), 1.1);
  ASSERT_EQ(events.size(), 1u) << "who was told of its arrival is told of its end";
  EXPECT_FALSE(std::get<Attachments::Lost>(events[0]).inc.valid());
  EXPECT_FALSE(attachments.Welcome(0, 9, down::Welcome{.inc = {3}}));
  EXPECT_FALSE(attachments.Refuse(0, 9, "retired"));
  EXPECT_TRUE(wire.refused.empty());
  EXPECT_EQ(wire.sent[2].size(), 1u) << "Attached alone";
  EXPECT_EQ(Say(2, 1, up::Offer{.last = true}).size(), 1u);
  EXPECT_TRUE(attachments.Welcome(0, 10, down::Welcome{.inc = {4}}));
}

TEST_F(AttachmentsTest, AWorkerThatTakesNoCommandsIsLostBeforeTheyFillTheMemory) {
  Welcome(1, 9);
  for (size_t i = 0; i < Attachments::kMostKept; ++i) attachments.Send(0, down::ForgetGroup{.gid = {1}});
  ASSERT_EQ(wire.sent[1].size(), 1 + Attachments::kMostKept) << "Welcome is one of them";
  const auto events = attachments.Tick({});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<Attachments::Lost>(events[0]));
  EXPECT_TRUE(wire.closed.contains(1));
}

TEST_F(AttachmentsTest, TheControllersOwnAbsenceIsNotTheSilenceOfItsWorkers) {
  LoopClock clock;
  const auto start = LoopClock::Source::time_point{};
  clock.Start(start);
  Welcome(1, 9);
  using std::chrono::seconds;
  EXPECT_TRUE(attachments.Tick(clock.At(start + seconds(1))).empty());
  EXPECT_TRUE(attachments.Tick(clock.At(start + seconds(600))).empty()) << "it was stopped";
  EXPECT_TRUE(wire.closed.empty());
  EXPECT_EQ(clock.TakeAbsence(), seconds(599));
  EXPECT_EQ(clock.TakeAbsence(), seconds(0)) << "it is told once";
  TimePoint now;
  for (int s = 1; s <= 6; ++s) now = clock.At(start + seconds(600 + s));
  EXPECT_EQ(Seconds(now.since_start), 7);
  EXPECT_EQ(clock.present(), seconds(6)) << "a disk cannot have hung for longer";
  attachments.Tick(now);
  EXPECT_TRUE(wire.closed.contains(1)) << "and that is silence";
}

TEST(SuspendWatchTest, TellsOnceHowLongTheMachineSlept) {
  using std::chrono::milliseconds, std::chrono::seconds;
  SuspendWatch watch;
  EXPECT_EQ(watch.At(seconds(5000), seconds(1000)), seconds(0)) << "it slept before the run began";
  EXPECT_EQ(watch.At(seconds(5010), seconds(1010)), seconds(0)) << "nothing but ten seconds went by";
  EXPECT_EQ(watch.At(seconds(8610), seconds(1010)), seconds(3600));
  EXPECT_EQ(watch.At(seconds(8611), seconds(1011)), seconds(0)) << "it is told once";
  EXPECT_EQ(watch.At(seconds(8612) + milliseconds(400), seconds(1012)), seconds(0)) << "hardly";
}

// It hangs while it reads what it holds. Nobody was told of it, and its place is free for another process.
TEST_F(AttachmentsTest, AProcessThatDoesNotEndItsOfferIsRefused) {
  Open(1, Hello(9, 0), 1);
  Say(1, 1, up::Offer{.last = false}, 2);
  EXPECT_TRUE(attachments.Tick(TimePoint{FromSeconds(4)}).empty());
  Open(2, Hello(9, 0, /*ctl_epoch=*/4, /*received=*/0), 9);  // a new connection gives it no new time
  Say(2, 0, up::Heartbeat{}, 20);
  Open(3, Hello(10, 0), 20.5);
  ASSERT_TRUE(wire.refused.contains(3));
  EXPECT_TRUE(wire.refused[3].again);
  EXPECT_FALSE(wire.refused.contains(2));
  EXPECT_TRUE(attachments.Tick(TimePoint{FromSeconds(21)}).empty());
  ASSERT_TRUE(wire.refused.contains(2));
  EXPECT_FALSE(wire.refused[2].again);
  Open(4, Hello(10, 0), 21.5);
  EXPECT_EQ(Say(4, 1, up::Offer{.last = true}, 21.6).size(), 1u);
  EXPECT_TRUE(attachments.Tick(TimePoint{FromSeconds(22)}).empty());
}

TEST_F(AttachmentsTest, APartOfALargeMessageIsASignOfLife) {
  Welcome(1, 9);
  attachments.On(HubPart{1}, TimePoint{FromSeconds(4)});
  attachments.Tick(TimePoint{FromSeconds(8)});
  EXPECT_TRUE(wire.closed.empty());
  attachments.Tick(TimePoint{FromSeconds(9.5)});
  EXPECT_TRUE(wire.closed.contains(1));
}

TEST_F(AttachmentsTest, AWorkerIsLostWhenItDoesNotDialAgain) {
  Welcome(1, 9);
  attachments.On(HubClosed{1, "cut"}, TimePoint{FromSeconds(2)});
  EXPECT_TRUE(attachments.Tick(TimePoint{FromSeconds(6)}).empty());
  const auto events = attachments.Tick(TimePoint{FromSeconds(7)});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(std::get<Attachments::Lost>(events[0]).inc, Incarnation{3});
}

}  // namespace
}  // namespace tidepool::workers
