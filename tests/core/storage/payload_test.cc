#include "core/storage/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "tests/core/base/memory_file_system.h"
#include "tests/core/sample/random_trajectory.h"

namespace tidepool::storage {
namespace {

using sample::RandomTrajectory;
using sample::Trajectory;
using testing::HasSubstr;

TEST(PayloadTest, PayloadsComeBackFromAnyFile) {
  MemoryFileSystem fs;
  Rng rng(1);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1", /*file_bytes=*/3000);
  ASSERT_TRUE(writer.ok());
  std::vector<std::pair<PayloadRef, Trajectory>> stored;
  for (int i = 0; i < 100; ++i) {
    const Trajectory payload = RandomTrajectory(rng, i);
    const auto ref = (*writer)->Append(payload);
    ASSERT_TRUE(ref.ok()) << ref.status().ToString();
    stored.emplace_back(*ref, payload);
  }
  ASSERT_TRUE((*writer)->Sync().ok());
  EXPECT_GT(stored.back().first.file, 3);
  PayloadReader reader(fs, "payload");
  for (const auto& [ref, payload] : stored) {
    const auto back = reader.Read(ref);
    ASSERT_TRUE(back.ok()) << back.status().ToString();
    EXPECT_EQ(*back, payload);
  }
}

TEST(PayloadTest, LengthsHaveToAgree) {
  MemoryFileSystem fs;
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  Trajectory bad{.tid = {1, 0, 2}, .att = 0};
  bad.segments = {{.ids = {1, 2, 3}, .logprobs = {-0.5F}}};
  const auto refused = (*writer)->Append(bad);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("sample 1.0.2: segment: 3 tokens"));
}

// A record that says something else than the bytes that it names: the place of a shorter record that was
// written over the sample's, under its name.
TEST(PayloadTest, WhatAnEnqNamesHasItsSampleAttemptAndLengths) {
  MemoryFileSystem fs;
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  Trajectory t{.tid = {4, 0, 1}, .att = 1, .prompt = sample::PromptSegment({1, 2, 3})};
  t.segments = {{.ids = {5, 6, 7, 8}, .logprobs = {-1, -1, -1, -1}, .versions = {{{0, 2}, 4}}}};
  const PayloadRef ref = *(*writer)->Append(t);
  record::Enq enq{t.tid, 1, {0, 2}, {0, 2}, 3, 4, ref.digest, ref.file, ref.offset, ref.bytes};
  PayloadReader reader(fs, "payload");
  ASSERT_TRUE(reader.Read(enq).ok()) << reader.Read(enq).status().ToString();

  t.segments[0] = {.ids = {5, 6}, .logprobs = {-1, -1}, .versions = {{{0, 2}, 2}}};
  const PayloadRef shorter = *(*writer)->Append(t);
  record::Enq other = enq;
  other.payload_offset = shorter.offset, other.payload_bytes = shorter.bytes;
  EXPECT_EQ(reader.Read(other).status().code(), StatusCode::kDataLoss) << "by its digest";
  other.digest = shorter.digest;
  EXPECT_THAT(reader.Read(other).status().message(), HasSubstr("(3 + 4 tokens by its ENQ)"));
  other = enq;
  other.tid.sample = 2;
  EXPECT_EQ(reader.Read(other).status().code(), StatusCode::kDataLoss);
  other = enq;
  other.att = 0;
  EXPECT_EQ(reader.Read(other).status().code(), StatusCode::kDataLoss);
}

TEST(PayloadTest, DamageAndMissingFilesAreFound) {
  MemoryFileSystem fs;
  Rng rng(2);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  const Trajectory payload = RandomTrajectory(rng, 1);
  const PayloadRef ref = *(*writer)->Append(payload);
  PayloadReader reader(fs, "payload");
  for (int64_t i = 0; i < ref.bytes; ++i) {
    fs.FlipByte("payload/0000.tpp", ref.offset + i, 4);
    const auto damaged = reader.Read(ref);
    EXPECT_EQ(damaged.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(damaged.status().message(), HasSubstr("payload/0000.tpp: offset"));
    fs.FlipByte("payload/0000.tpp", ref.offset + i, 4);
  }
  PayloadRef beyond = ref;
  beyond.bytes += 1000;
  EXPECT_EQ(reader.Read(beyond).status().code(), StatusCode::kDataLoss);
  beyond.file = 5;
  EXPECT_EQ(reader.Read(beyond).status().code(), StatusCode::kNotFound);
}

TEST(PayloadTest, EachLifeBeginsItsOwnFileAndSyncedOnesSurvive) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    MemoryFileSystem fs(MemoryFaults{.seed = seed});
    Rng rng(seed);
    std::vector<std::pair<PayloadRef, Trajectory>> durable;
    for (int life = 0; life < 3; ++life) {
      auto writer = PayloadWriter::Open(fs, "payload", "run-1", 800);
      ASSERT_TRUE(writer.ok());
      for (int i = 0; i < 6; ++i) {
        const Trajectory payload = RandomTrajectory(rng, i);
        durable.emplace_back(*(*writer)->Append(payload), payload);
      }
      ASSERT_TRUE((*writer)->Sync().ok());
      ASSERT_TRUE((*writer)->Append(RandomTrajectory(rng, 99)).ok());  // not synced: may be lost
      fs.Crash();
    }
    PayloadReader reader(fs, "payload");
    for (const auto& [ref, payload] : durable) {
      const auto back = reader.Read(ref);
      ASSERT_TRUE(back.ok()) << "seed " << seed << ": " << back.status().ToString();
      EXPECT_EQ(*back, payload);
    }
  }
}

