// Payloads over the wire, as a rank of a training group on another host reads them.
#include "workers/net/rows_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "core/base/rng.h"
#include "core/sample/codec.h"
#include "tests/core/base/memory_file_system.h"
#include "tests/core/sample/random_trajectory.h"
#include "workers/device/row_outlines.h"
#include "workers/net/hub.h"
#include "workers/net/link.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;

record::Enq EnqOf(const sample::Trajectory& t, const storage::PayloadRef& ref) {
  record::Enq enq;
  enq.tid = t.tid;
  enq.att = t.att;
  enq.prompt_len = t.prompt_size();
  enq.response_len = t.size();
  enq.digest = ref.digest;
  enq.payload_file = ref.file;
  enq.payload_offset = ref.offset;
  enq.payload_bytes = ref.bytes;
  return enq;
}

// A controller with payload files, and a rank on a host that sees none of them.
class RowsCallTest : public testing::Test {
 protected:
  RowsCallTest() {
    Rng rng(3);
    auto writer = *storage::PayloadWriter::Open(*fs_, "payload", "run", /*file_bytes=*/3000);
    for (int i = 0; i < 40; ++i) {
      written_.push_back(sample::RandomTrajectory(rng, i));
      enqs_.push_back(EnqOf(written_.back(), *writer->Append(written_.back())));
    }
    HubOptions options;
    options.run_id = "run";
    options.max_frame_bytes = 512;  // a payload takes several
    options.payloads = [this, reader = std::make_shared<storage::PayloadReader>(*fs_, "payload")](
                           int64_t file, int64_t offset, int64_t bytes) -> StatusOr<storage::PayloadBytes> {
      if (disk_fails_) return Unavailable("the disk with payload/ has not answered");
      return reader->ReadBytes(file, offset, bytes);
    };
    hub_ = *Hub::Start(
        options, tokens_, [](HubEvent) {},
        [this](int64_t lease, StepNumber, Incarnation,
               int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
          if (lease != 7) return NotFound("lease is not open");
          auto list = std::make_shared<std::vector<BatchRow>>();
          for (const record::Enq& enq : enqs_) list->emplace_back().stored = enq;
          if (elsewhere_ >= 0) (*list)[static_cast<size_t>(elsewhere_)].rank = 1;
          return std::shared_ptr<const std::vector<BatchRow>>(std::move(list));
        });
    LinkOptions dial;
    dial.address = hub_->address();
    dial.credentials.token = tokens_.Token(CallerRole::kDevice);
    dial.hello.run_id = "run";
    link_ = *Link::Connect(dial, [](const std::vector<LinkEvent>&) {});
  }
  ~RowsCallTest() override { hub_->Stop(); }

  [[nodiscard]] Enqs All() const {
    Enqs all;
    for (const record::Enq& e : enqs_) all.push_back(&e);
    return all;
  }
  // What rank 0 reads of them on a host that sees `fs`.
  StatusOr<StoredRows::Found> Read(std::shared_ptr<FileSystem> fs, int64_t lease = 7) {
    return StoredRows(std::move(fs), "payload")
        .Read(
            All(),
            [&](const Enqs& which) {
              asked_ += which.size();
              return link_->FetchPayloads(lease, {3}, 0, which, [this] { return go_on_; });
            },
            [] { return true; });
  }

  std::shared_ptr<MemoryFileSystem> fs_ = std::make_shared<MemoryFileSystem>();
  std::vector<sample::Trajectory> written_;
  std::vector<record::Enq> enqs_;
  const JobTokens tokens_ = *JobTokens::Random();
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<Link> link_;
  size_t asked_ = 0;
  int64_t elsewhere_ = -1;  // a row of another rank
  std::atomic<bool> disk_fails_ = false;
  bool go_on_ = true;
};

