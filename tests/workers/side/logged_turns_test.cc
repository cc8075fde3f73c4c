// Turns of episodes in token logs: an environment worker reads there what the policy said, and answers there.

#include "workers/side/logged_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "core/base/real_file_system.h"
#include "core/storage/payload.h"
#include "core/storage/run_directory.h"
#include "tests/core/base/memory_file_system.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;

class LoggedTurnsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "logged_turns-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    welcome_.run_dir = name;
    welcome_.model_dir = name + "/model";
    welcome_.run_id = "run";
    welcome_.inc = {7};
    welcome_.sync_payload = false;
    config_.model.init = ModelInit{};
    config_.model.init->alphabet = "SFHGP#?ldru:asnt ";
    EnvironmentConfig lake{.name = "frozen_lake"};
    lake.options = {{"style", "\"terse\""}, {"view", "\"near\""}, {"frozen", "100"}, {"side", "3"}};
    config_.job = RlJob{.algorithm = {}, .environment = lake};
    ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, welcome_.model_dir).ok());
    const storage::RunPaths paths(welcome_.run_dir);
    tokens_ = paths.tokens();
    welcome_.token_proof = *storage::MakeTokenProof(*fs_, {tokens_, paths.payload()});
    rows_ = *RowSource::Create(config_, welcome_.model_dir);
    engine_ = *storage::TokenLogWriter::Open(*fs_, tokens_, "run", storage::FirstFileOf(Incarnation{3}));
    auto turns = LoggedTurns::Open(fs_, config_, welcome_);
    ASSERT_TRUE(turns.ok()) << turns.status().ToString();
    turns_ = *std::move(turns);
  }
  void TearDown() override {
    std::error_code error;
    std::filesystem::remove_all(welcome_.run_dir, error);
  }
  [[nodiscard]] sample::Segment Said(const std::string& letters, bool end) const {
    auto ids = *rows_->tokenizer().Encode(letters, {.add_special = false});
    if (end) ids.push_back(rows_->end_token());
    sample::Segment said{.ids = ids, .logprobs = std::vector<float>(ids.size(), -1.0F)};
    sample::AddVersion(said.versions, {0, 3}, said.size());
    return said;
  }
  storage::TokenPlace Log(int64_t from, const storage::TokenPlace& before, sample::Segment said) {
    return engine_->Append({{tid_, 0, from, before, std::move(said)}})->front();
  }
  [[nodiscard]] down::EnvStep Step(int64_t turn, const storage::TokenPlace& said) const {
    return {.tid = tid_, .att = 0, .turn = turn, .said = said, .timeout_s = 1};
  }

  const std::shared_ptr<FileSystem> fs_ = std::make_shared<RealFileSystem>();
  const SampleId tid_{4, 0, 2};
  down::Welcome welcome_;
  JobConfig config_;
  std::string tokens_;
  std::unique_ptr<RowSource> rows_;
  std::unique_ptr<storage::TokenLogWriter> engine_;
  std::unique_ptr<LoggedTurns> turns_;
};

TEST_F(LoggedTurnsTest, AnEpisodeGrowsByWhatIsSaidAndHeard) {
  const auto first = Log(0, {}, Said("d", true));
  down::EnvStep step = Step(1, first);
  const auto said = turns_->Read(step, LoggedTurns::Clock::now());
  ASSERT_TRUE(said.ok()) << said.status().ToString();
  EXPECT_EQ(step.actions, std::vector<std::string>{"d"});
  up::EnvStepped reply{.tid = tid_, .turn = 1, .observation = "#FFS?"};
  ASSERT_TRUE(turns_->Write(step, *said, reply).ok());
  EXPECT_EQ(reply.outcome, GradeOutcome::kOk) << reply.why;
  EXPECT_EQ(reply.observation, "") << "it does not pass the controller";
  EXPECT_EQ(reply.logged_tokens, 5);
  EXPECT_EQ(storage::WriterOf(reply.logged.file), storage::WriterOf(storage::FirstFileOf(welcome_.inc)));

  // Two chunks make the next turn, which is cut: the end of the turn is said for the policy.
  auto last = Log(7, reply.logged, Said("r", false));
  last = Log(8, last, Said("u", false));
  step = Step(2, last);
  const auto more = turns_->Read(step, LoggedTurns::Clock::now());
  ASSERT_TRUE(more.ok()) << more.status().ToString();
  EXPECT_EQ(step.actions, (std::vector<std::string>{"d", "ru"}));
  reply = {.tid = tid_, .turn = 2, .observation = "##FF?"};
  ASSERT_TRUE(turns_->Write(step, *more, reply).ok());
  EXPECT_EQ(reply.logged_tokens, 6);
  const auto chain = storage::ReadTokenChain(*fs_, tokens_, tid_, 0, reply.logged);
  ASSERT_TRUE(chain.ok()) << chain.status().ToString();
  const sample::Trajectory whole{.segments = chain->segments};
  EXPECT_EQ(rows_->tokenizer().Decode(whole.Ids(), /*skip_special=*/false), "d<eos>#FFS?ru<eos>##FF?");
  EXPECT_EQ(whole.LossMask(), (std::vector<uint8_t>{1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}));
}