TEST(PayloadTest, FullDiskWritesNothingAndMayBeTriedAgain) {
  MemoryFileSystem fs(MemoryFaults{.capacity_bytes = 600});
  Rng rng(4);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  std::vector<PayloadRef> refs;
  Status status;
  while (status.ok()) {
    auto ref = (*writer)->Append(RandomTrajectory(rng, 1));
    status = ref.status();
    if (ref.ok()) refs.push_back(*ref);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  fs.SetFaults({.capacity_bytes = 100000});
  const Trajectory payload = RandomTrajectory(rng, 2);
  const auto ref = (*writer)->Append(payload);
  ASSERT_TRUE(ref.ok());
  EXPECT_TRUE((*writer)->Sync().ok());
  PayloadReader reader(fs, "payload");
  EXPECT_EQ(*reader.Read(*ref), payload);
  for (const PayloadRef& earlier : refs) EXPECT_TRUE(reader.Read(earlier).ok());
}

TEST(PayloadTest, OldFilesGoWholeAndTheNewestStays) {
  MemoryFileSystem fs;
  Rng rng(5);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1", 100);
  for (int i = 0; i < 5; ++i)
    ASSERT_TRUE((*writer)
                    ->Append(Trajectory{.tid = {i, 0, 0},
                                        .prompt = sample::PromptSegment({1, 2, 3, 4, 5, 6, 7, 8, 9, 10})})
                    .ok());
  EXPECT_EQ(*DeletePayloadFilesBelow(fs, "payload", {{0, 2}}, 0), 2);
  EXPECT_THAT(*fs.List("payload"), testing::Not(testing::Contains("0001.tpp")));
  EXPECT_TRUE(fs.Exists("payload/0002.tpp"));
  EXPECT_TRUE(DeletePayloadFilesBelow(fs, "payload", {{0, 1000}}, 0).ok());
  EXPECT_EQ(fs.List("payload")->size(), 1U) << "numbers are not given out again";
}

TEST(PayloadTest, EachWriterHasFilesOfItsOwnAndLosesThoseThatNobodyNeeds) {
  MemoryFileSystem fs;
  const int64_t mine = FirstFileOf(Incarnation{3}), gone = FirstFileOf(Incarnation{2});
  for (const int64_t first : {kControllerFiles, mine, gone, mine}) {
    auto writer = PayloadWriter::Open(fs, "payload", "run-1", 50, first);
    for (int i = 0; i < 2; ++i) {
      const auto ref =
          (*writer)->Append(Trajectory{.tid = {i, 0, 0}, .prompt = sample::PromptSegment({1, 2, 3})});
      EXPECT_EQ(WriterOf(ref->file), WriterOf(first));
    }
  }
  FirstFiles needed;
  AddFile(needed, 1);
  AddFile(needed, mine + 3);
  AddFile(needed, mine + 1);
  EXPECT_EQ(*FirstPayloadFiles(fs, "payload"),
            (FirstFiles{{0, 0}, {WriterOf(mine), mine}, {WriterOf(gone), gone}}));
  EXPECT_EQ(*DeletePayloadFilesBelow(fs, "payload", needed, WriterOf(gone) - 1), 1 + 1);
  EXPECT_EQ(*DeletePayloadFilesBelow(fs, "payload", needed, WriterOf(mine)), 2);
  EXPECT_EQ(*FirstPayloadFiles(fs, "payload"), (FirstFiles{{0, 1}, {WriterOf(mine), mine + 1}}));
}

TEST(PayloadTest, ANumberThatTheJournalNamesIsNotGivenOutAgainWhenItsFileIsGone) {
  MemoryFileSystem fs;
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  (*writer)->After(4);
  (*writer)->After(2);
  EXPECT_EQ((*writer)->Append(Trajectory{.tid = {1, 0, 0}})->file, 5);
}

}  // namespace
}  // namespace tidepool::storage
