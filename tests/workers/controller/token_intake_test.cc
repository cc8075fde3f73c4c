#include "workers/controller/token_intake.h"

#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

constexpr SampleId kTid{7, 0, 1};
constexpr WorkerRef kWorker{{2}, {5}};
constexpr SlotId kSlot{2};

struct TokenIntakeTest : testing::Test {
  SampleStore samples;
  std::vector<down::Resend> asked;
  TokenIntake intake{samples,
                     {.expects = [](const SlotRef&, const SampleId&, int32_t) { return true; },
                      .have_row = [](const SampleId&) { return true; },
                      .check = [](const sample::Segment&) { return OkStatus(); },
                      .feed = [](const scheduler::Event&) {},
                      .ask = [this](const WorkerRef&, down::Resend what) { asked.push_back(what); }}};

  void Say(int64_t from, int64_t tokens) {
    up::StepTokens step{.slot = kSlot};
    up::ChunkDelta& delta = step.chunks.emplace_back();
    delta.tid = kTid;
    delta.from = from;
    delta.tokens.ids.assign(static_cast<size_t>(tokens), 1);
    delta.tokens.logprobs.assign(static_cast<size_t>(tokens), -1.0F);
    delta.tokens.versions = {{{0, 1}, tokens}};
    intake.Take(kWorker, step);
  }
  int64_t have() { return samples.Get(kTid, 0).tokens.size(); }
};

// A worker that generates 40 tokens a second while the answer is on its way said all tokens 40 times.
TEST_F(TokenIntakeTest, AsksOnceForEachGap) {
  Say(0, 4);
  for (int64_t from = 8; from < 40; from += 4) Say(from, 4);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].from, 4);
  for (int64_t from = 4; from < 40; from += 4) Say(from, 4);  // the answer
  EXPECT_EQ(have(), 40);
  Say(44, 4);
  Say(48, 4);
  ASSERT_EQ(asked.size(), 2u) << "another gap";
  EXPECT_EQ(asked[1].from, 40);
}

// What the process generates before it has heard the question is behind the same gap.
TEST_F(TokenIntakeTest, WhatWasAdoptedIsAskedForOnce) {
  intake.Adopt(kWorker, {{kSlot, kTid, 0, 20, {0, 1}, {0, 1}}});
  Say(20, 4);
  Say(24, 4);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].from, 0);
  intake.Adopt({{2}, {6}}, {{kSlot, kTid, 0, 20, {0, 1}, {0, 1}}});
  EXPECT_EQ(asked.size(), 2u) << "of another process";
}

}  // namespace
}  // namespace tidepool::workers
