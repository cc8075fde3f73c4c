#include "core/storage/token_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/base/rng.h"
#include "core/storage/payload.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::HasSubstr;
constexpr const char* kDir = "tokens";

sample::Segment Sampled(Rng& rng, int64_t n) {
  sample::Segment s;
  for (int64_t i = 0; i < n; ++i) {
    s.ids.push_back(static_cast<int32_t>(rng.Below(1000)));
    s.logprobs.push_back(-static_cast<float>(rng.Uniform()));
  }
  s.versions = {{{0, rng.Below(3)}, n}};
  return s;
}

// Attempts of several samples, a few tokens at a time, by two processes that take them over from each other.
TEST(TokenLogTest, AnAttemptIsReadBackFromAllFilesThatItsTokensLieIn) {
  MemoryFileSystem fs;
  Rng rng(3);
  std::vector<std::unique_ptr<TokenLogWriter>> writers;
  for (const int64_t inc : {4, 7})
    writers.push_back(
        *TokenLogWriter::Open(fs, kDir, "run", FirstFileOf(Incarnation{inc}), /*file_bytes=*/2000));
  struct Attempt {
    sample::Trajectory made;
    TokenPlace newest;
    std::set<int64_t> files;
  };
  std::map<std::pair<int64_t, int32_t>, Attempt> attempts;
  for (int round = 0; round < 200; ++round) {
    std::vector<LoggedTokens> entries;
    std::vector<Attempt*> of;
    for (int64_t sample = 0; sample < 3; ++sample) {
      const auto att = static_cast<int32_t>(rng.Below(2));
      Attempt& a = attempts[{sample, att}];
      if (a.made.size() > 100) continue;
      const sample::Segment made = Sampled(rng, 1 + rng.Below(5));
      entries.push_back({{sample, 0, 0}, att, a.made.size(), a.newest, made});
      a.made.Append(made);
      of.push_back(&a);
    }
    if (entries.empty()) break;
    const auto places = writers[static_cast<size_t>(rng.Below(2))]->Append(entries);
    ASSERT_TRUE(places.ok()) << places.status().ToString();
    for (size_t i = 0; i < of.size(); ++i) {
      of[i]->newest = (*places)[i];
      of[i]->files.insert((*places)[i].file);
    }
  }
  std::set<int64_t> writers_seen;
  for (const auto& [key, a] : attempts) {
    const auto chain = ReadTokenChain(fs, kDir, {key.first, 0, 0}, key.second, a.newest);
    ASSERT_TRUE(chain.ok()) << chain.status().ToString();
    EXPECT_EQ(chain->segments, a.made.segments);
    EXPECT_EQ(chain->files, a.files);
    EXPECT_GT(a.files.size(), 2U);
    for (const int64_t file : a.files) writers_seen.insert(WriterOf(file));
    // Another attempt's place is none of this one.
    EXPECT_EQ(ReadTokenChain(fs, kDir, {key.first, 0, 0}, key.second + 2, a.newest).status().code(),
              StatusCode::kDataLoss);
  }
  EXPECT_EQ(writers_seen, (std::set<int64_t>{5, 8}));
}

TEST(TokenLogTest, DamageIsFoundAndNamed) {
  MemoryFileSystem fs;
  Rng rng(4);
  auto writer = *TokenLogWriter::Open(fs, kDir, "run", FirstFileOf(Incarnation{0}));
  const auto first = (*writer->Append({{{1, 0, 0}, 0, 0, {}, Sampled(rng, 5000)}}))[0];
  const auto second = (*writer->Append({{{1, 0, 0}, 0, 5000, first, Sampled(rng, 3)}}))[0];
  const auto read = [&](const TokenPlace& at) { return ReadTokenChain(fs, kDir, {1, 0, 0}, 0, at).status(); };
  ASSERT_TRUE(read(second).ok());
  EXPECT_EQ(read({first.file, first.offset + 1}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(read({first.file, 1 << 30}).code(), StatusCode::kDataLoss);
  EXPECT_EQ(read({first.file + 1, 0}).code(), StatusCode::kNotFound);
  EXPECT_EQ(read({}).code(), StatusCode::kDataLoss);
  const std::string path = std::string(kDir) + "/" + (*fs.List(kDir))[0];
  const std::string whole = *fs.ReadFile(path);
  for (int i = 0; i < 200; ++i) {
    std::string bytes = whole;
    const auto at =
        static_cast<size_t>(first.offset + rng.Below(static_cast<int64_t>(bytes.size()) - first.offset));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << rng.Below(8)));
    ASSERT_TRUE(fs.WriteFile(path, bytes).ok());
    EXPECT_EQ(read(second).code(), StatusCode::kDataLoss) << at;
  }
  ASSERT_TRUE(fs.WriteFile(path, whole.substr(0, whole.size() - 1)).ok());
  EXPECT_THAT(read(second).message(), HasSubstr("ends within the tokens there"));
}

