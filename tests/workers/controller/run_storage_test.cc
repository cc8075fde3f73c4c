#include "workers/controller/run_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "core/base/host_name.h"
#include "core/base/thread_annotations.h"
#include "tests/core/base/memory_file_system.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A disk that can be frozen: a sync waits until it thaws, or fails.
class FreezingDisk : public MemoryFileSystem {
 public:
  void Freeze() { Set(true); }
  void Thaw() { Set(false); }
  [[nodiscard]] int syncs() const { return syncs_; }
  int SyncsOf(const std::string& path) {
    const MutexLock lock(mu_);
    return syncs_of_[path];
  }
  std::atomic<bool> broken = false, payload_broken = false;

  StatusOr<std::unique_ptr<WritableFile>> CreateNew(const std::string& path, FileAccess access) override {
    TP_ASSIGN_OR_RETURN(auto file, MemoryFileSystem::CreateNew(path, access));
    return std::unique_ptr<WritableFile>(new File(*this, path, std::move(file)));
  }
  StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path, FileAccess access) override {
    TP_ASSIGN_OR_RETURN(auto file, MemoryFileSystem::OpenForAppend(path, access));
    return std::unique_ptr<WritableFile>(new File(*this, path, std::move(file)));
  }

 private:
  class File : public WritableFile {
   public:
    File(FreezingDisk& disk, std::string path, std::unique_ptr<WritableFile> file)
        : disk_(disk), path_(std::move(path)), file_(std::move(file)) {}
    Status Append(std::string_view bytes) override { return file_->Append(bytes); }
    Status Sync() override {
      TP_RETURN_IF_ERROR(disk_.Pass(path_));
      return file_->Sync();
    }
    Status Preallocate(int64_t bytes) override { return file_->Preallocate(bytes); }
    Status Truncate(int64_t size) override { return file_->Truncate(size); }
    [[nodiscard]] int64_t size() const override { return file_->size(); }

   private:
    FreezingDisk& disk_;
    std::string path_;
    std::unique_ptr<WritableFile> file_;
  };

  void Set(bool frozen) {
    const MutexLock lock(mu_);
    frozen_ = frozen;
    changed_.NotifyAll();
  }
  Status Pass(const std::string& path) {
    const MutexLock lock(mu_);
    ++syncs_;
    ++syncs_of_[path];
    while (frozen_) changed_.WaitFor(mu_, seconds(1));
    const bool fails = broken || (payload_broken && path.find("/payload/") != std::string::npos);
    return fails ? DataLoss("the device reported an error") : OkStatus();
  }

  Mutex mu_;
  Condition changed_;
  bool frozen_ = false;
  std::atomic<int> syncs_ = 0;
  std::map<std::string, int> syncs_of_;
};

class RunStorageTest : public testing::Test {
 protected:
  ~RunStorageTest() override { disk_->Thaw(); }
  void Open(bool ends_with_the_machine) {
    auto opened = RunStorage::Open(
        disk_, {.run_dir = "run", .run_id = "a", .ends_with_the_machine = ends_with_the_machine}, &earlier_,
        [](const JournalEntry&) { return OkStatus(); },
        [inbox = inbox_](StorageDone done) { inbox->Put(std::move(done)); });
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    storage_ = std::move(*opened);
  }
  int64_t AppendFault(const std::string& what) {
    return storage_->Append({{record::Fault{"test", "nobody", {}, what}, 0}});
  }
  // Batches reported as stored, up to `batch`.
  bool StoredUpTo(int64_t batch) {
    const auto until = Clock::now() + seconds(20);
    while (stored_ < batch && Clock::now() < until) {
      for (StorageDone& done : inbox_->TakeAll(milliseconds(100))) {
        if (const auto* b = std::get_if<BatchStored>(&done)) {
          EXPECT_GT(b->batch, stored_) << "batches are reported in order";
          stored_ = b->batch;
        } else if (const auto* failed = std::get_if<StorageFailed>(&done)) {
          failures_.push_back(failed->why);
        } else {
          payloads_.push_back(std::get<PayloadStored>(done));
        }
      }
    }
    return stored_ >= batch;
  }
  DiskThread::Operation WaitUntilBusyWith(const std::string& what) {
    const auto until = Clock::now() + seconds(20);
    while (Clock::now() < until) {
      const auto busy = storage_->Busy();
      if (busy && busy->name.find(what) != std::string::npos) return *busy;
      (void)inbox_->TakeAll(milliseconds(1));
    }
    ADD_FAILURE() << "the disk was never at " << what;
    return {};
  }

  std::shared_ptr<FreezingDisk> disk_ = std::make_shared<FreezingDisk>();
  std::shared_ptr<Mailbox<StorageDone>> inbox_ = std::make_shared<Mailbox<StorageDone>>();
  storage::JournalSummary earlier_;
  std::unique_ptr<RunStorage> storage_;
  int64_t stored_ = 0;
  std::vector<std::string> failures_;
  std::vector<PayloadStored> payloads_;
};

