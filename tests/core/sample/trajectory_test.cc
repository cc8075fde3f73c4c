#include "core/sample/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace tidepool::sample {
namespace {

using testing::ElementsAre;

TEST(TrajectoryTest, VersionRunsJoin) {
  std::vector<VersionRun> runs;
  AddVersion(runs, {0, 1}, 3);
  AddVersion(runs, {0, 1}, 2);
  AddVersion(runs, {0, 2}, 0);
  AddVersion(runs, {1, 1}, 1);
  EXPECT_THAT(runs, ElementsAre(VersionRun{{0, 1}, 5}, VersionRun{{1, 1}, 1}));
}

// Two turns of the policy with an observation between them; the second one was sampled by two versions.
Trajectory Episode() {
  Trajectory t;
  t.prompt = PromptSegment({1, 2, 3});
  t.Append({.ids = {10}, .logprobs = {-1}, .versions = {{{0, 1}, 1}}, .routing = "ab"});
  t.Append({.ids = {11}, .logprobs = {-2}, .versions = {{{0, 1}, 1}}});
  t.segments.front().turn = TurnStart{5, 0};
  t.Append({.kind = SegmentKind::kObservation, .ids = {20, 21}});
  t.Append({.turn = TurnStart{6, 0.5}});
  t.Append(
      {.ids = {12}, .logprobs = {-3}, .log_kept = {-0.1F}, .versions = {{{0, 1}, 1}}, .routing = "cdef"});
  t.Append({.ids = {13}, .logprobs = {-4}, .versions = {{{0, 2}, 1}}});
  return t;
}

TEST(TrajectoryTest, ColumnsOfThePathAreThoseOfItsSegmentsInARow) {
  const Trajectory t = Episode();
  ASSERT_EQ(t.segments.size(), 3U) << "tokens of one turn are one segment";
  EXPECT_EQ(t.size(), 6);
  EXPECT_THAT(t.Ids(), ElementsAre(10, 11, 20, 21, 12, 13));
  EXPECT_THAT(t.Logprobs(), ElementsAre(-1, -2, 0, 0, -3, -4));
  EXPECT_THAT(t.LogKept(), ElementsAre(0, 0, 0, 0, -0.1F, 0));
  EXPECT_EQ(t.Routing(), "abcdef");
  EXPECT_THAT(t.Versions(), ElementsAre(VersionRun{{0, 1}, 5}, VersionRun{{0, 2}, 1}));
  EXPECT_THAT(t.VersionsWithLoss(), ElementsAre(VersionRun{{0, 1}, 3}, VersionRun{{0, 2}, 1}));
  EXPECT_THAT(t.Turns(), ElementsAre(TurnMark{0, 5, 0}, TurnMark{4, 6, 0.5}));
}

TEST(TrajectoryTest, LossFollowsTheKindOfASegmentAndTheVersionsThatAreLeftOut) {
  const Trajectory t = Episode();
  EXPECT_THAT(t.LossMask(), ElementsAre(1, 1, 0, 0, 1, 1));
  EXPECT_THAT(t.LossMask(std::vector<Version>{{0, 1}}), ElementsAre(0, 0, 0, 0, 0, 1));
  Trajectory fragment;
  fragment.Append(
      {.kind = SegmentKind::kFragment, .versions = {{{0, 3}, 8}}, .fragment = "x", .fragment_steps = 8});
  EXPECT_EQ(fragment.size(), 8);
  EXPECT_THAT(fragment.LossMask(), ElementsAre(1));
  EXPECT_THAT(fragment.LossMask(std::vector<Version>{{0, 3}}), ElementsAre(0));
}

TEST(TrajectoryTest, TaughtTextIsCutWhereTheMaskChanges) {
  Trajectory t;
  t.segments = TaughtSegments({1, 2, 3, 4}, {1, 0, 0, 1});
  EXPECT_THAT(t.Ids(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(t.LossMask(), ElementsAre(1, 0, 0, 1));
  t.segments = TaughtSegments({1, 2}, {});
  EXPECT_THAT(t.LossMask(), ElementsAre(1, 1));
}

TEST(SegmentTest, RefusesWhatCannotHaveBeenSampled) {
  Segment good{.ids = {1, 2}, .logprobs = {-0.5F, 0.0F}, .versions = {{{0, 1}, 2}}};
  EXPECT_TRUE(good.CheckSampled(10).ok());
  EXPECT_FALSE(good.CheckSampled(2).ok()) << "an id outside the vocabulary";
  Segment positive = good;
  positive.logprobs[1] = 0.5F;
  EXPECT_FALSE(positive.CheckSampled(10).ok());
  Segment nan = good;
  nan.logprobs[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(nan.CheckSampled(10).ok());
  Segment short_versions = good;
  short_versions.versions[0].second = 1;
  EXPECT_FALSE(short_versions.CheckSampled(10).ok());
  Segment no_logprobs = good;
  no_logprobs.logprobs.clear();
  EXPECT_FALSE(no_logprobs.CheckSampled(10).ok());
}

}  // namespace
}  // namespace tidepool::sample
