#include "workers/controller/worker_places.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

struct SilentWire : Attachments::Wire {
  std::map<ConnectionId, down::Refuse> refused;
  void Send(ConnectionId, ToWorker) override {}
  void Refuse(ConnectionId c, down::Refuse why) override { refused[c] = std::move(why); }
  void Close(ConnectionId, const std::string&) override {}
};

struct WorkerPlacesTest : testing::Test {
  SilentWire wire;
  Attachments attachments{
      {.ctl_epoch = 1, .device_places = 1, .side_places = 0, .lost_after = FromSeconds(5)}, &wire};
  std::vector<scheduler::Event> fed;
  WorkerPlaces places{
      attachments,
      {.feed = [this](scheduler::Event e) { fed.push_back(std::move(e)); }, .left = [](int64_t) {}}};
  void Greet(int64_t pid) {
    up::Hello hello;
    hello.process = static_cast<uint64_t>(pid);
    hello.pid = pid;
    hello.place = 0;
    attachments.On(HubOpened{pid, hello, ""}, {});
  }
};

// The child was refused because somebody's own process was there first; that one has not said its offer yet.
TEST_F(WorkerPlacesTest, TheEndOfAChildIsNotTheEndOfAnotherProcessInItsPlace) {
  Greet(/*pid=*/70);
  places.Ended(0, /*pid=*/80, "exit status 3");
  EXPECT_TRUE(wire.refused.empty()) << wire.refused.begin()->second.why;
  ASSERT_EQ(fed.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<scheduler::event::WorkerStartFailed>(fed[0]));
}

TEST_F(WorkerPlacesTest, AChildThatEndsBeforeItHasJoinedIsFenced) {
  Greet(/*pid=*/80);
  places.Ended(0, /*pid=*/80, "exit status 3");
  EXPECT_TRUE(wire.refused.contains(80));
  EXPECT_EQ(fed.size(), 1u);
}

TEST_F(WorkerPlacesTest, ThePlugInThatAProcessReportedIsBlamedForItsLossWhateverItsWordsAre) {
  const std::string words = "exit status 3: while it ran reward innocent (innocent.cc) on sample 0.0.0";
  for (const std::string& blames : {"reward mine (mine.cc)", ""}) {
    fed.clear();
    Greet(/*pid=*/80);
    auto arrived = attachments.On(HubMessage{80, FromWorker{1, 0, up::Offer{.last = true}}}, {});
    ASSERT_EQ(arrived.size(), 1u);
    places.Arrived(std::get<Attachments::Arrived>(arrived[0]), "it");
    places.Ended(0, /*pid=*/80, words, blames);
    ASSERT_EQ(fed.size(), 2u);
    const auto& lost = std::get<scheduler::event::WorkerLost>(fed[1]);
    EXPECT_TRUE(lost.by_exit);
    EXPECT_EQ(lost.why, words);
    EXPECT_EQ(lost.blames, blames);
    EXPECT_FALSE(lost.for_good);
  }
}

TEST_F(WorkerPlacesTest, ThatAnotherProcessWouldEndSoAgainIsPassedOn) {
  Greet(/*pid=*/80);
  places.Ended(0, /*pid=*/80, "exit status 2", "", /*for_good=*/true);
  ASSERT_EQ(fed.size(), 1u);
  EXPECT_TRUE(std::get<scheduler::event::WorkerStartFailed>(fed[0]).for_good);
}

// Another process would be refused as long as this one is there, and count as one that died early.
TEST_F(WorkerPlacesTest, NobodyIsStartedForAPlaceWhoseProcessHasNotEndedItsOffer) {
  Greet(/*pid=*/70);
  places.Start({{0}, {}}, {});
  EXPECT_TRUE(places.TakeDue(TimePoint{FromSeconds(1)}).empty());
  attachments.Fence(0, "it hangs");
  EXPECT_EQ(places.TakeDue(TimePoint{FromSeconds(2)}), std::vector<int64_t>{0});
  places.Start({{0}, {}}, TimePoint{FromSeconds(3)});
  Greet(/*pid=*/71);
  auto arrived = attachments.On(HubMessage{71, FromWorker{1, 0, up::Offer{.last = true}}}, {});
  ASSERT_EQ(arrived.size(), 1u);
  places.Arrived(std::get<Attachments::Arrived>(arrived[0]), "it");
  attachments.Fence(0, "it has ended");
  EXPECT_TRUE(places.TakeDue(TimePoint{FromSeconds(4)}).empty()) << "it had come after all";
}

}  // namespace
}  // namespace tidepool::workers
