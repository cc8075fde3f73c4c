#include "core/storage/payload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Payload RandomPayload(Rng& rng, int64_t ordinal) {
  Payload payload{.tid = {ordinal, 0, static_cast<int32_t>(rng.Below(8))},
                  .att = static_cast<int32_t>(rng.Below(3))};
  for (int64_t n = rng.Below(20); n > 0; --n)
    payload.prompt.push_back(static_cast<int32_t>(rng.Below(50000)));
  for (int64_t n = rng.Below(40); n > 0; --n) {
    payload.response.push_back(static_cast<int32_t>(rng.Below(50000)));
    payload.logprobs.push_back(static_cast<float>(rng.Normal()));
    payload.log_kept.push_back(static_cast<float>(rng.Normal()));
    AddVersion(payload.versions, Version{0, ordinal + rng.Below(2)}, 1);
  }
  for (size_t i = 0; i < payload.response.size() && payload.tid.sample % 2 == 0; ++i)
    payload.loss_mask.push_back(rng.Chance(0.5) ? 1 : 0);
  if (rng.Chance(0.3)) payload.log_kept.clear();
  if (rng.Chance(0.2)) payload.logprobs.clear(), payload.versions.clear();
  if (rng.Chance(0.3)) {
    for (size_t n = 6 * payload.response.size(); n > 0; --n)
      payload.routing.push_back(static_cast<char>(rng.Next()));
  }
  if (rng.Chance(0.3)) {
    for (int64_t n = 1 + rng.Below(4); n > 0; --n)
      payload.turns.push_back({.begin = rng.Below(40), .state = rng.Next(), .reward_before = rng.Normal()});
  }
  payload.finish = static_cast<FinishReason>(rng.Below(3));
  return payload;
}

TEST(PayloadTest, PayloadsComeBackFromAnyFile) {
  MemoryFileSystem fs;
  Rng rng(1);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1", /*file_bytes=*/3000);
  ASSERT_TRUE(writer.ok());
  std::vector<std::pair<PayloadRef, Payload>> stored;
  for (int i = 0; i < 100; ++i) {
    const Payload payload = RandomPayload(rng, i);
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
  const auto bad = (*writer)->Append({.tid = {1, 0, 2}, .response = {1, 2, 3}, .logprobs = {-0.5F}});
  EXPECT_EQ(bad.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.status().message(), HasSubstr("sample 1.0.2: the response has 3 tokens"));
  EXPECT_FALSE((*writer)->Append({.response = {1, 2}, .versions = {{{0, 1}, 1}}}).ok());
}

TEST(PayloadTest, DamageAndMissingFilesAreFound) {
  MemoryFileSystem fs;
  Rng rng(2);
  auto writer = PayloadWriter::Open(fs, "payload", "run-1");
  const Payload payload = RandomPayload(rng, 1);
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

TEST(PayloadTest, DecoderRefusesDamagedBytesWithoutCrashing) {
  Rng rng(3);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = *EncodePayload(RandomPayload(rng, i));
    if (rng.Chance(0.5)) bytes.resize(static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size()))));
    for (int k = 0; k < 3 && !bytes.empty(); ++k) {
      bytes[static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size())))] =
          static_cast<char>(rng.Next());
    }
    (void)DecodePayload(bytes);  // any answer
  }
}

TEST(PayloadTest, EachLifeBeginsItsOwnFileAndSyncedOnesSurvive) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    MemoryFileSystem fs(MemoryFaults{.seed = seed});
    Rng rng(seed);
    std::vector<std::pair<PayloadRef, Payload>> durable;
    for (int life = 0; life < 3; ++life) {
      auto writer = PayloadWriter::Open(fs, "payload", "run-1", 800);
      ASSERT_TRUE(writer.ok());
      for (int i = 0; i < 6; ++i) {
        const Payload payload = RandomPayload(rng, i);
        durable.emplace_back(*(*writer)->Append(payload), payload);
      }
      ASSERT_TRUE((*writer)->Sync().ok());
      ASSERT_TRUE((*writer)->Append(RandomPayload(rng, 99)).ok());  // not synced: may be lost
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
    auto ref = (*writer)->Append(RandomPayload(rng, 1));
    status = ref.status();
    if (ref.ok()) refs.push_back(*ref);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  fs.SetFaults({.capacity_bytes = 100000});
  const Payload payload = RandomPayload(rng, 2);
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
  for (int i = 0; i < 5; ++i) ASSERT_TRUE((*writer)->Append({.response = {1, 2, 3}}).ok());
  EXPECT_EQ(*DeletePayloadFilesBelow(fs, "payload", 2), 2);
  EXPECT_THAT(*fs.List("payload"), testing::Not(testing::Contains("0001.tpp")));
  EXPECT_TRUE(fs.Exists("payload/0002.tpp"));
  EXPECT_TRUE(DeletePayloadFilesBelow(fs, "payload", 1000).ok());
  EXPECT_EQ(fs.List("payload")->size(), 1U) << "numbers are not given out again";
}

TEST(PayloadTest, VersionRunsJoin) {
  std::vector<VersionRun> runs;
  AddVersion(runs, {0, 1}, 3);
  AddVersion(runs, {0, 1}, 2);
  AddVersion(runs, {0, 2}, 0);
  AddVersion(runs, {1, 1}, 1);
  EXPECT_THAT(runs, ElementsAre(VersionRun{{0, 1}, 5}, VersionRun{{1, 1}, 1}));
}

}  // namespace
}  // namespace tidepool::storage