TEST_F(RowsCallTest, WhatAHostDoesNotSeeItIsSentAndWhatItSeesItReads) {
  auto found = Read(std::make_shared<MemoryFileSystem>());
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  for (size_t i = 0; i < written_.size(); ++i) EXPECT_EQ(*found->rows[i], written_[i]) << i;
  EXPECT_EQ(asked_, written_.size());
  EXPECT_GE(hub_->served_row_bytes(), found->bytes);

  asked_ = 0;
  found = Read(fs_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  for (size_t i = 0; i < written_.size(); ++i) EXPECT_EQ(*found->rows[i], written_[i]) << i;
  EXPECT_EQ(asked_, 0U);
}

// A host sees less of a file than is in it: what another one has just written comes later.
TEST_F(RowsCallTest, AFileThatIsShorterHereIsMadeUpByWhoServes) {
  auto behind = std::make_shared<MemoryFileSystem>();
  const auto writer = *storage::PayloadWriter::Open(*behind, "payload", "run", 3000);
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(writer->Append(written_[i]).ok());
  const auto found = Read(behind);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  for (size_t i = 0; i < written_.size(); ++i) EXPECT_EQ(*found->rows[i], written_[i]) << i;
  EXPECT_EQ(asked_, written_.size() - 3);
}

TEST_F(RowsCallTest, WhatIsNowhereIsLostByItselfAndTheOthersCome) {
  enqs_[4].payload_file = 99;
  enqs_[7].digest ^= 1;
  enqs_[9].payload_bytes += 1 << 20;  // beyond the end of its file
  const auto found = Read(std::make_shared<MemoryFileSystem>());
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  for (const size_t i : {4, 7, 9}) EXPECT_FALSE(found->rows[i].ok()) << i;
  EXPECT_THAT(found->rows[4].status().message(), HasSubstr("0099.tpp"));
  EXPECT_THAT(found->rows[7].status().message(), HasSubstr("digest differs from the journal's"));
  EXPECT_THAT(found->rows[9].status().message(), HasSubstr("the file ends after"));
  EXPECT_TRUE(found->rows[8].ok());
}

// Trouble of a disk, or of the folder, is no fault of the rows.
TEST_F(RowsCallTest, WhatCannotBeReadNowIsAnErrorOfTheWholeAndLosesNoRow) {
  const auto nothing = std::make_shared<MemoryFileSystem>();
  disk_fails_ = true;
  EXPECT_EQ(Read(nothing).status().code(), StatusCode::kUnavailable);
  disk_fails_ = false;
  EXPECT_TRUE(Read(nothing).ok());
  go_on_ = false;
  EXPECT_EQ(Read(nothing).status().code(), StatusCode::kAborted) << "the step was called off";
}

TEST_F(RowsCallTest, ARankIsSentRowsOfItsOwnInTheOpenLeaseAlone) {
  const auto nothing = std::make_shared<MemoryFileSystem>();
  EXPECT_EQ(Read(nothing, /*lease=*/8).status().code(), StatusCode::kNotFound);
  elsewhere_ = 5;
  EXPECT_EQ(Read(nothing).status().code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(hub_->served_row_bytes(), 0);
}

TEST_F(RowsCallTest, WhoServesNothingIsAnErrorOfTheWholeAndLosesNoRow) {
  hub_->Stop();
  const auto found = Read(std::make_shared<MemoryFileSystem>());
  EXPECT_FALSE(found.ok());
}

// --- what ranks tell each other

class RowOutlinesTest : public testing::Test {
 protected:
  RowOutlinesTest() {
    Rng rng(5);
    for (int i = 0; i < 12; ++i) {
      whole_.push_back(sample::RandomTrajectory(rng, i));
      BatchRow row;
      row.rank = i % 3;
      row.stored = EnqOf(whole_.back(), {.file = 0, .offset = 0, .bytes = 1, .digest = 1});
      rows_.push_back(row);
    }
  }
  std::vector<StatusOr<sample::Trajectory>> ReadBy(int64_t rank) const {
    std::vector<StatusOr<sample::Trajectory>> read;
    for (size_t i = 0; i < rows_.size(); ++i)
      if (rows_[i].rank == rank) read.emplace_back(whole_[i]);
    return read;
  }
  std::vector<sample::Trajectory> whole_;
  std::vector<BatchRow> rows_;
  std::vector<BadRow> bad_;
};

TEST_F(RowOutlinesTest, EveryRankLearnsTheShapeOfTheOthersRows) {
  std::vector<std::string> said;
  for (int64_t rank = 0; rank < 3; ++rank) said.push_back(OutlinesOf(ReadBy(rank)));
  ASSERT_TRUE(TakeOutlines(said, 1, rows_, bad_).ok());
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].rank == 1) continue;
    EXPECT_EQ(rows_[i].trajectory, whole_[i].Outline()) << i;
  }
}

TEST_F(RowOutlinesTest, AllRanksRefuseABatchAlikeWhereOneCannotReadARow) {
  std::vector<std::string> said;
  for (int64_t rank = 0; rank < 3; ++rank) {
    auto read = ReadBy(rank);
    if (rank != 0) read[1] = DataLoss("0007.tpp is gone");
    said.push_back(OutlinesOf(read));
  }
  for (int64_t rank = 0; rank < 3; ++rank) {
    std::vector<BadRow> bad;
    const Status status = TakeOutlines(said, rank, rows_, bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    ASSERT_EQ(bad.size(), 2U);
    EXPECT_EQ(bad[0].tid, rows_[4].stored.tid);
    EXPECT_EQ(bad[1].tid, rows_[5].stored.tid);
    EXPECT_EQ(bad[1].why, "0007.tpp is gone");
    EXPECT_THAT(status.message(), HasSubstr("row " + ToString(rows_[4].stored.tid) + ": 0007.tpp is gone"));
  }
}

TEST_F(RowOutlinesTest, BytesThatAreNoOutlinesOfTheRowsAreRefused) {
  std::vector<std::string> said;
  for (int64_t rank = 0; rank < 3; ++rank) said.push_back(OutlinesOf(ReadBy(rank)));
  for (const auto& spoil : std::vector<std::function<void(std::string&)>>{
           [](std::string& s) { s.pop_back(); }, [](std::string& s) { s += "x"; },
           [](std::string& s) { s.clear(); }, [&](std::string& s) { s = OutlinesOf(ReadBy(0)); }}) {
    auto others = said;
    spoil(others[2]);
    EXPECT_EQ(TakeOutlines(others, 1, rows_, bad_).code(), StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace tidepool::workers
