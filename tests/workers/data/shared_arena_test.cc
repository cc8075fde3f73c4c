#include "workers/data/shared_arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

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

// Each block has its own open files, as each process has; locks are of these.
TEST_F(SharedArenaTest, NobodyFillsWhatAnotherOneReads) {
  ASSERT_EQ(Write(3), OkStatus());
  ASSERT_EQ(Write(4), OkStatus());
  const SharedBlock reader(folder_, "weights");
  SharedBlock writer(folder_, "weights");
  bytes_ = {"changed"};
  {
    auto third = reader.Open(3, 0), fourth = reader.Open(4, 0);
    ASSERT_TRUE(third.ok() && fourth.ok());
    EXPECT_EQ(Write(5).code(), StatusCode::kUnavailable);
    EXPECT_EQ(std::memcmp((*third)->bytes().data(), "tidepoo", 8), 0);
    fourth = NotFound("let go of");
    EXPECT_EQ(Write(5), OkStatus()) << "although it is the newer one";
    EXPECT_EQ(std::memcmp((*third)->bytes().data(), "tidepoo", 8), 0);
  }
  EXPECT_EQ(Write(6), OkStatus());
  EXPECT_FALSE(Read(3).ok());
  EXPECT_TRUE(Read(5).ok());
}

TEST_F(SharedArenaTest, TwoThatFillAtATimeHaveABufferEach) {
  SharedBlock first(folder_, "weights"), second(folder_, "weights"), third(folder_, "weights");
  const auto tag = [](int64_t number) { return BlockTag{number, 0, 7, 8}; };
  auto three = first.Begin(tag(3)), four = second.Begin(tag(4));
  ASSERT_TRUE(three.ok() && four.ok());
  EXPECT_EQ(third.Begin(tag(5)).status().code(), StatusCode::kUnavailable);
  std::memset(three->bytes().data(), '3', 8);
  std::memset(four->bytes().data(), '4', 8);
  four->Complete();
  three->Complete();
  ASSERT_TRUE(Read(3).ok());
  EXPECT_EQ(read_[0], '3');
  ASSERT_TRUE(Read(4).ok());
  EXPECT_EQ(read_[0], '4');

  // One that is gone in the middle leaves its buffer to others.
  { ASSERT_TRUE(third.Begin(tag(5)).ok()); }
  EXPECT_EQ(second.Begin(tag(6), SharedBlock::Keep::kNewest).status(), OkStatus());
  EXPECT_TRUE(Read(4).ok());
  EXPECT_EQ(three->Hold(), nullptr) << "it has something else by now";
  EXPECT_NE(four->Hold(), nullptr);
}

TEST_F(SharedArenaTest, ABlockOfAnotherSizeTakesThePlaceOfOneThatIsRead) {
  ASSERT_EQ(Write(3), OkStatus());
  const SharedBlock reader(folder_, "weights");
  SharedBlock writer(folder_, "weights");
  const std::vector<char> large(9000, 'x');
  for (int64_t number = 4; number < 7; ++number) {
    const auto before = reader.Open(number - 1, 0);
    ASSERT_TRUE(before.ok());
    ASSERT_EQ(writer.Write({number, 0, 7, 0}, {std::as_bytes(std::span(large))}), OkStatus());
    EXPECT_EQ((*before)->bytes().size(), number == 4 ? 8U : 9000U);
  }
  EXPECT_TRUE(reader.Open(6, 0).ok());
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
