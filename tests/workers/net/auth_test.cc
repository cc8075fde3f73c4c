#include "workers/net/auth.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace tidepool::workers {
namespace {

TEST(JobTokensTest, ATokenOfOneRoleIsNotThatOfAnother) {
  const JobTokens tokens = *JobTokens::Random();
  EXPECT_EQ(tokens.RoleOf(tokens.Token(CallerRole::kDevice)), CallerRole::kDevice);
  EXPECT_EQ(tokens.RoleOf(tokens.Token(CallerRole::kReward)), CallerRole::kReward);
  EXPECT_NE(tokens.Token(CallerRole::kDevice), tokens.Token(CallerRole::kReward));
  EXPECT_FALSE(tokens.RoleOf("").has_value());
  EXPECT_FALSE(tokens.RoleOf(std::string(64, '0')).has_value());
}

TEST(JobTokensTest, AnotherJobsTokenIsNoneOfOurs) {
  const JobTokens ours = *JobTokens::Random();
  const JobTokens theirs = *JobTokens::Random();
  EXPECT_FALSE(ours.RoleOf(theirs.Token(CallerRole::kDevice)).has_value());
}

TEST(JobTokensTest, ARestartReadsTheSameSecretAndFilesAreForTheOwnerAlone) {
  const std::string dir = testing::TempDir() + "/tokens";
  std::filesystem::remove_all(dir);
  const JobTokens first = *JobTokens::OpenOrCreate(dir);
  const JobTokens second = *JobTokens::OpenOrCreate(dir);
  EXPECT_EQ(first.Token(CallerRole::kDevice), second.Token(CallerRole::kDevice));
  struct stat st {};
  ASSERT_EQ(stat((dir + "/device.token").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 0777, 0600u);
  EXPECT_EQ(*ReadTokenFile(dir + "/device.token"), first.Token(CallerRole::kDevice));
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir))
    files.insert(entry.path().filename().string());
  EXPECT_EQ(files, (std::set<std::string>{"device.token", "environment.token", "operator.token",
                                          "reward.token", "secret"}));
}

// Whoever may write in the folder could have put it there: a link that leads elsewhere, or a file that is
// kept open.
TEST(SecretFileTest, IsANewFileInThePlaceOfWhatWasThere) {
  const std::string dir = testing::TempDir() + "/secret_file";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const std::string file = dir + "/device.key", elsewhere = dir + "/elsewhere";
  const auto text = [](const std::string& path) {
    std::string line;
    std::getline(std::ifstream(path), line);
    return line;
  };
  std::ofstream(elsewhere) << "not to be touched\n";
  std::filesystem::create_symlink(elsewhere, file);
  ASSERT_TRUE(WriteSecretFile(file, "secret\n").ok());
  EXPECT_EQ(text(file), "secret");
  EXPECT_EQ(text(elsewhere), "not to be touched");
  EXPECT_FALSE(std::filesystem::is_symlink(file));

  std::filesystem::remove(file);
  std::filesystem::create_hard_link(elsewhere, file);
  std::filesystem::permissions(file, std::filesystem::perms::all);
  ASSERT_TRUE(WriteSecretFile(file, "another\n").ok());
  EXPECT_EQ(text(file), "another");
  EXPECT_EQ(text(elsewhere), "not to be touched");
  struct stat st {};
  ASSERT_EQ(stat(file.c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600U);
  // One that cannot get its name leaves no secret behind.
  std::filesystem::create_directories(dir + "/folder/in_the_way");
  EXPECT_FALSE(WriteSecretFile(dir + "/folder", "secret").ok());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir), {}), 3);
}

TEST(JobTokensTest, ATokenFileThatOthersCanReadIsRefused) {
  const std::string dir = testing::TempDir() + "/open_tokens";
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(JobTokens::OpenOrCreate(dir).ok());
  chmod((dir + "/device.token").c_str(), 0644);
  EXPECT_EQ(ReadTokenFile(dir + "/device.token").status().code(), StatusCode::kPermissionDenied);
}

TEST(SecretFileTest, WhatADeadProcessLeftUnfinishedGoesAtTheNextStart) {
  const std::string dir = testing::TempDir() + "/unfinished";
  std::filesystem::remove_all(dir);
  ASSERT_TRUE(JobTokens::OpenOrCreate(dir).ok());
  std::filesystem::create_directories(dir + "/newcomers");
  const auto there = [&](const std::string& file) { return std::filesystem::exists(dir + "/" + file); };
  const std::vector<std::string> unfinished = {"secret.tidepool-unfinished-aB3xYz",
                                               "device.key.tidepool-unfinished-012345",
                                               "newcomers/0123456789abcdef.json.tidepool-unfinished-ABCDEF"};
  const std::vector<std::string> others = {"notes.backup", "device.key.backup", "secret.backup",
                                           "device.key.tidepool-unfinished-1234567"};
  for (const auto* files : {&unfinished, &others})
    for (const std::string& file : *files) std::ofstream(dir + "/" + file) << "half of it";
  // One that lives is writing this one.
  const std::string lives = dir + "/reward.key.tidepool-unfinished-live00";
  const int fd = open(lives.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  ASSERT_TRUE(JobTokens::OpenOrCreate(dir).ok());
  for (const std::string& file : unfinished) EXPECT_FALSE(there(file)) << file;
  for (const std::string& file : others) EXPECT_TRUE(there(file)) << file;
  for (const char* file : {"secret", "device.token", "reward.key.tidepool-unfinished-live00"})
    EXPECT_TRUE(there(file)) << file;
  close(fd);
  ASSERT_TRUE(JobTokens::OpenOrCreate(dir).ok());
  EXPECT_FALSE(there("reward.key.tidepool-unfinished-live00"));
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace tidepool::workers
