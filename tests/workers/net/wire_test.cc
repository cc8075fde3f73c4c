#include "workers/net/wire.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

#include "core/text/unicode.h"
#include "proto/control.pb.h"
#include "tests/workers/net/random_messages.h"

namespace tidepool::workers {
namespace {

// Every run has inputs of its own; a failure says its seed.
uint64_t FreshSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Two messages are equal if they have the same bytes: the encoding has one form.
template <typename Messages>
v1::Frame Framed(const Messages& messages) {
  v1::Frame frame;
  EXPECT_EQ(Pack(messages, 0, size_t{1} << 30, &frame), messages.size());
  return frame;
}

template <typename Messages>
std::set<size_t> RoundTrip(uint64_t seed, int count) {
  using Message = typename Messages::value_type;
  Rng rng(seed);
  Messages messages(static_cast<size_t>(count));
  std::set<size_t> kinds;
  for (Message& message : messages) {
    RandomFill{rng}.Fill(message);
    if constexpr (requires { message.body; }) kinds.insert(message.body.index());
  }
  const v1::Frame frame = Framed(messages);
  const auto back = Unpack<Message>(frame);
  EXPECT_TRUE(back.ok()) << back.status().ToString();
  if (!back.ok()) return kinds;
  EXPECT_EQ(back->size(), messages.size());
  EXPECT_EQ(Framed(Messages(back->begin(), back->end())).SerializeAsString(), frame.SerializeAsString());
  return kinds;
}

TEST(WireTest, EveryMessageComesBackAsItWas) {
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  EXPECT_EQ(RoundTrip<std::deque<FromWorker>>(seed, 4000).size(), std::variant_size_v<FromWorkerBody>);
  EXPECT_EQ(RoundTrip<std::deque<ToWorker>>(seed, 4000).size(), std::variant_size_v<ToWorkerBody>);
  RoundTrip<std::vector<BatchRow>>(seed, 500);
}

TEST(WireTest, FieldsArriveWhereTheyWerePut) {
  down::StartChunk chunk;
  chunk.slot = {1};
  chunk.tid = {12, 1, 5};
  chunk.version = {2, 17};
  chunk.prompt = {1, 2, 3};
  chunk.generated = {9};
  chunk.environment_token = "secret";
  const auto back = Unpack<ToWorker>(Framed(std::deque<ToWorker>{{5, 4, chunk}}));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->front().seq, 5);
  EXPECT_EQ(back->front().ack, 4);
  const auto& got = std::get<down::StartChunk>(back->front().body);
  EXPECT_EQ(got.slot, chunk.slot);
  EXPECT_EQ(got.tid, chunk.tid);
  EXPECT_EQ(got.version, chunk.version);
  EXPECT_EQ(got.prompt, chunk.prompt);
  EXPECT_EQ(got.generated, chunk.generated);
  EXPECT_EQ(got.environment_token, "secret");
}

// Bytes of anybody: a message, or an error, and never more work than the bytes are worth.
template <typename Message>
void Fuzz(Rng& rng) {
  std::deque<Message> one(1);
  RandomFill{rng}.Fill(one.front());
  v1::Frame frame = Framed(one);
  std::string& bytes = *frame.mutable_messages(0);
  for (int64_t n = 1 + rng.Below(4); n > 0 && !bytes.empty(); --n) {
    const auto at = static_cast<size_t>(rng.Below(static_cast<int64_t>(bytes.size())));
    switch (rng.Below(4)) {
      case 0:
        bytes[at] = static_cast<char>(rng.Next());
        break;
      case 1:
        bytes.resize(at);
        break;
      case 2:
        bytes.insert(at, std::string(static_cast<size_t>(1 + rng.Below(8)), static_cast<char>(rng.Next())));
        break;
      case 3:  // a wild count
        for (size_t i = at; i < bytes.size() && i < at + 4; ++i) bytes[i] = static_cast<char>(0xff);
        break;
    }
  }
  const auto back = Unpack<Message>(frame);
  if (!back.ok()) {
    EXPECT_EQ(back.status().code(), StatusCode::kInvalidArgument);
    return;
  }
  const v1::Frame again = Framed(std::deque<Message>(back->begin(), back->end()));
  const auto same = Unpack<Message>(again);
  ASSERT_TRUE(same.ok()) << "what was taken could not be said";
  EXPECT_EQ(Framed(std::deque<Message>(same->begin(), same->end())).SerializeAsString(),
            again.SerializeAsString());
}

TEST(WireTest, DamagedBytesAreAnErrorOrAMessage) {
  const uint64_t seed = FreshSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  for (int i = 0; i < 20000; ++i) {
    Fuzz<FromWorker>(rng);
    Fuzz<ToWorker>(rng);
    if (HasFailure()) return;
  }
}

TEST(WireTest, WhatIsBehindTheFieldsOrOfAnotherBuildIsRefused) {
  v1::Frame frame = Framed(std::deque<ToWorker>{{1, 0, down::Admit{.v = {0, 1}}}});
  frame.mutable_messages(0)->push_back('x');
  EXPECT_EQ(Unpack<ToWorker>(frame).status().code(), StatusCode::kInvalidArgument);
  frame.set_schema(WireSchema() + 1);
  const Status other = Unpack<ToWorker>(frame).status();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("use one build for both"), std::string::npos);
}

