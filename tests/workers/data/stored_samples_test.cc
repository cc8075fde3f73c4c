// Who grades reads samples in the run's folder: payloads, and of an evaluation token logs.

#include "workers/data/stored_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/storage/payload.h"
#include "core/storage/run_directory.h"
#include "core/storage/token_log.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::workers {
namespace {

class StoredSamplesTest : public testing::Test {
 protected:
  StoredSamplesTest() {
    welcome_.run_dir = "run";
    welcome_.sync_payload = false;
    const storage::RunPaths paths(welcome_.run_dir);
    welcome_.token_proof = *storage::MakeTokenProof(*fs_, {paths.tokens(), paths.payload()});
    log_ = *storage::TokenLogWriter::Open(*fs_, paths.tokens(), "run", storage::FirstFileOf(Incarnation{3}));
    payloads_ = *storage::PayloadWriter::Open(*fs_, paths.payload(), "run", storage::kPayloadFileBytes,
                                              storage::FirstFileOf(Incarnation{3}));
    samples_ = StoredSamples::Open(fs_, welcome_);
  }
  static sample::Segment Said(std::vector<int32_t> ids) {
    sample::Segment said{.ids = std::move(ids)};
    said.logprobs.assign(said.ids.size(), -1.0F);
    sample::AddVersion(said.versions, {0, 3}, said.size());
    return said;
  }
  // An answer of two entries.
  down::Grade Logged() {
    const auto first = log_->Append({{tid_, 2, 0, {}, Said({4, 5})}})->front();
    down::Grade grade{.tid = tid_, .att = 2};
    grade.logged = log_->Append({{tid_, 2, 2, first, Said({6})}})->front();
    grade.input.response_tokens = 3;
    return grade;
  }

  const std::shared_ptr<MemoryFileSystem> fs_ = std::make_shared<MemoryFileSystem>();
  const SampleId tid_{4, 6, SampleId::kEvalSample};
  down::Welcome welcome_;
  std::unique_ptr<storage::TokenLogWriter> log_;
  std::unique_ptr<storage::PayloadWriter> payloads_;
  std::unique_ptr<StoredSamples> samples_;
};

TEST_F(StoredSamplesTest, AnAnswerOfAnEvaluationIsWhatItsWorkerHasLogged) {
  ASSERT_NE(samples_, nullptr);
  down::Grade grade = Logged();
  grade.input.ended = true;
  const auto read = samples_->Read(grade);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->Ids(), (std::vector<int32_t>{4, 5, 6}));
  EXPECT_EQ(read->finish, sample::Finish::kEos);
  grade.input.ended = false;
  EXPECT_EQ(samples_->Read(grade)->finish, sample::Finish::kLength);
  // Other tokens than were said.
  grade.input.response_tokens = 2;
  const auto wrong = samples_->Read(grade);
  EXPECT_EQ(wrong.status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(Unread(grade, wrong.status()).unread) << "the controller looks, too";
  EXPECT_EQ(Unread(grade, wrong.status()).outcome, GradeOutcome::kInfra);
  grade.att = 3;
  EXPECT_FALSE(samples_->Read(grade).ok());
}

TEST_F(StoredSamplesTest, ASampleIsWhatItsPayloadHas) {
  sample::Trajectory t{.tid = {4, 0, 1}, .att = 0, .finish = sample::Finish::kLength};
  t.prompt = sample::PromptSegment({1});
  t.segments = {Said({2, 3})};
  const auto ref = *payloads_->Append(t);
  down::Grade grade{.tid = t.tid, .att = 0};
  grade.payload = {.tid = t.tid,
                   .att = 0,
                   .wv_min = {0, 3},
                   .wv_max = {0, 3},
                   .prompt_len = 1,
                   .response_len = 2,
                   .digest = ref.digest,
                   .payload_file = ref.file,
                   .payload_offset = ref.offset,
                   .payload_bytes = ref.bytes,
                   .versions = {}};
  const auto read = samples_->Read(grade);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, t);
  ++grade.payload.digest;
  EXPECT_EQ(samples_->Read(grade).status().code(), StatusCode::kDataLoss);
}

// Opens of token files take a while, one after another.
class SlowDisk : public MemoryFileSystem {
 public:
  StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    std::this_thread::sleep_for(takes.load());
    return MemoryFileSystem::OpenForRead(path);
  }
  std::atomic<std::chrono::milliseconds> takes = std::chrono::milliseconds(0);
};

// One thread reads for all: who waits for others' reads has not met a disk that is silent.
TEST(StoredSamplesPatienceTest, IsWithEachReadAndNotWithThoseBeforeIt) {
  const auto fs = std::make_shared<SlowDisk>();
  down::Welcome welcome;
  welcome.run_dir = "run";
  welcome.sync_payload = false;
  const storage::RunPaths paths(welcome.run_dir);
  welcome.token_proof = *storage::MakeTokenProof(*fs, {paths.tokens(), paths.payload()});
  auto log = *storage::TokenLogWriter::Open(*fs, paths.tokens(), "run", storage::FirstFileOf(Incarnation{3}));
  down::Grade grade{.tid = {4, 6, SampleId::kEvalSample}, .att = 2};
  sample::Segment said{.ids = {4, 5}, .logprobs = {-1.0F, -1.0F}};
  sample::AddVersion(said.versions, {0, 3}, 2);
  grade.logged = log->Append({{grade.tid, 2, 0, {}, said}})->front();
  grade.input.response_tokens = 2;
  const auto samples = StoredSamples::Open(
      fs, welcome, {.one = std::chrono::milliseconds(1000), .all = std::chrono::seconds(60)});
  ASSERT_NE(samples, nullptr);
  fs->takes = std::chrono::milliseconds(200);
  std::atomic<int> read = 0;
  {
    std::vector<std::jthread> graders;
    for (int i = 0; i < 10; ++i) graders.emplace_back([&] { read += samples->Read(grade).ok() ? 1 : 0; });
  }
  EXPECT_EQ(read, 10) << "the last one waited for two seconds";
  fs->takes = std::chrono::milliseconds(3000);
  EXPECT_EQ(samples->Read(grade).status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(StoredSamplesTest, AnotherFolderAtTheSamePathIsNotTheRuns) {
  welcome_.token_proof = "another";
  EXPECT_EQ(StoredSamples::Open(fs_, welcome_), nullptr);
}

}  // namespace
}  // namespace tidepool::workers