TEST_F(LoggedTurnsTest, WhatNobodyCanHaveSaidIsNotPlayed) {
  sample::Segment odd = Said("d", false);
  odd.ids[0] = 1000;
  down::EnvStep step = Step(1, Log(0, {}, std::move(odd)));
  EXPECT_THAT(turns_->Read(step, LoggedTurns::Clock::now()).status().message(),
              HasSubstr("outside the vocabulary"));
  step = Step(1, {99, 0});
  EXPECT_EQ(turns_->Read(step, LoggedTurns::Clock::now()).status().code(), StatusCode::kNotFound);
}

TEST_F(LoggedTurnsTest, AnObservationWithoutTokensIsWrongData) {
  down::EnvStep step = Step(1, Log(0, {}, Said("d", true)));
  const auto said = *turns_->Read(step, LoggedTurns::Clock::now());
  up::EnvStepped reply{.tid = tid_, .turn = 1, .observation = "\xc3\xa9"};
  ASSERT_TRUE(turns_->Write(step, said, reply).ok());
  EXPECT_EQ(reply.outcome, GradeOutcome::kData);
  EXPECT_THAT(reply.why, HasSubstr("the observation of turn 1"));
}

// A log that failed is given up, and the next turn has another one.
TEST_F(LoggedTurnsTest, AFullDiskCostsOneTurn) {
  auto full = std::make_shared<MemoryFileSystem>();
  const storage::RunPaths paths(welcome_.run_dir);
  for (const std::string& dir : {paths.tokens(), paths.payload()})
    ASSERT_TRUE(full->MakeDirectories(dir).ok());
  ASSERT_TRUE(full->WriteFile(paths.tokens() + "/proof", welcome_.token_proof).ok());
  ASSERT_TRUE(full->WriteFile(paths.payload() + "/proof", welcome_.token_proof).ok());
  auto engine = *storage::TokenLogWriter::Open(*full, tokens_, "run", storage::FirstFileOf(Incarnation{3}));
  auto turns = *LoggedTurns::Open(full, config_, welcome_);
  ASSERT_NE(turns, nullptr);
  int64_t from = 0;
  storage::TokenPlace before;
  for (int64_t turn = 1; turn <= 3; ++turn) {
    const auto said = Said("d", true);
    before = engine->Append({{tid_, 0, from, before, said}})->front();
    down::EnvStep step = Step(turn, before);
    const auto read = turns->Read(step, LoggedTurns::Clock::now());
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    EXPECT_EQ(step.actions, std::vector<std::string>(static_cast<size_t>(turn), "d"));
    up::EnvStepped reply{.tid = tid_, .turn = turn, .observation = "#FFS?"};
    if (turn == 2) {
      full->SetFaults({.capacity_bytes = 1});
      EXPECT_EQ(turns->Write(step, *read, reply).code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(reply.observation, "#FFS?");
      full->SetFaults({});
    }
    ASSERT_TRUE(turns->Write(step, *read, reply).ok());
    before = reply.logged;
    from = read->tokens + reply.logged_tokens;
  }
  EXPECT_EQ(storage::ReadTokenChain(*full, tokens_, tid_, 0, before)->segments.size(), 6u);
}

// The words of the policy would be others here.
TEST_F(LoggedTurnsTest, AnotherTokenizerThanTheControllersIsRefusedByName) {
  welcome_.tokenizer = rows_->tokenizer().digest();
  EXPECT_TRUE(LoggedTurns::Open(fs_, config_, welcome_).ok());
  ++welcome_.tokenizer;
  const auto opened = LoggedTurns::Open(fs_, config_, welcome_);
  EXPECT_EQ(opened.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(opened.status().message(),
              HasSubstr(welcome_.model_dir + "/tokenizer.json of this host is not the controller's"));
}

TEST_F(LoggedTurnsTest, AnotherFolderAtTheSamePathIsNotTheRuns) {
  welcome_.token_proof = "another";
  const auto opened = LoggedTurns::Open(fs_, config_, welcome_);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ(*opened, nullptr);
}

}  // namespace
}  // namespace tidepool::workers