TEST(WireTest, WordsAreCutAndListsAreBoundedWhoeverSentThem) {
  std::string words = "a";
  while (words.size() < 100'000) words += "\xe4\xbd\xa0";
  const auto cut = Unpack<FromWorker>(Framed(std::deque<FromWorker>{{1, 0, up::FinalSaved{words}}}));
  ASSERT_TRUE(cut.ok());
  const std::string& got = std::get<up::FinalSaved>(cut->front().body).error;
  EXPECT_LE(got.size(), kWords);
  EXPECT_GT(got.size(), kWords - 50);
  EXPECT_NE(got.find("more bytes)"), std::string::npos);
  EXPECT_EQ(text::FindInvalidUtf8(got), std::string::npos) << "cut inside a character";

  up::Offer offer;
  offer.chunks.resize(up::kOfferedChunks + 1);
  const auto refused = Unpack<FromWorker>(Framed(std::deque<FromWorker>{{1, 0, offer}}));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("chunks"), std::string::npos) << refused.status().message();
}

TEST(WireTest, AFrameHoldsWhatFitsAndAtLeastOne) {
  std::deque<ToWorker> batch;
  for (int i = 0; i < 5; ++i) {
    down::StartChunk chunk;
    chunk.prompt.assign(i == 1 ? 10000 : 1000, (1 << 26) + i);  // of four bytes
    batch.push_back({i + 1, 0, std::move(chunk)});
  }
  std::vector<size_t> ends;
  for (size_t at = 0; at < batch.size();) {
    v1::Frame frame;
    at = Pack(batch, at, 9000, &frame);
    ends.push_back(at);
  }
  EXPECT_EQ(ends, (std::vector<size_t>{1, 2, 4, 5}));
}

TEST(WireTest, WhatIsLargerThanAFrameIsCutAndComesWhole) {
  std::deque<ToWorker> batch;
  for (const size_t tokens : {10, 30000, 1, 400000, 2, 3}) {
    down::StartChunk chunk;
    chunk.prompt.assign(tokens, static_cast<int32_t>(tokens));
    batch.push_back({static_cast<int64_t>(batch.size()) + 1, 0, std::move(chunk)});
  }
  FrameReader reader;
  std::vector<ToWorker> back;
  EXPECT_TRUE(WriteFrames(batch, kFrameBytes, [&](v1::Frame frame) {
    EXPECT_LT(frame.ByteSizeLong(), size_t{512} << 10) << "no end may be set to take less";
    auto more = reader.Take<ToWorker>(frame);
    EXPECT_TRUE(more.ok()) << more.status().ToString();
    back.insert(back.end(), more->begin(), more->end());
    return true;
  }));
  EXPECT_FALSE(reader.within());
  ASSERT_EQ(back.size(), batch.size());
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_EQ(back[i].seq, batch[i].seq);
    EXPECT_EQ(std::get<down::StartChunk>(back[i].body).prompt,
              std::get<down::StartChunk>(batch[i].body).prompt);
  }
  // A part that belongs to nothing, and a message without an end.
  v1::Frame two = Framed(std::deque<ToWorker>(2));
  two.set_cut(true);
  EXPECT_EQ(reader.Take<ToWorker>(two).status().code(), StatusCode::kInvalidArgument);
  v1::Frame endless;
  endless.set_cut(true);
  endless.add_messages(std::string(1 << 20, 'x'));
  FrameReader patient;
  Status end;
  for (int i = 0; i < 100 && end.ok(); ++i) end = patient.Take<ToWorker>(endless).status();
  EXPECT_EQ(end.code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tidepool::workers
