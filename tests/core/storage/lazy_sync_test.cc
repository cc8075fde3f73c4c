#include "core/storage/lazy_sync.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "tests/core/base/memory_file_system.h"

namespace tidepool::storage {
namespace {

using testing::ElementsAre;

// Remembers what is synced, in order; the disk fails for what `broken` names.
class Disk : public MemoryFileSystem {
 public:
  Status SyncFile(const std::string& path) override {
    const MutexLock lock(mu_);
    synced_.push_back(path);
    if (path == gone) return NotFound("no such file");
    return path == broken ? Internal("a bad sector") : OkStatus();
  }
  std::vector<std::string> synced() {
    const MutexLock lock(mu_);
    return synced_;
  }
  std::string broken, gone;

 private:
  Mutex mu_;
  std::vector<std::string> synced_ TP_GUARDED_BY(mu_);
};

TEST(LazySyncTest, WhatWaitsTogetherGoesInTheOrderOfItsRanksAndOnce) {
  const auto disk = std::make_shared<Disk>();
  LazySync sync(disk);
  for (int i = 0; i < 3; ++i) {
    sync.Soon("journal/0000.tpj", 1);
    sync.Soon("payload/0000.tpp", 0);
  }
  ASSERT_TRUE(sync.Drain(std::chrono::seconds(5)));
  EXPECT_THAT(disk->synced(), ElementsAre("payload/0000.tpp", "journal/0000.tpj"));
}

// Its samples were trained while the disk was slow.
TEST(LazySyncTest, AFileThatWasRemovedMeanwhileIsNoFailure) {
  const auto disk = std::make_shared<Disk>();
  disk->gone = "run/payload/0000.tpp";
  int failed = 0;
  LazySync sync(disk, {.folder = "run", .failed = [&](const std::string&, const Status&) {
                         ++failed;
                         return false;
                       }});
  sync.Soon("run/payload/0000.tpp", 0);
  sync.Soon("run/journal/0000.tpj", 1);
  ASSERT_TRUE(sync.Drain(std::chrono::seconds(5)));
  EXPECT_EQ(failed, 0);
  EXPECT_THAT(disk->synced(), ElementsAre("run/payload/0000.tpp", "run/journal/0000.tpj"));
}

TEST(LazySyncTest, AnErrorIsToldAndEndsTheRound) {
  const auto disk = std::make_shared<Disk>();
  disk->broken = "run/payload/0000.tpp";
  std::vector<std::string> failed;
  LazySync sync(disk, {.folder = "run", .failed = [&](const std::string& file, const Status& error) {
                         failed.push_back(file + ": " + error.message());
                         return false;
                       }});
  sync.Soon("run/journal/0000.tpj", 1);
  sync.Soon("run/payload/0000.tpp", 0);
  ASSERT_TRUE(sync.Drain(std::chrono::seconds(5)));
  EXPECT_THAT(failed, ElementsAre("run/payload/0000.tpp: a bad sector"));
  EXPECT_THAT(disk->synced(), ElementsAre("run/payload/0000.tpp"))
      << "no record is durable before its tokens";
}

}  // namespace
}  // namespace tidepool::storage
