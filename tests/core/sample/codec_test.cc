// One encoding of trajectories, for wire and disk.

#include "core/sample/codec.h"

#include <gtest/gtest.h>

#include <set>

#include "core/base/hash.h"
#include "tests/core/sample/random_trajectory.h"

namespace tidepool::sample {
namespace {

TEST(TrajectoryCodecTest, EveryTrajectoryComesBackAndItsDigestIsThatOfItsBytes) {
  Rng rng(1);
  for (int i = 0; i < 500; ++i) {
    const Trajectory t = RandomTrajectory(rng, i);
    const auto bytes = Encode(t);
    ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
    const auto back = Decode(*bytes);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, t);
    EXPECT_EQ(Digest(*back), Hash64(*bytes));
    for (const Segment& s : t.segments) EXPECT_EQ(*DecodeSegment(Encode(s)), s);
  }
}

TEST(TrajectoryCodecTest, AnOutlineHasTheShapeAndNoneOfTheContent) {
  Rng rng(7);
  for (int64_t i = 0; i < 500; ++i) {
    const Trajectory whole = RandomTrajectory(rng, i), outline = whole.Outline();
    EXPECT_FALSE(whole.is_outline());
    EXPECT_TRUE(outline.is_outline());
    EXPECT_EQ(outline.size(), whole.size());
    EXPECT_EQ(outline.prompt_size(), whole.prompt_size());
    EXPECT_EQ(outline.Versions(), whole.Versions());
    EXPECT_EQ(outline.VersionsWithLoss(), whole.VersionsWithLoss());
    EXPECT_EQ(outline.LossMask(), whole.LossMask());
    EXPECT_EQ(outline.Turns().size(), whole.Turns().size());
    EXPECT_TRUE(outline.Ids().empty() && outline.Logprobs().empty() && outline.Routing().empty());
    EXPECT_EQ(outline.Outline(), outline);
    const auto bytes = Encode(outline);
    ASSERT_TRUE(bytes.ok()) << bytes.status().message();
    EXPECT_EQ(*Decode(*bytes), outline);
    EXPECT_NE(Digest(outline), Digest(whole));
    Trajectory torn = outline;
    torn.segments.push_back({.kind = SegmentKind::kTokens, .ids = {1}});
    EXPECT_FALSE(Encode(torn).ok()) << "an outline in part";
  }
  EXPECT_FALSE((Segment{.ids = {1}, .outlined = 1}.CheckShape().ok()));
  EXPECT_FALSE((Segment{.versions = {{{0, 1}, 2}}, .outlined = 1}.CheckShape().ok()));
  EXPECT_FALSE((Segment{.versions = {{{0, 1}, 2}}, .outlined = 2}.CheckSampled(9).ok()))
      << "no engine says it";
}

TEST(TrajectoryCodecTest, TheDigestKnowsEveryColumn) {
  Trajectory t;
  t.tid = {3, 0, 1};
  t.att = 0;
  t.prompt = PromptSegment({1, 2});
  Segment s{.ids = {5, 6}, .logprobs = {-1, -2}, .log_kept = {0, -0.5F}, .versions = {{{0, 4}, 2}}};
  s.routing = "ab";
  s.turn = TurnStart{7, 0.5};
  t.segments = {s, {.kind = SegmentKind::kObservation, .ids = {8}}};
  std::set<uint64_t> digests = {Digest(t)};
  const auto changed = [&](auto change) {
    Trajectory other = t;
    change(other);
    return digests.insert(Digest(other)).second;
  };
  EXPECT_TRUE(changed([](Trajectory& x) { x.tid.sample = 2; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.att = 1; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.finish = Finish::kLength; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.prompt = PromptSegment({1}); }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].ids[1] = 7; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].logprobs[0] = -1.5F; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].log_kept[0] = -1.5F; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].versions = {{{1, 4}, 2}}; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].routing = "ac"; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].turn->reward_before = 1; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[0].turn.reset(); }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments[1].kind = SegmentKind::kTokens; }));
  EXPECT_TRUE(changed([](Trajectory& x) { x.segments.pop_back(); }));
}

TEST(TrajectoryCodecTest, BytesThatAreTakenEncodeToThemselves) {
  Rng rng(3);
  int64_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = *Encode(RandomTrajectory(rng, i % 50));
    for (int64_t n = rng.Below(3); n > 0; --n)
      bytes[static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size())))] =
          static_cast<char>(rng.Next());
    if (rng.Chance(0.2)) bytes.resize(static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size()))));
    const auto back = Decode(bytes);
    if (!back.ok()) {
      EXPECT_EQ(back.status().code(), StatusCode::kDataLoss);
      continue;
    }
    ++taken;
    EXPECT_EQ(*Encode(*back), bytes);
  }
  EXPECT_GT(taken, 5000);
}

TEST(TrajectoryCodecTest, CountsThatCannotBeAreRefusedBeforeTheyAreAllocated) {
  std::string bytes = *Encode(Trajectory{.tid = {1, 0, 0}, .att = 0});
  ASSERT_TRUE(Decode(bytes).ok());
  bytes.back() = static_cast<char>(0xFF);  // number of ids of the prompt
  bytes += std::string(7, static_cast<char>(0xFF)) + '\x01';
  EXPECT_FALSE(Decode(bytes).ok());
  EXPECT_FALSE(DecodeSegment(std::string("\x01\x01\x00\x80\x00", 5)).ok())
      << "a number in more bytes than it needs";
  EXPECT_FALSE(Decode("").ok());
}

TEST(TrajectoryCodecTest, ShapesThatDoNotAgreeAreNotEncoded) {
  Trajectory t;
  t.segments = {{.ids = {1, 2}, .logprobs = {-1}}};
  EXPECT_EQ(Encode(t).status().code(), StatusCode::kInvalidArgument);
  t.segments = {{.ids = {1, 2}, .versions = {{{0, 1}, 3}}}};
  EXPECT_EQ(Encode(t).status().code(), StatusCode::kInvalidArgument);
  t.segments = {{.kind = SegmentKind::kObservation, .ids = {1}, .logprobs = {-1}}};
  EXPECT_EQ(Encode(t).status().code(), StatusCode::kInvalidArgument);
  t.segments = {{.kind = SegmentKind::kPrompt, .ids = {1}}};
  EXPECT_EQ(Encode(t).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::sample