TEST_F(RunStorageTest, AFrozenDiskHoldsNobodyAndIsNamed) {
  Open(/*ends_with_the_machine=*/false);
  disk_->Freeze();
  ASSERT_EQ(AppendFault("one"), 1);
  const auto first = WaitUntilBusyWith("fsync of journal/0000.tpj");
  const int syncs = disk_->syncs();
  for (int i = 2; i <= 100; ++i) ASSERT_EQ(AppendFault("more"), i);
  EXPECT_TRUE(inbox_->TakeAll(milliseconds(0)).empty()) << "nothing is safe before its sync";
  EXPECT_GT(WaitUntilBusyWith("fsync of journal/0000.tpj").takes, first.takes);
  EXPECT_EQ(storage_->next_lsn(), Lsn{100});

  disk_->Thaw();
  EXPECT_TRUE(StoredUpTo(100));
  EXPECT_LE(disk_->syncs(), syncs + 2) << "what waited is synced together";
  disk_->Crash();
  const auto journal = storage::ReadJournal(*disk_, "run/journal");
  ASSERT_TRUE(journal.ok()) << journal.status().ToString();
  EXPECT_EQ(journal->entries.size(), 100U) << "what was reported survives a power cut";
}

TEST_F(RunStorageTest, ADiskThatHangsForGoodEndsInBoundedTime) {
  Open(/*ends_with_the_machine=*/false);
  disk_->Freeze();
  AppendFault("one");
  WaitUntilBusyWith("fsync");
  const auto begin = Clock::now();
  const Status closed = storage_->Close(milliseconds(50));
  EXPECT_EQ(closed.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(closed.message(), HasSubstr("fsync of journal/0000.tpj"));
  storage_.reset();
  EXPECT_LT(Clock::now() - begin, seconds(10));
}

TEST_F(RunStorageTest, RecordsOfProcessesThatEndWithTheMachineWaitForNoSync) {
  Open(/*ends_with_the_machine=*/true);
  disk_->Freeze();
  EXPECT_TRUE(StoredUpTo(AppendFault("one")));
  record::EndRun end;
  const int64_t last = storage_->Append({{end, 0}});
  WaitUntilBusyWith("fsync of journal/0000.tpj");
  EXPECT_TRUE(inbox_->TakeAll(milliseconds(0)).empty()) << "what outlives the machine does wait";
  disk_->Thaw();
  EXPECT_TRUE(StoredUpTo(last));
  EXPECT_EQ(storage_->Close(seconds(20)), OkStatus());
}

TEST_F(RunStorageTest, ABaseOfTheTimeOfDayIsThatOfTheRecordsBehindIt) {
  for (const bool ends_with_the_machine : {false, true}) {
    disk_ = std::make_shared<FreezingDisk>();
    stored_ = 0;
    Open(ends_with_the_machine);
    storage_->SetBegun(1000);
    AppendFault("before");
    storage_->SetBegun(61000);
    ASSERT_TRUE(StoredUpTo(AppendFault("behind")));
    EXPECT_EQ(storage_->Close(seconds(20)), OkStatus());
    const auto journal = storage::ReadJournal(*disk_, "run/journal");
    ASSERT_TRUE(journal.ok()) << journal.status().ToString();
    ASSERT_EQ(journal->entries.size(), 2U);
    EXPECT_EQ(journal->entries[0].unix_ms, 1000);
    EXPECT_EQ(journal->entries[1].unix_ms, 61000);
  }
}

TEST_F(RunStorageTest, APayloadIsReportedWhenItIsThere) {
  Open(/*ends_with_the_machine=*/false);
  sample::Trajectory payload{.tid = {1, 0, 2}, .att = 3};
  payload.prompt = sample::PromptSegment({1, 2});
  payload.segments = {{.ids = {3}, .logprobs = {-1.0F}, .versions = {{Version{0, 0}, 1}}}};
  storage_->Store(payload);
  ASSERT_TRUE(StoredUpTo(AppendFault("after it")));
  ASSERT_EQ(payloads_.size(), 1U);
  EXPECT_EQ(payloads_[0].att, 3);
  disk_->Crash();
  storage::PayloadReader reader(*disk_, "run/payload");
  const auto read = reader.Read(payloads_[0].ref);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(*read, payload);
}

TEST_F(RunStorageTest, PayloadIsSyncedWhenSomethingWasWritten) {
  Open(/*ends_with_the_machine=*/true);
  const std::string journal = "run/journal/0000.tpj", tokens = "run/payload/0000.tpp";
  const auto append = [&] {  // and waits for the sync beside it
    const int before = disk_->SyncsOf(journal);
    AppendFault("one");
    const auto until = Clock::now() + seconds(20);
    while (disk_->SyncsOf(journal) == before && Clock::now() < until) (void)inbox_->TakeAll(milliseconds(1));
    return disk_->SyncsOf(journal) > before;
  };
  sample::Trajectory payload{.tid = {1, 0, 2}};
  payload.segments = {{.ids = {3}, .logprobs = {-1.0F}, .versions = {{Version{0, 0}, 1}}}};
  storage_->Store(payload);
  ASSERT_TRUE(append());
  const int before = disk_->SyncsOf(tokens);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(append());
  EXPECT_EQ(disk_->SyncsOf(tokens), before);
  storage_->Store(payload);
  ASSERT_TRUE(append());
  EXPECT_EQ(disk_->SyncsOf(tokens), before + 1);
}

TEST_F(RunStorageTest, WhatFailsForPayloadIsToldAndTheJournalTakesTheEnd) {
  for (const bool ends_with_the_machine : {false, true}) {
    Open(ends_with_the_machine);
    disk_->payload_broken = true;
    sample::Trajectory payload{.tid = {1, 0, 2}};
    payload.segments = {{.ids = {3}, .logprobs = {-1.0F}, .versions = {{Version{0, 0}, 1}}}};
    storage_->Store(payload);
    std::vector<StorageDone> done;
    const auto until = Clock::now() + seconds(20);
    const auto told = [&] {
      return std::ranges::any_of(done,
                                 [](const auto& d) { return std::holds_alternative<StorageFailed>(d); });
    };
    record::EndRun end;  // brings a sync with it
    const int64_t last = storage_->Append({{end, 0}});
    stored_ = 0;
    while ((!told() || stored_ < last) && Clock::now() < until) {
      for (StorageDone& d : inbox_->TakeAll(milliseconds(100))) {
        if (const auto* b = std::get_if<BatchStored>(&d)) stored_ = b->batch;
        done.push_back(std::move(d));
      }
    }
    EXPECT_EQ(stored_, last) << "the journal goes on";
    ASSERT_TRUE(told());
    for (const StorageDone& d : done) {
      if (const auto* failed = std::get_if<StorageFailed>(&d)) {
        EXPECT_FALSE(failed->journal);
        EXPECT_THAT(failed->why, HasSubstr("payload: the disk of run (host " + HostName() + ") cannot be"));
      }
    }
    EXPECT_EQ(storage_->Close(seconds(20)), OkStatus());
    storage_.reset();
    disk_->payload_broken = false;
  }
}

TEST_F(RunStorageTest, JournalThatRunsOutOfDiskIsNamedAndTakesTheEnd) {
  disk_->SetFaults({.capacity_bytes = 3 << 20});
  Open(/*ends_with_the_machine=*/false);
  const std::string what(100'000, 'x');
  for (int i = 0; i < 40 && failures_.empty(); ++i) ASSERT_TRUE(StoredUpTo(AppendFault(what)));
  ASSERT_EQ(failures_.size(), 1U);
  EXPECT_THAT(failures_[0],
              testing::AllOf(testing::StartsWith("journal: the disk of "),
                             testing::HasSubstr("(host " + HostName() + ") has no space left; free some")));
  EXPECT_TRUE(StoredUpTo(storage_->Append({{record::EndRun{}, 0}})));
}

TEST_F(RunStorageTest, AFailureIsToldOnceAndNothingIsStoredAfterIt) {
  Open(/*ends_with_the_machine=*/false);
  disk_->broken = true;
  AppendFault("one");
  const auto until = Clock::now() + seconds(20);
  std::vector<StorageDone> done;
  while (done.empty() && Clock::now() < until)
    for (StorageDone& d : inbox_->TakeAll(milliseconds(100))) done.push_back(std::move(d));
  disk_->broken = false;
  AppendFault("two");
  (void)storage_->Close(seconds(20));
  for (StorageDone& d : inbox_->TakeAll(milliseconds(0))) done.push_back(std::move(d));
  ASSERT_EQ(done.size(), 1U);
  ASSERT_TRUE(std::holds_alternative<StorageFailed>(done[0]));
  EXPECT_EQ(std::get<StorageFailed>(done[0]).why,
            "journal: the disk of run (host " + HostName() +
                ") cannot be written: the device reported an error; mend that, then --resume");
  EXPECT_TRUE(std::get<StorageFailed>(done[0]).journal);
}

// One that waits for workers writes nothing for hours.
TEST_F(RunStorageTest, ASuccessorIsFoundWithoutAWrite) {
  Open(/*ends_with_the_machine=*/false);
  storage_->LookForSuccessor();
  const auto next = storage::JournalWriter::Open(*disk_, "run/journal", "a", {.take_over = true});
  ASSERT_TRUE(next.ok()) << next.status().ToString();
  const auto until = Clock::now() + seconds(20);
  std::vector<StorageDone> done;
  while (done.empty() && Clock::now() < until) {
    storage_->LookForSuccessor();
    for (StorageDone& d : inbox_->TakeAll(milliseconds(10))) done.push_back(std::move(d));
  }
  ASSERT_EQ(done.size(), 1U);
  ASSERT_TRUE(std::holds_alternative<StorageFailed>(done[0]));
  EXPECT_TRUE(std::get<StorageFailed>(done[0]).taken_over);
}

}  // namespace
}  // namespace tidepool::workers
