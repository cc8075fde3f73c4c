#include "workers/controller/open_meeting.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;

TEST(OpenMeetingTest, IsForTheMembersOfTheGroupThatIsThereNow) {
  OpenMeeting meeting;
  EXPECT_EQ(meeting.At("1-1", {4}).status().code(), StatusCode::kNotFound);
  meeting.Admit("1-1", {4});
  meeting.Admit("1-1", {5});
  EXPECT_EQ(*meeting.At("1-1", {4}), *meeting.At("1-1", {5}));
  EXPECT_EQ(meeting.At("1-1", {3}).status().code(), StatusCode::kPermissionDenied)
      << "an earlier process of a member's place";
  EXPECT_EQ(meeting.At("1-2", {4}).status().code(), StatusCode::kNotFound);
  meeting.Left({4});
  EXPECT_EQ(meeting.At("1-1", {5}).status().code(), StatusCode::kNotFound);
  meeting.Admit("1-1", {6});  // its command was decided before that
  EXPECT_EQ(meeting.At("1-1", {6}).status().code(), StatusCode::kNotFound) << "nobody can come any more";
  meeting.Admit("1-2", {6});
  EXPECT_TRUE(meeting.At("1-2", {6}).ok());
}

TEST(OpenMeetingTest, WhoWaitsInAGroupThatIsOverHearsSo) {
  OpenMeeting meeting;
  for (const bool lost : {true, false}) {
    const std::string name = lost ? "1-1" : "1-2";
    meeting.Admit(name, {4});
    meeting.Admit(name, {5});
    const auto table = *meeting.At(name, {4});
    EXPECT_TRUE(table->Set("secret", "x").ok());
    std::jthread ends([&] {
      std::this_thread::sleep_for(milliseconds(50));
      if (lost) {
        meeting.Left({7});  // of no group
        meeting.Left({5});
      } else {
        meeting.Admit("1-3", {4});
      }
    });
    const auto got = table->Get({"rank 1"}, milliseconds(20000));
    EXPECT_EQ(got.status().code(), StatusCode::kNotFound);
    EXPECT_NE(got.status().message().find(lost ? "incarnation 5 is gone" : "another one was formed"),
              std::string::npos)
        << got.status().message();
  }
  EXPECT_FALSE((*meeting.At("1-3", {4}))->Get({"secret"}, milliseconds(0)).ok()) << "of the group before";
}

TEST(OpenMeetingTest, EnginesMeetBesideEachOtherAndOneOfThemEndsAlone) {
  EngineMeetings meetings;
  meetings.Admit({1}, "engine-4-5", {4});
  meetings.Admit({3}, "engine-6-7", {6});
  meetings.Admit({1}, "engine-4-5", {5});
  meetings.Admit({3}, "engine-6-7", {7});
  EXPECT_EQ(*meetings.At("engine-4-5", {4}), *meetings.At("engine-4-5", {5}));
  EXPECT_NE(*meetings.At("engine-4-5", {4}), *meetings.At("engine-6-7", {6}));
  EXPECT_EQ(meetings.At("engine-4-5", {6}).status().code(), StatusCode::kPermissionDenied);
  meetings.Left({5});
  EXPECT_EQ(meetings.At("engine-4-5", {4}).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(meetings.At("engine-6-7", {6}).ok());
  meetings.Admit({1}, "engine-8-9", {8});
  EXPECT_TRUE(meetings.At("engine-8-9", {8}).ok());
}

}  // namespace
}  // namespace tidepool::workers