TEST(TokenLogTest, WhatIsBehindAKnownEntryIsReadAlone) {
  MemoryFileSystem fs;
  Rng rng(7);
  const SampleId tid{1, 0, 0};
  auto engine = *TokenLogWriter::Open(fs, kDir, "run", FirstFileOf(Incarnation{0}));
  auto environment = *TokenLogWriter::Open(fs, kDir, "run", FirstFileOf(Incarnation{1}));
  const auto said = (*engine->Append({{tid, 0, 0, {}, Sampled(rng, 10)}}))[0];
  const sample::Segment answer{.kind = sample::SegmentKind::kObservation, .ids = {4, 5, 6}};
  const auto heard = (*environment->Append({{tid, 0, 10, said, answer}}))[0];
  const auto all = ReadTokenChain(fs, kDir, tid, 0, heard);
  ASSERT_TRUE(all.ok()) << all.status().ToString();
  EXPECT_EQ(all->segments.size(), 2u);
  const auto behind = ReadTokenChain(fs, kDir, tid, 0, heard, said);
  ASSERT_TRUE(behind.ok()) << behind.status().ToString();
  EXPECT_EQ(behind->segments, std::vector{answer});
  EXPECT_EQ(behind->files, std::set<int64_t>{heard.file});
  // A place that is not of this attempt's chain is never met: then it is read from its beginning.
  EXPECT_EQ(ReadTokenChain(fs, kDir, tid, 0, heard, {said.file, said.offset + 1})->segments, all->segments);
}

TEST(TokenLogTest, FilesThatNobodyGoesOnWithAreDeleted) {
  MemoryFileSystem fs;
  Rng rng(5);
  EXPECT_TRUE(DeleteTokenFiles(fs, kDir, {}, {}, 100).ok()) << "there is no folder";
  const int64_t mine = FirstFileOf(Incarnation{3}), gone = FirstFileOf(Incarnation{2});
  for (const int64_t first : {mine, gone}) {
    auto writer = *TokenLogWriter::Open(fs, kDir, "run", first, /*file_bytes=*/1);
    for (int64_t i = 0; i < 3; ++i)
      ASSERT_TRUE(writer->Append({{{i, 0, 0}, 0, 0, {}, Sampled(rng, 2)}}).ok());
  }
  ASSERT_TRUE(MakeTokenProof(fs, {kDir}).ok());
  ASSERT_TRUE(DeleteTokenFiles(fs, kDir, {gone + 1}, {{WriterOf(mine), mine + 2}}, WriterOf(mine)).ok());
  EXPECT_THAT(*fs.List(kDir), testing::UnorderedElementsAre("proof", std::to_string(gone + 1) + ".tpt",
                                                            std::to_string(mine + 2) + ".tpt"));
}

TEST(TokenLogTest, TheProofIsOfThisFolder) {
  MemoryFileSystem fs;
  const std::string proof = *MakeTokenProof(fs, {kDir});
  EXPECT_EQ(*MakeTokenProof(fs, {kDir}), proof);
  EXPECT_TRUE(HasTokenProof(fs, {kDir}, proof));
  EXPECT_FALSE(HasTokenProof(fs, {kDir}, ""));
  EXPECT_FALSE(HasTokenProof(fs, {kDir, "elsewhere"}, proof));
  EXPECT_NE(*MakeTokenProof(fs, {"elsewhere"}), proof);
  EXPECT_EQ(*MakeTokenProof(fs, {kDir, "elsewhere"}), proof);
  EXPECT_TRUE(HasTokenProof(fs, {kDir, "elsewhere"}, proof));
}

TEST(TokenLogTest, AFullDiskIsAnErrorForGood) {
  MemoryFileSystem fs;
  Rng rng(6);
  auto writer = *TokenLogWriter::Open(fs, kDir, "run", FirstFileOf(Incarnation{0}));
  ASSERT_TRUE(writer->Append({{{1, 0, 0}, 0, 0, {}, Sampled(rng, 10)}}).ok());
  fs.SetFaults({.capacity_bytes = 1});
  const auto full = writer->Append({{{1, 0, 0}, 0, 0, {}, Sampled(rng, 1000)}});
  EXPECT_EQ(full.status().code(), StatusCode::kResourceExhausted);
  fs.SetFaults({});
  EXPECT_FALSE(writer->Append({{{1, 0, 0}, 0, 0, {}, Sampled(rng, 1)}}).ok());
}

}  // namespace
}  // namespace tidepool::storage
