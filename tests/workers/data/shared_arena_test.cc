#include "workers/data/shared_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class SharedArenaTest : public testing::Test {
 protected:
  SharedArenaTest() : folder_(SharedBlock::FolderOf("run-" + std::to_string(getpid()), "secret")) {
    SharedBlock::RemoveAll(folder_);
  }
  ~SharedArenaTest() override { SharedBlock::RemoveAll(folder_); }
  Status Write(int64_t number) {
    return SharedBlock(folder_, "weights").Write({number, 0, 7, 0}, {std::as_bytes(std::span(bytes_))});
  }
  StatusOr<BlockTag> Read(int64_t number) {
    return SharedBlock(folder_, "weights").Read(number, 0, {std::as_writable_bytes(std::span(read_))});
  }
  std::string folder_;
  std::array<char, 8> bytes_{"tidepoo"}, read_{};
};

TEST_F(SharedArenaTest, AnotherProcessReadsWhatWasWritten) {
  ASSERT_EQ(Write(3), OkStatus());
  ASSERT_EQ(Write(4), OkStatus());
  ASSERT_TRUE(Read(3).ok()) << Read(3).status().ToString();
  EXPECT_EQ(Read(4)->digest, 7U);
  EXPECT_EQ(read_, bytes_);
  EXPECT_EQ(Read(5).status().code(), StatusCode::kNotFound);
}

TEST_F(SharedArenaTest, NamesCannotBeGuessedFromTheRun) {
  EXPECT_NE(SharedBlock::FolderOf("run", "a"), SharedBlock::FolderOf("run", "b"));
  EXPECT_NE(SharedBlock::FolderOf("/", "a"), SharedBlock::FolderOf("/tmp", "a"))
      << "a copy of the run's folder";
  EXPECT_EQ(SharedBlock::FolderOf("run", "a"), SharedBlock::FolderOf("run", "a")) << "a resumed run finds it";
  // Two hosts that are containers with one /dev/shm.
  const std::string first = SharedBlock::OfHost(folder_, "10.0.0.1"),
                    second = SharedBlock::OfHost(folder_, "10.0.0.2");
  ASSERT_NE(first, second);
  for (const std::string& host : {first, second})
    ASSERT_EQ(SharedBlock(host, "weights").Write({1, 0, 7, 0}, {std::as_bytes(std::span(bytes_))}),
              OkStatus());
  SharedBlock::RemoveAll(first);
  EXPECT_TRUE(SharedBlock(second, "weights").Read(1, 0, {std::as_writable_bytes(std::span(read_))}).ok());
  SharedBlock::Remove(second, "weights");
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "nothing is left of the run";
}

TEST_F(SharedArenaTest, NobodyElseGetsIn) {
  ASSERT_EQ(Write(3), OkStatus());
  struct stat st {};
  ASSERT_EQ(stat(folder_.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0700U);
  ASSERT_EQ(stat((folder_ + "/weights-0").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600U);
}

TEST_F(SharedArenaTest, WhatOthersMadeBeforehandIsNotUsed) {
  ASSERT_TRUE(fs::create_directory(folder_));
  fs::permissions(folder_, fs::perms::all);
  EXPECT_EQ(Write(3).code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(Write(3).message(), HasSubstr(folder_));
  fs::permissions(folder_, fs::perms::owner_all);

  const std::string file = folder_ + "/weights-0";
  std::ofstream(file) << std::string(4096 + bytes_.size(), 'x');
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read);
  EXPECT_EQ(Write(3).code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(Read(3).status().code(), StatusCode::kPermissionDenied);
  if (geteuid() == 0) {  // only root can give files away
    fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
    ASSERT_EQ(chown(file.c_str(), 65534, 65534), 0);
    EXPECT_EQ(Write(3).code(), StatusCode::kPermissionDenied);
  }

  const std::string elsewhere = testing::TempDir() + "/elsewhere";
  std::ofstream(elsewhere) << "not to be touched";
  fs::remove(file);
  fs::create_symlink(elsewhere, file);
  (void)Write(3);  // may put its own file in the link's place
  std::string text;
  std::getline(std::ifstream(elsewhere), text);
  EXPECT_EQ(text, "not to be touched");
}

}  // namespace
}  // namespace tidepool::workers
